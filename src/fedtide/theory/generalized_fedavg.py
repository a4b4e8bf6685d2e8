"""Wang & Ji 2022 (amplified FedAvg): learning rates and bounds."""

from __future__ import annotations

import math

from fedtide.errors import InvalidInputError
from fedtide.theory.learning_rates import LearningRates, require_within_limits
from fedtide.validation import require_all_nonnegative, require_all_positive


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
        require_two_windows(period, rounds)
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
    """Return γ and η of Corollary 3.2, for which Theorem 3.1's bound is of the order (9).

        γ = 1 / (12 L I P √T),    η = min{ 12 P √(L I F) / (σ ρ), 12 √T }

    Args:
        smoothness: L.
        noise: σ; without noise, η = 12 √T.
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
    require_all_positive(gap=gap, weight_norm=weight_norm)
    require_all_nonnegative(noise=noise)
    local = _corollary_lr(smoothness, steps, period, rounds)
    server = 12 * math.sqrt(rounds)
    if noise > 0:
        root = math.sqrt(smoothness * steps * gap)
        server = min(server, 12 * period * root / (noise * weight_norm))
    return LearningRates(local, server)


def generalized_fedavg_speedup_learning_rates(
    smoothness: float, gap: float, steps: int, period: int, rounds: int, weight_norm: float
) -> LearningRates:
    """Return γ and η of Corollary 3.3, which need no σ, for a P that may grow with T.

        γ = 1 / (12 L I P √T),    η = 12 P √(L I F) / ρ,    if T >= P² L I F / ρ²

    Args: as `generalized_fedavg_learning_rates`.

    Raises:
        InvalidInputError: a number is not positive, P > T / 2, or T < P² L I F / ρ².

    >>> generalized_fedavg_speedup_learning_rates(1.0, 1.0, 1, 1, 100, 0.1).server
    120.0
    """
    require_all_positive(gap=gap, weight_norm=weight_norm)
    local = _corollary_lr(smoothness, steps, period, rounds)
    first = period**2 * smoothness * steps * gap / weight_norm**2
    # The product of floats may exceed a whole number by an ulp.
    if rounds < first * (1 - 1e-12):
        raise InvalidInputError(
            f"rounds: {rounds}, but Corollary 3.3 holds from P² L I F / ρ² = {first:g} on; "
            "give more, or use generalized_fedavg_learning_rates"
        )
    return LearningRates(local, 12 * period * math.sqrt(smoothness * steps * gap) / weight_norm)


def _corollary_lr(smoothness: float, steps: int, period: int, rounds: int) -> float:
    """Return γ = 1 / (12 L I P √T) of Corollaries 3.2 and 3.3."""
    require_all_positive(smoothness=smoothness, steps=steps, period=period, rounds=rounds)
    require_two_windows(period, rounds)
    return 1 / (12 * smoothness * steps * period * math.sqrt(rounds))


def generalized_fedavg_bound(
    gap: float,
    smoothness: float,
    noise_sq: float,
    lr: float,
    factor: float,
    steps: int,
    period: int,
    rounds: int,
    weight_norm_sq: float,
    within_sq: float,
    between_sq: float,
    irregularity_sq: float,
) -> float:
    """Return Theorem 3.1's bound (8) on min_t E‖∇f(x_t)‖² (O(·), without the hidden constant).

        F / (γ η I T) + γ² L² I² ν̃² + γ² L² I² P² β̃² + δ̃²(P)
        + (γ² L² I + γ² L² I P ρ² + γ η L ρ²) σ²

    Args:
        gap: F = f(x_0) − f*.
        smoothness: L.
        noise_sq: σ².
        lr: γ <= 1 / (12 L I P).
        factor: η, with γ η <= 1 / (L I P).
        steps: I.
        period: P <= T / 2.
        rounds: T.
        weight_norm_sq: ρ².
        within_sq: ν̃².
        between_sq: β̃².
        irregularity_sq: δ̃²(P).

    Raises:
        InvalidInputError: a number is out of range, or a condition of the theorem does not hold.

    >>> generalized_fedavg_bound(1, 1, 0, 0.01, 1, 1, 1, 100, 1, 0, 0, 0.5)
    1.5
    """
    require_all_nonnegative(
        gap=gap,
        noise_sq=noise_sq,
        weight_norm_sq=weight_norm_sq,
        within_sq=within_sq,
        between_sq=between_sq,
        irregularity_sq=irregularity_sq,
    )
    require_all_positive(lr=lr, factor=factor)
    largest = generalized_fedavg_learning_rate_limits(smoothness, steps, period, rounds)
    require_within_limits(lr, factor, largest)
    drift = (lr * smoothness) ** 2 * steps
    return (
        gap / (lr * factor * steps * rounds)
        + drift * steps * (within_sq + period**2 * between_sq)
        + irregularity_sq
        + (drift * (1 + period * weight_norm_sq) + lr * factor * smoothness * weight_norm_sq)
        * noise_sq
    )


def generalized_fedavg_rate(
    gap: float,
    smoothness: float,
    noise_sq: float,
    steps: int,
    period: int,
    rounds: int,
    weight_norm_sq: float,
    within_sq: float,
    between_sq: float,
    irregularity_sq: float,
    speedup: bool = False,
) -> float:
    """Return (9), or (10), the order of the bound at the corollaries' learning rates (O(·)).

        (9)   σ ρ √(L F / (I T)) + L P F / T + ν̃² / (P² T) + β̃² / T + δ̃²(P) + σ² / (I P T)
        (10)  (1 + σ²) ρ √(L F / (I T)) + ν̃² / (P² T) + β̃² / T + δ̃²(P) + σ² / (I P T)

    Args: as `generalized_fedavg_bound`, and
        speedup: False is Corollary 3.2, (9); True is Corollary 3.3, (10).

    >>> generalized_fedavg_rate(1, 1, 0, 1, 1, 100, 1, 0, 0, 0)
    0.01
    """
    root = math.sqrt(weight_norm_sq * smoothness * gap / (steps * rounds))
    if speedup:
        lead = (1 + noise_sq) * root
    else:
        lead = math.sqrt(noise_sq) * root + smoothness * period * gap / rounds
    rest = within_sq / period**2 + between_sq + noise_sq / (steps * period)
    return lead + rest / rounds + irregularity_sq


def regularized_rate(
    gap: float,
    smoothness: float,
    noise_sq: float,
    steps: int,
    period: int,
    rounds: int,
    weight_norm_sq: float,
    divergence_sq: float,
) -> float:
    """Return (14), the order for regularized participation (Corollary 4.3; O(·)).

        σ ρ √(L F / (I T)) + (L P F + d² + σ²) / T

    Args: as `generalized_fedavg_bound`, and
        divergence_sq: d² >= ‖∇F_n(x) − ∇f(x)‖² for all n and x.

    >>> regularized_rate(1, 1, 0, 1, 5, 100, 1, 1)
    0.06
    """
    lead = math.sqrt(noise_sq * weight_norm_sq * smoothness * gap / (steps * rounds))
    return lead + (smoothness * period * gap + divergence_sq + noise_sq) / rounds


def stochastic_rate(
    gap: float,
    smoothness: float,
    noise_sq: float,
    steps: int,
    rounds: int,
    clients: int,
    weight_norm_sq: float,
    divergence_sq: float,
) -> float:
    """Return (18), the order for random participation with P = `period_for_speedup` (O(·)).

        (1 + σ²) ρ √(L F / (I T)) + d² / √(N I T) + (d² + σ²) / T

    Args: as `regularized_rate`, and
        clients: N.

    >>> stochastic_rate(1, 1, 0, 1, 100, 100, 0.25, 1)
    0.07
    """
    lead = (1 + noise_sq) * math.sqrt(weight_norm_sq * smoothness * gap / (steps * rounds))
    middle = divergence_sq / math.sqrt(clients * steps * rounds)
    return lead + middle + (divergence_sq + noise_sq) / rounds


def require_two_windows(period: float, rounds: int) -> None:
    """Raise InvalidInputError unless P <= T / 2."""
    if period > rounds / 2:
        raise InvalidInputError(
            f"period: {period:g} is more than half of {rounds} rounds; shorten it"
        )


def leading_rates(
    noise_sq: float,
    clients: int,
    cohort: int,
    steps: int,
    rounds: int,
    period: int = 1,
    batches: int = 1,
    longest: int = 1,
) -> dict[str, float]:
    """Return the leading terms that Table 1 and Section 5 compare, by participation (O(·)).

    | key | term |
    |---|---|
    | `regularized` | σ / √(S I T) |
    | `stochastic` | (1 + σ²) / √(S I T) |
    | `wait-for-all` | σ √P / √(M N T), equal to the first if M N = S I P |
    | `yan` | (1 + σ²) N^{1/4} √E / √(S T), Yan et al. 2020 |
    | `gu` | (1 + σ²) √E / √(N I T), Gu et al. 2021 |

    Args:
        noise_sq: σ².
        clients: N.
        cohort: S.
        steps: I.
        rounds: T.
        period: P.
        batches: M, the gradients that each client averages in a window.
        longest: E, every client is available at least once in any E rounds.

    >>> round(leading_rates(1.0, 100, 25, 4, 10_000)["regularized"], 6)
    0.001
    """
    require_all_positive(clients=clients, cohort=cohort, steps=steps, rounds=rounds)
    require_all_positive(period=period, batches=batches, longest=longest)
    require_all_nonnegative(noise_sq=noise_sq)
    noise, either = math.sqrt(noise_sq), 1 + noise_sq
    return {
        "regularized": noise / math.sqrt(cohort * steps * rounds),
        "stochastic": either / math.sqrt(cohort * steps * rounds),
        "wait-for-all": noise * math.sqrt(period / (batches * clients * rounds)),
        "yan": either * clients**0.25 * math.sqrt(longest / (cohort * rounds)),
        "gu": either * math.sqrt(longest / (clients * steps * rounds)),
    }
