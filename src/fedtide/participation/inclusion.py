"""Exact inclusion probabilities of successive sampling."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtide.errors import InvalidInputError
from fedtide.validation import require_nonnegative, require_whole_number

_Array = NDArray[np.float64]
_MAX_TABLE = 4_000_000
"""The largest size of a dynamic-programming table, in numbers (32 MB)."""

_MAX_INTERVALS = 2**17
"""The number of intervals of the finest trapezoid rule that is tried."""

_CERTAIN, _NEVER = np.log(60), -50.0
"""The log w_n s above which T_n <= s is certain (but for e^{−60}), and below which it never
happens (but for e^{−50})."""


def inclusion_probabilities(weights: ArrayLike, size: int) -> NDArray[np.float64]:
    """Return P(n ∈ S) of a successive sample of `size` clients, shape (N,).

    With a time T_n ~ Exp(w_n) for each client, the M smallest are a successive sample, so

        P(n ∈ S) = ∫ w_n e^{−w_n s} P( #{m ≠ n : T_m <= s} <= M − 1 ) ds.

    The inner probability, that of a sum of independent coins, is computed by dynamic programming
    for each s; the integral by the trapezoid rule in roughly log s, whose intervals are halved
    until no result changes by more than 1e-11 of itself and all add up to M. Costs O(N M) for each
    of about a hundred nodes; weights of many orders of magnitude need thousands of cheaper nodes.

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
    result[present] = _integrate_positive(np.log(w[present]) - np.log(w.max()), size)
    return result


def _integrate_positive(log_w: _Array, size: int) -> _Array:
    """Return the integrals of all n, given the logarithms of w_n / max w.

    The integrand is negligible well before log s = a, the smaller of 0, where the heaviest client
    is expected, and the log s at which M clients are expected. Hence log s = a + u − e^{−u}:
    even steps after a, and a double-exponential tail before it.
    """
    if len(log_w) == size:
        return np.ones(len(log_w))
    middle, end = _integration_range(log_w, size)
    start = min(0.0, middle)
    low, high = -3.75, end + 1 - start
    intervals = 64
    sums = _sum_integrand(log_w, size, start, np.linspace(low, high, intervals + 1))
    last = sums * (high - low) / intervals
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


def _sum_integrand(log_w: _Array, size: int, start: float, u: _Array) -> _Array:
    """Return the sum of the integrand over the nodes u, with s = exp(start + u − e^{−u})."""
    log_s = start + u - np.exp(-u)
    factor = 1 + np.exp(-u)
    total = np.zeros(len(log_w))
    chunk = max(1, _MAX_TABLE // (len(log_w) * size))
    for low in range(0, len(u), chunk):
        rows = slice(low, low + chunk)
        log_ws = _log_products(log_w, log_s[rows, None])
        density = factor[rows, None] * np.exp(log_ws - np.exp(log_ws))
        total += (density * _probability_before_full(log_ws, size)).sum(axis=0)
    return total


def _probability_before_full(log_ws: _Array, size: int) -> _Array:
    """Return P( #{m ≠ n : T_m <= s} <= M − 1 ) for each n, given log w_n s of shape (Q, N).

    Clients that are certainly drawn, or certainly not, at all Q times are not treated as coins:
    with very different weights nearly all clients are one or the other. The result for those
    certainly drawn is set to 0, since their densities are 0.
    """
    certain = log_ws.min(axis=0) > _CERTAIN
    never = log_ws.max(axis=0) < _NEVER - np.log(len(certain))
    coins = ~(certain | never)
    result = np.zeros_like(log_ws)
    places = size - np.count_nonzero(certain)
    if places > 0:
        # The last coin never shows heads: it stands for the clients that are never drawn.
        ws = np.pad(np.exp(log_ws[:, coins]), ((0, 0), (0, 1)))
        others = _probability_others_at_most(-np.expm1(-ws), np.exp(-ws), min(places, ws.shape[1]))
        result[:, coins] = others[:, :-1]
        result[:, never] = others[:, -1:]
    return result


def _log_products(log_w: _Array, log_s: _Array | float) -> _Array:
    """Return log(w_n s), cut off where e^{−w_n s} is 0 anyway and w_n s may overflow."""
    return np.minimum(log_w + log_s, 700.0)


def _integration_range(log_w: _Array, size: int) -> tuple[float, float]:
    """Return the log s at which M times T_n <= s are expected, and the end of the range.

    The number of T_n > s has mean ν(s) = Σ e^{−w s}; it is at least k = N − M with probability at
    most exp(k − ν + k log(ν/k)) (Chernoff bound), which is e^{−45} at the end of the range.
    """
    remaining = len(log_w) - size

    def log_mean(log_s: float) -> float:
        exponents = -np.exp(_log_products(log_w, log_s))
        top = float(exponents.max())
        return top + float(np.log(np.exp(exponents - top).sum()))

    def log_tail(log_s: float) -> float:
        log_ratio = min(0.0, log_mean(log_s) - np.log(remaining))
        return float(remaining * (1 - np.exp(log_ratio) + log_ratio)) + 45

    from scipy.optimize import brentq  # slow to import and rarely needed

    # Brackets: ν(s) >= N − N s at `before`, and ν(s) <= N e^{−1000} at `after`.
    before, after = -np.log(len(log_w)) - 1, np.log(1000) - log_w.min()
    middle = brentq(lambda log_s: log_mean(log_s) - np.log(remaining), before, after)
    return middle, brentq(log_tail, middle, after)


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
