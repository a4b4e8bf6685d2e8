"""Yan et al. 2020 (FedLaAvg): absence, learning rate, convergence rate, and Example 1."""

from __future__ import annotations

import math

import numpy as np

from fedtide.errors import InvalidInputError
from fedtide.theory.learning_rates import LearningRates, require_within_limits
from fedtide.validation import (
    require_all_nonnegative,
    require_all_positive,
    require_number,
    require_numbers,
    require_positive,
    require_share,
    require_whole_number,
)


def fedlaavg_absence(clients: int, cohort: int, longest: int) -> int:
    """Return ⌈N / K⌉ E − 1, the largest age of a stored gradient in rounds (Lemma 1).

    Args:
        clients: N.
        cohort: K, the number of clients selected in a round, longest absent first.
        longest: E; every client is available at least once in any E rounds.

    Raises:
        InvalidInputError: a number is not a whole number of at least 1, or K > N.

    >>> fedlaavg_absence(1000, 100, 10)
    99
    """
    for name, value in (("clients", clients), ("cohort", cohort), ("longest", longest)):
        require_whole_number(name, value)
    if cohort > clients:
        raise InvalidInputError(f"cohort: {cohort} of {clients} clients; give at most {clients}")
    return -(-clients // cohort) * longest - 1


def fedlaavg_learning_rate(
    smoothness: float, clients: int, share: float, longest: int, rounds: int, steps: int = 1
) -> float:
    """Return γ = β^{1/2} N^{1/4} / (2 L C E^{1/2} R^{1/2}).

    Args:
        smoothness: L.
        clients: N.
        share: β = K / N.
        longest: E.
        rounds: R.
        steps: C, local steps in a round.

    Raises:
        InvalidInputError: a number is not positive, or β is above 1.

    >>> fedlaavg_learning_rate(1.0, 16, 0.25, 1, 100)
    0.05
    """
    require_all_positive(
        smoothness=smoothness,
        clients=clients,
        longest=longest,
        rounds=rounds,
        steps=steps,
        share=share,
    )
    require_share("share", share)
    return math.sqrt(share * math.sqrt(clients)) / (
        2 * smoothness * steps * math.sqrt(longest * rounds)
    )


def fedlaavg_rate(clients: int, longest: int, rounds: int, share: float) -> tuple[float, bool]:
    """Return E^{1/2} / (N^{1/4} T^{1/2}) (O(·), without the constant), and whether it holds.

    It holds for T > E N^{3/2} / β: a sublinear speedup in N. A factor β^{−1/2} is left out, as in
    the paper; `fedlaavg_bound` has it.

    >>> fedlaavg_rate(16, 1, 10_000, 0.25)
    (0.005, True)
    """
    require_all_positive(clients=clients, longest=longest, rounds=rounds, share=share)
    require_share("share", share)
    rate = math.sqrt(longest) / (clients**0.25 * math.sqrt(rounds))
    return rate, rounds > longest * clients**1.5 / share


def fedlaavg_bound(
    gap: float,
    smoothness: float,
    gradient_sq: float,
    lr: float,
    rounds: int,
    absence: int,
    noise_sq: float = 0.0,
    clients: int = 1,
) -> float:
    """Return a bound on the mean over the rounds of E‖∇f(x_{t−1})‖², for one local step.

        2 F / (γ T) + γ² L² I*² G² + 2 γ L I* G σ / √N + 2 γ L σ² / N

    It is derived, in place of Theorem 3, of which no legible copy was available: f(x_t) is compared
    with f(x_{t−1−I*}), of which the noise of the stored gradients is independent. Every client has
    a stored gradient at the start.

    Args:
        gap: F = f(x_0) − f*.
        smoothness: L.
        gradient_sq: G² >= E‖g_n‖².
        lr: γ <= 1 / (2 L), and <= 1 / L without noise.
        rounds: T.
        absence: I*, the largest age of a stored gradient, see `fedlaavg_absence`.
        noise_sq: σ².
        clients: N.

    Raises:
        InvalidInputError: a number is out of range, or γ is above its limit.

    >>> fedlaavg_bound(1.0, 1.0, 1.0, 0.1, 100, absence=0)
    0.2
    """
    require_all_positive(smoothness=smoothness, lr=lr, rounds=rounds, clients=clients)
    require_all_nonnegative(gap=gap, gradient_sq=gradient_sq, absence=absence, noise_sq=noise_sq)
    limit = 1 / (2 * smoothness if noise_sq else smoothness)
    require_within_limits(lr, 1.0, LearningRates(limit, 1.0))
    stale = lr * smoothness * absence * math.sqrt(gradient_sq)
    noise = math.sqrt(noise_sq / clients)
    return 2 * gap / (lr * rounds) + stale**2 + 2 * stale * noise + 2 * lr * smoothness * noise**2


def fedavg_two_clients(
    first: float, second: float, turns: tuple[int, int], lr: float, steps: int = 1
) -> tuple[float, float]:
    """Return FedAvg's limits on f_i(x) = (x − e_i)² after whole periods and after first turns.

    Example 1 of Yan et al. 2020: client 1 is available for t_1 rounds, then client 2 for t_2. With
    r = 1 − 2γ, the model at the ends of periods converges at the rate r^{I (t_1 + t_2)} to

        X = ( r^{I t_2} (e_1 − e_2) + e_2 − e_1 r^{I (t_1 + t_2)} ) / (1 − r^{I (t_1 + t_2)})
          = e_1 + (e_2 − e_1) (1 − r^{I t_2}) / (1 − r^{I (t_1 + t_2)}),

    and at the ends of first turns to e_1 + r^{I t_1} (X − e_1). For γ → 0 both are the mean of the
    centres weighted by the turns.

    Args:
        first: e_1.
        second: e_2.
        turns: t_1 and t_2.
        lr: γ < 1/2.
        steps: I.

    Raises:
        InvalidInputError: a number is not positive, γ >= 1/2, not two turns, or a centre that is
            not finite.

    >>> period, half = fedavg_two_clients(0.0, 1.0, (50, 150), lr=1e-6)
    >>> round(period, 3), round(half, 3)
    (0.75, 0.75)
    """
    _require_turns(turns)
    require_all_positive(lr=lr, steps=steps)
    _require_finite(first=first, second=second)
    if lr >= 0.5:
        raise InvalidInputError(f"lr: {lr} makes the steps overshoot; give less than 1/2")
    logarithm = steps * math.log1p(-2 * lr)
    share = math.expm1(turns[1] * logarithm) / math.expm1(sum(turns) * logarithm)
    end = first + (second - first) * share
    return end, first + math.exp(turns[0] * logarithm) * (end - first)


def fedlaavg_two_clients_bound(
    start: float, first: float, second: float, turns: tuple[int, int], rounds: int
) -> tuple[float, float]:
    """Return γ and the bound of Theorem 2 on the squared distance of FedLaAvg's mean iterate.

        γ = 1 / (2 √T),    (x̂ − x*)² <= (f(x_0) − f(x*)) / √T + I² G² / (4T),

    I = max(t_1, t_2), G = max{2 |x_0 − x*|, |e_1 − e_2|}, f(x) = ½ Σ (x − e_i)², x* the mean of the
    centres, x̂ the mean of x_0, ..., x_{T−1}.

    >>> fedlaavg_two_clients_bound(0.0, 0.0, 1.0, (5, 5), 10_000)
    (0.005, 0.003125)
    """
    _require_turns(turns)
    require_positive("rounds", rounds)
    _require_finite(start=start, first=first, second=second)
    middle = (first + second) / 2
    largest = max(2 * abs(start - middle), abs(first - second))
    bound = (start - middle) ** 2 / math.sqrt(rounds)
    return 1 / (2 * math.sqrt(rounds)), bound + max(turns) ** 2 * largest**2 / (4 * rounds)


def _require_finite(**values: float) -> None:
    for name, value in values.items():
        require_number(name, value)
        require_numbers(name, value, dimensions=0)


def _require_turns(turns: tuple[int, int]) -> None:
    if np.shape(turns) != (2,):
        raise InvalidInputError(f"turns: {turns!r:.60} is not a pair of numbers; give t_1 and t_2")
    for turn in turns:
        require_positive("turns", turn)
