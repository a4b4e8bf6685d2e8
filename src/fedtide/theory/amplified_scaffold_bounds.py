"""Crawshaw & Liu 2024 (Amplified SCAFFOLD): rounds, local steps, learning rates and a bound."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedtide.errors import InvalidInputError
from fedtide.theory.learning_rates import LearningRates, require_within_limits
from fedtide.validation import (
    require_all_nonnegative,
    require_all_positive,
    require_share,
    require_whole_number,
)


@dataclass(frozen=True)
class CyclicConstants:
    """The constants of cyclic participation, where K̄ groups take turns of g rounds.

    Args:
        period: P = g K̄.
        weight_norm_squared: ρ² = 1 / S.
        sampling: p_sample, the probability that a client is sampled at least once in a period
            (Assumption 2(c)).
    """

    period: int
    weight_norm_squared: float
    sampling: float


def cyclic_constants(clients: int, cohort: int, groups: int, turn: int = 1) -> CyclicConstants:
    """Return P, ρ² and p_sample of cyclic participation.

        P = g K̄,    ρ² = 1 / S,    p_sample = 1 − (1 − S K̄ / N)^g

    In each of the g rounds of its turn, S of the N / K̄ clients of a group are drawn uniformly and
    independently of the other rounds. This p_sample is exact; the text of the paper takes S / N.

    Args:
        clients: N.
        cohort: S.
        groups: K̄.
        turn: g.

    Raises:
        InvalidInputError: a number is not a whole number of at least 1, or S exceeds a group.

    >>> constants = cyclic_constants(250, 10, 5, turn=4)
    >>> constants.period, round(constants.sampling, 4)
    (20, 0.5904)
    """
    for name, value in (("clients", clients), ("cohort", cohort), ("groups", groups)):
        require_whole_number(name, value)
    require_whole_number("turn", turn)
    if cohort * groups > clients:
        raise InvalidInputError(
            f"cohort: {cohort} clients of a group of {clients / groups:g}; give at most that many"
        )
    share = cohort * groups / clients
    sampling = share if turn == 1 else 1 - (1 - share) ** turn
    return CyclicConstants(turn * groups, 1 / cohort, sampling)


def amplified_scaffold_rounds(
    gap: float,
    smoothness: float,
    noise: float,
    accuracy: float,
    period: int,
    weight_norm_squared: float,
    sampling: float,
) -> tuple[float, float]:
    """Return the R and I that reach a gradient norm ε (O(·), without the hidden constants).

        R = Δ L P / (p_sample ε²),    I = ρ² σ² p_sample / (P ε²)

    so that R I = Δ L ρ² σ² / ε⁴. If I < 1, one local step is enough.

    Args:
        gap: Δ = f(x_0) − f*.
        smoothness: L.
        noise: σ.
        accuracy: ε.
        period: P.
        weight_norm_squared: ρ².
        sampling: p_sample in (0, 1]; 1 for regularized participation.

    Raises:
        InvalidInputError: a number is out of range.

    >>> rounds, steps = amplified_scaffold_rounds(1.0, 1.0, 1.0, 0.1, 20, 0.1, 0.2)
    >>> round(rounds), round(steps, 6)
    (10000, 0.1)
    """
    require_all_positive(
        gap=gap,
        smoothness=smoothness,
        accuracy=accuracy,
        period=period,
        weight_norm_squared=weight_norm_squared,
        sampling=sampling,
    )
    require_share("sampling", sampling)
    require_all_nonnegative(noise=noise)
    rounds = gap * smoothness * period / (sampling * accuracy**2)
    steps = weight_norm_squared * noise**2 * sampling / (period * accuracy**2)
    return rounds, steps


def amplified_scaffold_rounds_for_steps(
    gap: float,
    smoothness: float,
    noise: float,
    accuracy: float,
    period: int,
    weight_norm_squared: float,
    sampling: float,
    steps: int,
) -> float:
    """Return the R that reaches a gradient norm ε with I local steps (Corollary 1; O(·)).

        R = Δ L ρ² σ² / (I ε⁴) + Δ L P / (p_sample ε²)

    Args: as `amplified_scaffold_rounds`, and
        steps: I.

    >>> round(amplified_scaffold_rounds_for_steps(1.0, 1.0, 1.0, 0.1, 20, 0.1, 0.2, steps=1))
    11000
    """
    require_all_positive(steps=steps)
    rounds, best = amplified_scaffold_rounds(
        gap, smoothness, noise, accuracy, period, weight_norm_squared, sampling
    )
    return rounds * (1 + best / steps)


def amplified_scaffold_learning_rate_limit(
    smoothness: float, steps: int, period: int, sampling: float
) -> LearningRates:
    """Return the largest γ of Theorem 1, and the largest η for that γ.

        γ <= √(p_sample) / (60 L I P),    γ η <= p_sample / (60 L I P)

    In the available copy of the paper both numerators are damaged. They are read from the braces
    that are left, and from Corollary 1, whose R is proportional to 1 / p_sample.

    >>> limit = amplified_scaffold_learning_rate_limit(1.0, steps=1, period=10, sampling=0.36)
    >>> round(limit.local, 6), round(limit.product, 6)
    (0.001, 0.0006)
    """
    require_all_positive(smoothness=smoothness, steps=steps, period=period, sampling=sampling)
    require_share("sampling", sampling)
    root = math.sqrt(sampling)
    return LearningRates(root / (60 * smoothness * steps * period), root)


def amplified_scaffold_bound(
    gap: float,
    smoothness: float,
    noise_sq: float,
    lr: float,
    factor: float,
    steps: int,
    period: int,
    rounds: int,
    weight_norm_sq: float,
    sampling: float,
) -> float:
    """Return Theorem 1's bound on E‖∇f‖² at a window's start drawn at random (O(·)).

        Δ / (γ η I R) + (γ η L ρ² + γ² L² I P) σ²

    The available copy does not say where the control variates start; from zero, expect a further
    term with their initial error.

    Args:
        gap: Δ = f(x_0) − f*.
        smoothness: L.
        noise_sq: σ².
        lr: γ.
        factor: η.
        steps: I.
        period: P.
        rounds: R.
        weight_norm_sq: ρ².
        sampling: p_sample.

    Raises:
        InvalidInputError: a number is out of range, or the rates exceed
            `amplified_scaffold_learning_rate_limit`.

    >>> amplified_scaffold_bound(1, 1, 0, 0.01, 1, 1, 1, 100, 0.1, 1)
    1.0
    """
    require_all_nonnegative(gap=gap, noise_sq=noise_sq, weight_norm_sq=weight_norm_sq)
    require_all_positive(lr=lr, factor=factor, rounds=rounds)
    largest = amplified_scaffold_learning_rate_limit(smoothness, steps, period, sampling)
    require_within_limits(lr, factor, largest)
    noise = lr * factor * smoothness * weight_norm_sq + (lr * smoothness) ** 2 * steps * period
    return gap / (lr * factor * steps * rounds) + noise * noise_sq
