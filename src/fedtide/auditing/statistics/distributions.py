"""Tail probabilities of standard distributions, without the slow import of `scipy.stats`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from fedtide.auditing.log.participation_log import Floats

_EXACT_VARIANCE = 400.0
"""Above this variance, the hypergeometric tail is replaced by a normal one."""


def normal_sf(z: ArrayLike) -> Floats:
    """Return P(Z > z) for Z standard normal.

    >>> float(normal_sf(1.959964).round(6))
    0.025
    """
    return np.asarray(special.ndtr(-np.asarray(z, dtype=np.float64)))


def normal_two_sided(z: float) -> float:
    """Return P(|Z| > |z|) for Z standard normal.

    >>> round(normal_two_sided(-1.959964), 6)
    0.05
    """
    return float(2 * normal_sf(abs(z)))


def normal_isf(p: float) -> float:
    """Return the z with P(Z > z) = p for Z standard normal.

    >>> round(normal_isf(0.025), 6)
    1.959964
    """
    return float(-special.ndtri(p))


def student_t_sf(t: ArrayLike, freedom: ArrayLike) -> Floats:
    """Return P(T > t) for Student's t.

    >>> float(student_t_sf(2.228139, 10).round(6))
    0.025
    """
    return np.asarray(special.stdtr(freedom, -np.asarray(t, dtype=np.float64)))


def student_t_isf(p: float, freedom: ArrayLike) -> Floats:
    """Return the t with P(T > t) = p for Student's t; infinite degrees of freedom are normal.

    >>> student_t_isf(0.025, [10, np.inf]).round(6)
    array([2.228139, 1.959964])
    """
    degrees = np.asarray(freedom, dtype=np.float64)
    finite = -special.stdtrit(np.where(np.isfinite(degrees), degrees, 1.0), p)
    return np.where(np.isfinite(degrees), finite, normal_isf(p))


def chi2_sf(chi2: ArrayLike, freedom: ArrayLike) -> Floats:
    """Return P(X > chi2) for the χ² distribution.

    >>> float(chi2_sf(3.841459, 1).round(6))
    0.05
    """
    return np.asarray(special.chdtrc(freedom, chi2))


def runs_p_value(runs: Floats, ones: Floats, length: int) -> Floats:
    """Return the two-sided p-value of the number of runs of k ones among T positions.

    If all arrangements are equally likely,

        P(R = r) = C(k − 1, r − 1) C(T − k + 1, r) / C(T, k)

    The p-value is twice the smaller tail: summed where the variance is at most 400, and normal with
    continuity correction above.

    Args:
        runs: r, shape (m,).
        ones: k, (m,), between 2 and T − 1.
        length: T.

    >>> runs_p_value(np.array([1.0, 2.0]), np.array([2.0, 2.0]), 4).round(3)
    array([1., 1.])
    """
    mean, variance = runs_moments(ones, length)
    distance = np.maximum(np.abs(runs - mean) - 0.5, 0)
    tails = normal_sf(distance / np.sqrt(np.maximum(variance, 1e-300)))
    exact = np.flatnonzero(variance <= _EXACT_VARIANCE)
    log_factorials = special.gammaln(np.arange(length + 3.0)) if len(exact) else np.empty(0)
    for part in np.array_split(exact, max(1, len(exact) // 2000)):
        if len(part):
            reach = int(12 * np.sqrt(variance[part].max())) + 20
            tails[part] = _smaller_tail(runs[part], ones[part], length, log_factorials, reach)
    return np.asarray(np.minimum(1.0, 2 * tails))


def runs_moments(ones: Floats, length: int) -> tuple[Floats, Floats]:
    """Return the mean and variance of the number of runs of k ones among T positions."""
    mean = ones * (length - ones + 1) / length
    return mean, mean * (ones - 1) * (length - ones) / (length * max(length - 1, 1))


def _smaller_tail(
    runs: Floats, ones: Floats, length: int, log_factorials: Floats, reach: int
) -> Floats:
    """Return min(P(R <= r), P(R >= r)); terms further than `reach` from r are negligible."""
    k = ones.astype(np.int64)[:, None]
    r = runs.astype(np.int64)[:, None] + np.arange(-reach, reach + 1)
    inside = (r >= 1) & (r <= np.minimum(k, length - k + 1))
    r = np.where(inside, r, 1)

    def log_choose(n: NDArray[np.int64], m: NDArray[np.int64]) -> Floats:
        return np.asarray(log_factorials[n + 1] - log_factorials[m + 1] - log_factorials[n - m + 1])

    log_p = log_choose(k - 1, r - 1) + log_choose(length - k + 1, r)
    log_p -= log_choose(np.full_like(k, length), k)
    p = np.where(inside, np.exp(log_p), 0.0)
    below, above = p[:, : reach + 1].sum(axis=1), p[:, reach:].sum(axis=1)
    return np.asarray(np.minimum(below, above))
