"""Exact inclusion probabilities of successive sampling."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtide.errors import InvalidInputError
from fedtide.validation import require_nonnegative, require_whole_number

_Array = NDArray[np.float64]
_MAX_TABLE = 4_000_000
"""The largest size of a dynamic-programming table, in numbers (32 MB)."""

_MAX_INTERVALS = 2**14
"""The number of intervals of the finest trapezoid rule that is tried."""


def inclusion_probabilities(weights: ArrayLike, size: int) -> NDArray[np.float64]:
    """Return P(n ∈ S) of a successive sample of `size` clients, shape (N,).

    With a time T_n ~ Exp(w_n) for each client, the M smallest are a successive sample, so

        P(n ∈ S) = ∫ w_n e^{−w_n s} P( #{m ≠ n : T_m <= s} <= M − 1 ) ds.

    The inner probability, that of a sum of independent coins, is computed by dynamic programming
    for each s; the integral by the trapezoid rule in roughly log s, whose intervals are halved
    until no result changes by more than 1e-11 of itself and all add up to M. Costs O(N M) for each
    of about a hundred nodes.

    Args:
        weights: w_n >= 0, shape (N,); at least `size` of them positive.
        size: M.

    Raises:
        InvalidInputError: negative weights, fewer than `size` positive ones, a size below 1, or
            weights too different for the integral.

    >>> inclusion_probabilities([1.0, 2.0], 1).round(6)
    array([0.333333, 0.666667])
    """
    require_whole_number("size", size)
    w = require_nonnegative("weights", weights)
    present = w > 0
    if (positive := np.count_nonzero(present)) < size:
        raise InvalidInputError(
            f"weights: fewer are positive ({positive}) than size = {size}; give more"
        )
    result = np.zeros(len(w))
    log_w = np.log(w[present]) - np.log(w.max())
    result[present] = 1.0 if positive == size else _integrate(log_w, size)
    return result


def _integrate(log_w: _Array, size: int) -> _Array:
    """Return the integrals of all n, given the logarithms of w_n / max w.

    Steps are even in u, with log s = a + u − e^{−u}: in log s after a, where one T_n <= s is
    expected, with a double-exponential tail before it.
    """
    start = -float(np.log(np.exp(log_w).sum()))
    low, high = -3.75, _end(log_w, size) + 1 - start
    intervals, last = 64, np.full(len(log_w), np.nan)
    sums = _sum_integrand(log_w, size, start, np.linspace(low, high, intervals + 1))
    while intervals < _MAX_INTERVALS:
        between = np.linspace(low, high, 2 * intervals + 1)[1::2]
        sums += _sum_integrand(log_w, size, start, between)
        intervals *= 2
        estimate = sums * (high - low) / intervals
        settled = np.allclose(estimate, last, rtol=1e-11, atol=1e-300)
        if settled and abs(estimate.sum() - size) < 1e-9 * size:
            return np.minimum(estimate, 1.0)
        last = estimate
    raise InvalidInputError(
        f"weights: the probabilities of {size} of {len(log_w)} clients cannot be computed "
        f"(they add up to {last.sum():.6g}); give weights that differ less"
    )


def _end(log_w: _Array, size: int) -> float:
    """Return a log s after which the integrand is negligible.

    All T_n are before it, or so many that fewer than M are with probability below e^{−46}: that is
    at most e^{−(μ − M)² / 2μ}, with μ the expected number (Chernoff).
    """
    log_s, last = 0.0, np.log(60) - float(log_w.min())
    while log_s < last:
        expected = -np.expm1(-_products(log_w, log_s)).sum()
        if expected > size and (expected - size) ** 2 > 92 * expected:
            return log_s
        log_s += 0.5
    return float(last)


def _products(log_w: _Array, log_s: _Array | float) -> _Array:
    """Return w_n s, cut off where e^{−w_n s} is 0 anyway and w_n s may overflow."""
    return np.exp(np.minimum(log_w + log_s, 700.0))


def _sum_integrand(log_w: _Array, size: int, start: float, u: _Array) -> _Array:
    """Return the sum of the integrand over the nodes u, with s = exp(start + u − e^{−u})."""
    log_s = start + u - np.exp(-u)
    total = np.zeros(len(log_w))
    chunk = max(1, _MAX_TABLE // (len(log_w) * size))
    for low in range(0, len(u), chunk):
        rows = slice(low, low + chunk)
        ws = _products(log_w, log_s[rows, None])
        density = (1 + np.exp(-u[rows, None])) * ws * np.exp(-ws)
        others = _probability_others_at_most(-np.expm1(-ws), np.exp(-ws), size)
        total += (density * others).sum(axis=0)
    return total


def _probability_others_at_most(heads: _Array, tails: _Array, size: int) -> _Array:
    """Return P(heads among all coins but n <= size − 1) for each n, shape (Q, N).

    Args:
        heads, tails: the probabilities of each coin, (Q, N); either may be tiny.
        size: M.
    """
    rows, coins = heads.shape
    before = np.zeros((coins, rows, size))
    before[0, :, 0] = 1
    for n in range(coins - 1):
        before[n + 1] = _add_coin(before[n], heads[:, n], tails[:, n])
    after = np.ones((rows, size))
    result = np.empty_like(heads)
    for n in reversed(range(coins)):
        result[:, n] = (before[n] * after[:, ::-1]).sum(axis=1)
        after = _add_coin(after, heads[:, n], tails[:, n])
    return result


def _add_coin(table: _Array, heads: _Array, tails: _Array) -> _Array:
    """Return the distribution over 0..M−1 heads (or its cumulative sums) after one more coin."""
    added = table * tails[:, None]
    added[:, 1:] += table[:, :-1] * heads[:, None]
    return added
