"""Exact inclusion probabilities of successive sampling."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtide.validation import require_nonnegative

_Array = NDArray[np.float64]
_MAX_TABLE = 4_000_000
"""The largest size of a dynamic-programming table, in numbers (32 MB)."""


def inclusion_probabilities(weights: ArrayLike, size: int) -> NDArray[np.float64]:
    """Return P(n ∈ S) of a successive sample of `size` clients, shape (N,).

    With a time T_n ~ Exp(w_n) for each client, the M smallest are a successive sample, so

        P(n ∈ S) = ∫ w_n e^{−w_n s} P( #{m ≠ n : T_m <= s} <= M − 1 ) ds.

    The inner probability is that of a sum of independent coins, computed for each s by dynamic
    programming; the integral by the double-exponential trapezoid rule, whose nodes are doubled
    until no result changes by more than 1e-12. Costs O(N M) for each of about a hundred nodes.

    Args:
        weights: w_n >= 0, shape (N,); at least `size` of them positive.
        size: M.

    >>> inclusion_probabilities([1.0, 2.0], 1).round(6)
    array([0.333333, 0.666667])
    """
    w = require_nonnegative("weights", weights)
    present = w > 0
    result = np.zeros(len(w))
    result[present] = _integrate_positive(w[present] / w.max(), size)
    return result


def _integrate_positive(w: _Array, size: int) -> _Array:
    if len(w) <= size:
        return np.ones(len(w))
    nodes, last = 64, np.full(len(w), np.inf)
    while True:
        estimate = _integrate(w, size, nodes)
        if np.abs(estimate - last).max() < 1e-12 or nodes >= 8192:
            return estimate
        nodes, last = 2 * nodes, estimate


def _integrate(w: _Array, size: int, nodes: int) -> _Array:
    """Return the integral with s = c exp(v − e^{−v}), trapezoid rule in v."""
    scale, end = _integration_range(w, size)
    v, step = np.linspace(-3.75, max(1.0, end + 1), nodes, retstep=True)
    s = np.exp(scale + v - np.exp(-v))
    factor = step * s * (1 + np.exp(-v))
    total = np.zeros(len(w))
    chunk = max(1, _MAX_TABLE // (len(w) * size))
    for low in range(0, nodes, chunk):
        waiting = np.exp(-np.outer(s[low : low + chunk], w))
        density = factor[low : low + chunk, None] * w * waiting
        total += (density * _probability_others_at_most(1 - waiting, size)).sum(axis=0)
    return total


def _integration_range(w: _Array, size: int) -> tuple[float, float]:
    """Return log s at which M times T_n <= s are expected, and the distance to the range's end.

    The number of T_n > s has mean ν(s) = Σ e^{−w s}; it is at least k = N − M with probability at
    most exp(k − ν + k log(ν/k)) (Chernoff bound), which is e^{−45} at the end of the range.
    """
    remaining = len(w) - size

    def log_mean(log_s: float) -> float:
        exponents = -w * np.exp(log_s)
        top = float(exponents.max())
        return top + float(np.log(np.exp(exponents - top).sum()))

    def log_tail(log_s: float) -> float:
        log_ratio = min(0.0, log_mean(log_s) - np.log(remaining))
        return float(remaining * (1 - np.exp(log_ratio) + log_ratio)) + 45

    from scipy.optimize import brentq  # slow to import and rarely needed

    middle = brentq(lambda log_s: log_mean(log_s) - np.log(remaining), -50.0, 700.0)
    return middle, brentq(log_tail, middle, 700.0) - middle


def _probability_others_at_most(heads: _Array, size: int) -> _Array:
    """Return P(heads among all coins but n <= size − 1) for each n, shape (Q, N).

    Args:
        heads: the probability of heads of each coin, (Q, N).
        size: M.
    """
    rows, coins = heads.shape
    before = np.zeros((coins, rows, size))
    before[0, :, 0] = 1
    for n in range(coins - 1):
        before[n + 1] = _add_coin(before[n], heads[:, n])
    after = np.ones((rows, size))
    result = np.empty_like(heads)
    for n in reversed(range(coins)):
        result[:, n] = (before[n] * after[:, ::-1]).sum(axis=1)
        after = _add_coin(after, heads[:, n])
    return result


def _add_coin(table: _Array, heads: _Array) -> _Array:
    """Return the distribution over 0..M−1 heads (or its cumulative sums) after one more coin."""
    added = table * (1 - heads[:, None])
    added[:, 1:] += table[:, :-1] * heads[:, None]
    return added
