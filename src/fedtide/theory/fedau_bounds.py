"""Wang & Ji 2024 (FedAU): moments of its weights, its cutoff and its learning rates."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtide.errors import InvalidInputError
from fedtide.theory.learning_rates import LearningRates
from fedtide.validation import (
    require_all_nonnegative,
    require_all_positive,
    require_at_least,
    require_nonnegative,
    require_numbers,
    require_one_per_client,
    require_positive,
    require_whole_number,
)

Floats = NDArray[np.float64]


def participation_objective(rates: ArrayLike, weights: ArrayLike) -> Floats:
    """Return the weights of the objective that training minimises, shape (N,) (Theorem 1).

    With constant weights ω_n and independent participation with rates p_n the objective is
    (1 / P) Σ ω_n p_n F_n, P = Σ ω_n p_n.

    Args:
        rates: p_n, (N,).
        weights: ω_n, (N,).

    Raises:
        InvalidInputError: a rate outside [0, 1], a negative weight, not one weight for each rate,
            or no client with both above 0.

    >>> participation_objective([0.5, 0.25], [1.0, 1.0]).round(3)
    array([0.667, 0.333])
    """
    p, weight = _rates_and_weights(rates, weights)
    products = p * weight
    return np.asarray(products / products.sum())


def cutoff_moments(rates: ArrayLike, cutoff: int | None) -> tuple[Floats, Floats]:
    """Return the exact mean and variance of an interval S = min(G, K), G geometric (B.6).

    With r = 1 − p:

        E[S] = Σ_{k<K} r^k = (1 − r^K) / p,        E[S²] = Σ_{k<K} (2k + 1) r^k

    FedAU's weight tends to E[S], which is smaller than 1 / p by r^K / p. Both are accurate for any
    rate, however rare the client is.

    Args:
        rates: p_n in (0, 1], any shape.
        cutoff: K >= 1; None is ∞.

    Raises:
        InvalidInputError: a rate outside (0, 1], or K is not a whole number of at least 1.

    >>> mean, variance = cutoff_moments(0.02, 50)
    >>> float(mean.round(2)), float(variance.round(1))
    (31.79, 315.8)
    """
    p = _rates(rates)
    if (p == 0).any():
        raise InvalidInputError("rates: at rate 0 intervals have no mean; leave such clients out")
    if cutoff is None:
        return 1 / p, (1 - p) / p**2
    require_whole_number("cutoff", cutoff)
    with np.errstate(divide="ignore"):  # log 0 at rate 1
        log_last = cutoff * np.log1p(-p)
    mean = -np.expm1(log_last) / p
    return mean, np.where(cutoff * p < 1, _rare_variance(p, cutoff), _variance(p, log_last, cutoff))


def _variance(p: Floats, log_last: Floats, cutoff: int) -> Floats:
    """Return (r − (2K − 1) p r^K − r^{2K}) / p², which loses digits where K p is small."""
    last = np.exp(log_last)
    rest = (1 - p) - (2 * cutoff - 1) * p * last - last**2
    at_least = np.maximum(p, 1 / cutoff)  # smaller rates are not used, and their square may be 0
    return np.asarray(np.maximum(rest, 0.0) / at_least**2)


def _rare_variance(p: Floats, cutoff: int) -> Floats:
    """Return the same as its power series in K p, for K p <= 1.

    The coefficient of (−p)^j in the numerator is (2K − 1) C(K, j − 1) − C(2K, j), and 0 for j < 3;
    after 32 terms it is below 1e-25 of the first.
    """
    k = int(cutoff)
    coefficients = [
        (-1) ** j * ((2 * k - 1) * math.comb(k, j - 1) - math.comb(2 * k, j)) / k**j
        for j in range(3, 35)
    ]
    y = np.minimum(k * p, 1.0)
    return np.asarray(k**2 * y * np.polynomial.polynomial.polyval(y, coefficients))


def cyclic_weight(active: int, inactive: int, cutoff: int | None) -> float:
    """Return FedAU's long-run weight of a client that is active a rounds, then inactive b.

    (a + b) / ((a − 1) + ⌈(b + 1) / K⌉): a cycle has a − 1 intervals of length 1 and one of
    length b + 1, cut into pieces of K (from Algorithm 2).

    Args:
        active: a >= 1.
        inactive: b >= 0.
        cutoff: K >= 1; None is ∞.

    Raises:
        InvalidInputError: a number is out of range, or not a whole number.

    >>> cyclic_weight(2, 98, 50)
    33.333333333333336
    """
    require_whole_number("active", active)
    require_whole_number("inactive", inactive, low=0)
    if cutoff is None:
        return (active + inactive) / active
    require_whole_number("cutoff", cutoff)
    return (active + inactive) / ((active - 1) + math.ceil((inactive + 1) / cutoff))


def weight_error(rates: ArrayLike, cutoff: int, rounds: int) -> float:
    """Return K log T / T + mean (1 − p_n)^{2K} (Theorem 3; O(·), without the hidden constant).

    This is the order of the weights' error: the first term is noise, the second bias.

    >>> round(weight_error([0.5], cutoff=3, rounds=1000), 4)
    0.0363
    """
    require_positive("cutoff", cutoff)
    require_at_least("rounds", rounds, 2)
    bias = float(np.mean((1 - _rates(rates)) ** (2 * cutoff)))
    return cutoff * math.log(rounds) / rounds + bias


def fedau_cutoff(rates: ArrayLike, rounds: int) -> int:
    """Return K = ⌈log_c T⌉ with c = 1 / (1 − min p_n)² (Corollary 4).

    Raises:
        InvalidInputError: a rate outside (0, 1], or one for which K does not fit 64 bits.

    >>> fedau_cutoff([0.1, 0.5], rounds=10_000)
    44
    """
    require_positive("rounds", rounds)
    smallest = float(_rates(rates).min())
    if smallest == 0:
        raise InvalidInputError("rates: at rate 0 no cutoff suffices; leave such clients out")
    if smallest == 1 or rounds < 2:
        return 1
    cutoff = math.log(rounds) / (-2 * math.log1p(-smallest))
    if cutoff >= 2**63:
        raise InvalidInputError(
            f"rates: at rate {smallest:g} the cutoff is beyond 2**63; leave such clients out"
        )
    return max(1, math.ceil(cutoff))


def fedau_learning_rate_limits(
    smoothness: float, steps: int, clients: int, rates: ArrayLike, weights: ArrayLike
) -> LearningRates:
    """Return the largest γ of Theorem 2, and the largest η for that γ.

        γ <= 1 / (4 √15 L I),    γ η <= min{ 1 / (4 L I), N / (54 L I Q) },
        Q = max_t (1/N) Σ p_n (ω_t^n)²

    Args:
        smoothness: L.
        steps: I.
        clients: N.
        rates: p_n, (N,).
        weights: ω_n, (N,), constant over the rounds.

    Raises:
        InvalidInputError: a number is out of range, or not one rate and weight for each client.

    >>> round(fedau_learning_rate_limits(1.0, 5, 2, [0.5, 0.5], [2.0, 2.0]).product, 5)
    0.0037
    """
    require_all_positive(smoothness=smoothness, steps=steps, clients=clients)
    p, weight = _rates_and_weights(rates, weights)
    require_one_per_client("rates", p, clients)
    q = float(np.mean(p * weight**2))
    local = 1 / (4 * math.sqrt(15) * smoothness * steps)
    product = min(1 / (4 * smoothness * steps), clients / (54 * smoothness * steps * q))
    return LearningRates(local, product / local)


def fedau_learning_rates(
    smoothness: float,
    noise: float,
    divergence: float,
    gap: float,
    steps: int,
    rounds: int,
    rates: ArrayLike,
    weights: ArrayLike,
) -> LearningRates:
    """Return γ and η of Corollary 4.

        γ = min{ 1 / (L I √T), 1 / (4 √15 L I) },
        γ η = min{ √( F N / (Q (I δ² + σ²) L I T) ), 1 / (4 L I), N / (54 L I Q) }

    Args:
        smoothness: L.
        noise: σ, of the stochastic gradients.
        divergence: δ, of the clients' gradients.
        gap: F = f(x_0) − f*.
        steps: I.
        rounds: T.
        rates: p_n, (N,).
        weights: ω_n, (N,).

    Raises:
        InvalidInputError: as `fedau_learning_rate_limits`.
    """
    require_all_positive(gap=gap, rounds=rounds)
    require_all_nonnegative(noise=noise, divergence=divergence)
    p, weight = _rates_and_weights(rates, weights)
    clients, q = len(p), float(np.mean(p * weight**2))
    largest = fedau_learning_rate_limits(smoothness, steps, clients, rates, weights)
    local = min(1 / (smoothness * steps * math.sqrt(rounds)), largest.local)
    spread = steps * divergence**2 + noise**2
    product = largest.product
    if spread > 0:
        root = math.sqrt(gap * clients / (q * spread * smoothness * steps * rounds))
        product = min(root, product)
    return LearningRates(local, product / local)


def _rates_and_weights(rates: ArrayLike, weights: ArrayLike) -> tuple[Floats, Floats]:
    """Return p_n and ω_n, each of shape (N,), not all p_n ω_n being 0."""
    p = require_numbers("rates", _rates(rates))
    weight = require_nonnegative("weights", weights)
    require_one_per_client("weights", weight, len(p))
    if not (p * weight).any():
        raise InvalidInputError("weights: 0 for all clients that take part; give one above 0")
    return p, weight


def _rates(rates: ArrayLike) -> Floats:
    """Return probabilities of any shape, at least one."""
    p = require_numbers("rates", rates, dimensions=None)
    if p.size == 0 or not ((p >= 0) & (p <= 1)).all():
        raise InvalidInputError("rates: empty or not within [0, 1]; give probabilities")
    return p
