"""Wang & Ji 2022 (amplified FedAvg): learning rates and the irregularity of windows."""

from __future__ import annotations

import math

from numpy.typing import ArrayLike

from fedtide.errors import InvalidInputError
from fedtide.theory.learning_rates import LearningRates
from fedtide.validation import require_all_nonnegative, require_all_positive, require_nonnegative


def generalized_fedavg_learning_rate_limits(
    smoothness: float, steps: int, period: int, rounds: int | None = None
) -> LearningRates:
    """Return the largest γ of Theorem 3.1, and the largest η for that γ.

        γ <= 1 / (12 L I P),    γ η <= 1 / (L I P),    P <= T / 2

    Args:
        smoothness: L.
        steps: I.
        period: P.
        rounds: T, to check the last condition; None skips it.

    Raises:
        InvalidInputError: a number is not positive, or P > T / 2.

    >>> generalized_fedavg_learning_rate_limits(1.0, steps=5, period=10).server
    12.0
    """
    require_all_positive(smoothness=smoothness, steps=steps, period=period)
    if rounds is not None:
        _check_period(period, rounds)
    local = 1 / (12 * smoothness * steps * period)
    return LearningRates(local, 12.0)


def generalized_fedavg_learning_rates(
    smoothness: float,
    noise: float,
    gap: float,
    steps: int,
    period: int,
    rounds: int,
    weight_norm: float,
) -> LearningRates:
    """Return γ and η of Corollary 3.2, or of Corollary 3.3 where σ = 0.

        γ = 1 / (12 L I P √T),    η = min{ 12 P √(L I F) / (σ ρ), 12 √T }     (3.2)
        the same γ,               η = 12 P √(L I F) / ρ                        (3.3)

    The η of Corollary 3.3 satisfies γ η <= 1 / (L I P), which Theorem 3.1 requires, only if
    T >= P² L I F / ρ². With fewer rounds the largest η that the theorem allows, 12 √T, is returned.

    Args:
        smoothness: L.
        noise: σ.
        gap: F = f(x_0) − f*.
        steps: I.
        period: P.
        rounds: T.
        weight_norm: ρ, with ρ² >= Σ (q_t^n)²: 1 / √S for S equal participants.

    Raises:
        InvalidInputError: a number is not positive, or P > T / 2.

    >>> generalized_fedavg_learning_rates(1.0, 1.0, 1.0, 1, 1, 100, 0.1).server
    120.0
    """
    require_all_positive(
        smoothness=smoothness,
        gap=gap,
        steps=steps,
        period=period,
        rounds=rounds,
        weight_norm=weight_norm,
    )
    require_all_nonnegative(noise=noise)
    _check_period(period, rounds)
    local = 1 / (12 * smoothness * steps * period * math.sqrt(rounds))
    server = 12 * period * math.sqrt(smoothness * steps * gap) / weight_norm
    if noise > 0:
        server /= noise
    return LearningRates(local, min(server, 12 * math.sqrt(rounds)))


def _check_period(period: int, rounds: int) -> None:
    """Raise InvalidInputError unless P <= T / 2."""
    if period > rounds / 2:
        raise InvalidInputError(
            f"period: {period} is more than half of {rounds} rounds; shorten it"
        )


def irregularity_bound(window_weights: ArrayLike, divergence: float) -> float:
    """Return N Σ (q̄_n − μ)² δ², the bound on δ̃²(P) of equation 15, with μ the mean of the q̄_n.

    0 is regularized participation (Proposition 4.2): all q̄_n equal.

    Args:
        window_weights: q̄_n, the mean of q_t^n over a window of P rounds, shape (N,).
        divergence: δ, of the clients' gradients.

    Raises:
        InvalidInputError: a number is negative, or none is given.

    >>> irregularity_bound([0.75, 0.25], 1.0)
    0.25
    """
    require_all_nonnegative(divergence=divergence)
    q = require_nonnegative("window_weights", window_weights)
    if q.size == 0:
        raise InvalidInputError("window_weights: none; give one for each client")
    return float(len(q) * ((q - q.mean()) ** 2).sum() * divergence**2)


def independent_irregularity(
    clients: int, deviation: float, period: int, divergence: float
) -> float:
    """Return N² δ² v² / P, the expected bound of equation 15 for independent rounds.

    Args:
        clients: N.
        deviation: v, the standard deviation of q_t^n.
        period: P.
        divergence: δ.

    >>> round(independent_irregularity(10, 0.1, 5, 1.0), 6)
    0.2
    """
    require_all_positive(clients=clients, period=period)
    require_all_nonnegative(deviation=deviation, divergence=divergence)
    return clients**2 * divergence**2 * deviation**2 / period


def period_for_speedup(deviation: float, clients: int, steps: int, rounds: int) -> float:
    """Return P = v² N^{5/2} √(I T) (Corollary 4.8).

    >>> period_for_speedup(0.01, 100, 1, 100)
    100.0
    """
    require_all_positive(deviation=deviation, clients=clients, steps=steps, rounds=rounds)
    return deviation**2 * clients**2 * math.sqrt(clients * steps * rounds)
