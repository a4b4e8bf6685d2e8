"""Wang & Ji 2024 (FedAU): its weights, their moments and error, its cutoff."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtide.errors import InvalidInputError
from fedtide.validation import (
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
    p, weight = rates_and_weights(rates, weights)
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
    p = probabilities(rates)
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
    bias = float(np.mean((1 - probabilities(rates)) ** (2 * cutoff)))
    return cutoff * math.log(rounds) / rounds + bias


def weight_error_bound(rates: ArrayLike, cutoff: int, rounds: int) -> float:
    """Return Theorem 3's bound with its constants on the mean of E(p_n ω_t^n − 1)².

        mean over n of  [ K + 2 K (1 − p_n) (ln T + 1) ] / T + (1 − p_n)^{2K}

    The proof takes the mean of the intervals that have ended to be unbiased, which it is only for
    many of them.

    Args:
        rates: p_n, (N,).
        cutoff: K.
        rounds: T >= 2.

    >>> round(weight_error_bound([0.5], cutoff=3, rounds=1000), 4)
    0.0423
    """
    require_positive("cutoff", cutoff)
    require_at_least("rounds", rounds, 2)
    rest = 1 - probabilities(rates)
    noise = cutoff * (1 + 2 * rest * (math.log(rounds) + 1)) / rounds
    return float(np.mean(noise + rest ** (2 * cutoff)))


def fedau_cutoff(rates: ArrayLike, rounds: int) -> int:
    """Return K = ⌈log_c T⌉ with c = 1 / (1 − min p_n)² (Corollary 4).

    Raises:
        InvalidInputError: a rate outside (0, 1], or one for which K does not fit 64 bits.

    >>> fedau_cutoff([0.1, 0.5], rounds=10_000)
    44
    """
    require_positive("rounds", rounds)
    smallest = float(probabilities(rates).min())
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


def rates_and_weights(rates: ArrayLike, weights: ArrayLike) -> tuple[Floats, Floats]:
    """Return p_n and ω_n, each of shape (N,), not all p_n ω_n being 0."""
    p = require_numbers("rates", probabilities(rates))
    weight = require_nonnegative("weights", weights)
    require_one_per_client("weights", weight, len(p))
    if not (p * weight).any():
        raise InvalidInputError("weights: 0 for all clients that take part; give one above 0")
    return p, weight


def probabilities(rates: ArrayLike) -> Floats:
    """Return probabilities of any shape, at least one."""
    p = require_numbers("rates", rates, dimensions=None)
    if p.size == 0 or not ((p >= 0) & (p <= 1)).all():
        raise InvalidInputError("rates: empty or not within [0, 1]; give probabilities")
    return p
