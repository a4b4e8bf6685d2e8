"""Wang & Ji 2022 (amplified FedAvg): how far windows are from regular participation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from numpy.typing import ArrayLike

from fedtide.errors import InvalidInputError
from fedtide.theory.generalized_fedavg import require_two_windows
from fedtide.validation import (
    require_all_nonnegative,
    require_all_positive,
    require_nonnegative,
    require_numbers,
    require_one_per_client,
    require_share,
    require_whole_number,
)


@dataclass(frozen=True)
class DivergenceConstants:
    """What Assumption 3' of Wang & Ji 2022 bounds, squared; see `divergence_constants`."""

    between_sq: float
    within_sq: float
    irregularity_sq: float
    divergence_sq: float
    weight_norm_sq: float


def divergence_constants(
    gradients: ArrayLike, weights: ArrayLike, period: int
) -> DivergenceConstants:
    """Return the constants of (5) to (7) for clients whose gradients differ by constants.

    For F_n(x) = ½ (x − e_n)ᵀ A (x − e_n), h_n = ∇F_n(x) − ∇f(x) = A (ē − e_n) does not depend on
    x, and the least constants, `between_sq`, `within_sq`, `irregularity_sq`, `divergence_sq` and
    `weight_norm_sq`, are

        β̃² = max_t ‖Σ_n q_t^n h_n‖²    (5)
        ν̃² = max_t Σ_n q_t^n ‖h_n − Σ_m q_t^m h_m‖²    (6)
        δ̃² = max over windows ‖Σ_n q̄_n h_n‖²    (7)
        d² = max_n ‖h_n‖²
        ρ² = max_t Σ_n (q_t^n)²

    Args:
        gradients: the clients' gradients anywhere, (N, d); their mean is subtracted.
        weights: q_t^n, (T, N).
        period: P; a last window of fewer rounds is left out, as in Theorem 3.1.

    Raises:
        InvalidInputError: the shapes do not fit, a weight is negative, or P > T.

    >>> found = divergence_constants([[1.0], [-1.0]], [[1, 0], [0, 1]], period=2)
    >>> found.between_sq, found.within_sq, found.irregularity_sq
    (1.0, 0.0, 0.0)
    """
    require_whole_number("period", period)
    g = require_numbers("gradients", gradients, dimensions=2)
    q = require_nonnegative("weights", weights, dimensions=2)
    require_one_per_client("weights", q.T, len(g))
    windows = len(q) // period
    if windows == 0:
        raise InvalidInputError(f"period: {period} exceeds the {len(q)} rounds; shorten it")
    h = g - g.mean(axis=0)
    sums = q @ h
    squares = (h**2).sum(axis=1)
    # Σ q ‖h − s‖² = Σ q ‖h‖² − (2 − Σ q) ‖s‖², with s = Σ q h.
    within = q @ squares - (2 - q.sum(axis=1)) * (sums**2).sum(axis=1)
    means = sums[: windows * period].reshape(windows, period, -1).mean(axis=1)
    return DivergenceConstants(
        between_sq=float((sums**2).sum(axis=1).max()),
        within_sq=float(max(within.max(), 0.0)),
        irregularity_sq=float((means**2).sum(axis=1).max()),
        divergence_sq=float(squares.max()),
        weight_norm_sq=float((q**2).sum(axis=1).max()),
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
    clients: int, deviation: float, period: int, divergence: float, failure: float | None = None
) -> float:
    """Return δ̃²(P) for rounds that are independent of each other (Proposition 4.7).

        N² d² v² / P                 in expectation
        N² d² ln(2 / c) / (2 P)      with probability 1 − c, from Hoeffding's inequality (17)

    The second is stated for each client; for all at once, give c / N.

    Args:
        clients: N.
        deviation: v, the standard deviation of q_t^n.
        period: P.
        divergence: d.
        failure: c in (0, 1); None is the expectation.

    >>> round(independent_irregularity(10, 0.1, 5, 1.0), 6)
    0.2
    """
    require_all_positive(clients=clients, period=period)
    require_all_nonnegative(deviation=deviation, divergence=divergence)
    if failure is None:
        return clients**2 * divergence**2 * deviation**2 / period
    require_share("failure", failure)
    return clients**2 * divergence**2 * math.log(2 / failure) / (2 * period)


def asymptotic_variance(variance: float, autocorrelations: ArrayLike) -> float:
    """Return v̂² = Var(q) (1 + 2 Σ_p r_p), to which P Var(q̄) tends for long windows (Lemma 4.5).

    Args:
        variance: Var(q_t^n).
        autocorrelations: r_1, r_2, ... of q_t^n, until they are negligible.

    >>> asymptotic_variance(0.25, [0.5, 0.25, 0.125])
    0.6875
    """
    require_all_nonnegative(variance=variance)
    return variance * (1 + 2 * float(require_numbers("autocorrelations", autocorrelations).sum()))


def mixing_irregularity(
    clients: int,
    asymptotic_variance: float,
    period: int,
    divergence_sq: float,
    failure: float | None = None,
) -> float:
    """Return δ̃²(P) for stationary, strongly mixing participation as P → ∞ (Proposition 4.6).

        N² d² v̂² / P           in expectation
        N² d² v̂² / (c P)       with probability 1 − c

    Finite irreducible aperiodic Markov chains mix so. The second holds for all clients at once, by
    Markov's inequality for N Σ (q̄_n − μ)².

    Args:
        clients: N.
        asymptotic_variance: v̂², see `asymptotic_variance`.
        period: P.
        divergence_sq: d².
        failure: c in (0, 1); None is the expectation.

    >>> round(mixing_irregularity(10, 0.01, 5, 1.0, failure=0.1), 6)
    2.0
    """
    require_all_positive(clients=clients, period=period)
    require_all_nonnegative(asymptotic_variance=asymptotic_variance, divergence_sq=divergence_sq)
    if failure is not None:
        require_share("failure", failure)
        asymptotic_variance /= failure
    return clients**2 * divergence_sq * asymptotic_variance / period


def period_for_speedup(deviation: float, clients: int, steps: int, rounds: int) -> float:
    """Return P = v² N^{5/2} √(I T) (Corollary 4.8), for which (10) becomes (18).

    For mixing participation, v² is the asymptotic variance. The corollary also needs what
    `generalized_fedavg_speedup_learning_rates` checks.

    Args:
        deviation: v, the standard deviation of q_t^n.
        clients: N.
        steps: I.
        rounds: T >= 4 v⁴ I N⁵, which is P <= T / 2.

    Raises:
        InvalidInputError: a number is not positive, or P > T / 2.

    >>> period_for_speedup(0.01, 100, 1, 10_000)
    1000.0
    """
    require_all_positive(deviation=deviation, clients=clients, steps=steps, rounds=rounds)
    period = deviation**2 * clients**2 * math.sqrt(clients * steps * rounds)
    require_two_windows(period, rounds)
    return period
