"""Probabilities of the usual laws; `scipy.stats` would take longer to import than to use."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Floats = NDArray[np.float64]

_EXACT_VARIANCE = 400.0
"""Up to which variance the hypergeometric law is summed; beyond, it is as good as normal."""


def normal_above(z: ArrayLike) -> Floats:
    """Return P(Z > z) for Z standard normal.

    >>> float(normal_above(1.959964).round(6))
    0.025
    """
    return np.asarray(special.ndtr(-np.asarray(z, dtype=np.float64)))


def normal_point(p: float) -> float:
    """Return the z above which a standard normal lies with probability p.

    >>> round(normal_point(0.025), 6)
    1.959964
    """
    return float(-special.ndtri(p))


def student_above(t: ArrayLike, freedom: ArrayLike) -> Floats:
    """Return P(T > t) for Student's t.

    >>> float(student_above(2.228139, 10).round(6))
    0.025
    """
    return np.asarray(special.stdtr(freedom, -np.asarray(t, dtype=np.float64)))


def student_point(p: float, freedom: ArrayLike) -> Floats:
    """Return the t above which Student's t lies with probability p; freedom may be infinite.

    >>> student_point(0.025, [10, np.inf]).round(6)
    array([2.228139, 1.959964])
    """
    degrees = np.asarray(freedom, dtype=np.float64)
    finite = -special.stdtrit(np.where(np.isfinite(degrees), degrees, 1.0), p)
    return np.where(np.isfinite(degrees), finite, normal_point(p))


def f_above(ratio: float, above: float, below: float) -> float:
    """Return P(F > ratio) for F with so many degrees of freedom above and below the stroke.

    >>> round(f_above(3.325835, 5, 10), 6)
    0.05
    """
    return float(special.fdtrc(above, below, ratio))


def chi2_above(chi2: ArrayLike, freedom: ArrayLike) -> Floats:
    """Return P(X > chi2) for the χ² law.

    >>> float(chi2_above(3.841459, 1).round(6))
    0.05
    """
    return np.asarray(special.chdtrc(freedom, chi2))


def runs_two_sided(found: Floats, ones: Floats, length: int) -> Floats:
    """Return twice the smaller tail of the number of runs of k ones in T places.

    Where every arrangement is as likely,

        P(R = r) = C(k − 1, r − 1) C(T − k + 1, r) / C(T, k)

    The tails are summed where the variance is at most 400, and normal beyond, with half a run of
    correction.

    Args:
        found: r, shape (m,).
        ones: k, (m,), between 2 and T − 1.
        length: T.

    >>> runs_two_sided(np.array([1.0, 2.0]), np.array([2.0, 2.0]), 4).round(3)
    array([1., 1.])
    """
    mean = ones * (length - ones + 1) / length
    variance = mean * (ones - 1) * (length - ones) / (length * max(length - 1, 1))
    distance = np.maximum(np.abs(found - mean) - 0.5, 0)
    tails = normal_above(distance / np.sqrt(np.maximum(variance, 1e-300)))
    exact = np.flatnonzero(variance <= _EXACT_VARIANCE)
    factorials = special.gammaln(np.arange(length + 3.0)) if len(exact) else np.empty(0)
    for part in np.array_split(exact, max(1, len(exact) // 2000)):
        if len(part):
            reach = int(12 * np.sqrt(variance[part].max())) + 20
            tails[part] = _smaller_tail(found[part], ones[part], length, factorials, reach)
    return np.asarray(np.minimum(1.0, 2 * tails))


def _smaller_tail(
    found: Floats, ones: Floats, length: int, factorials: Floats, reach: int
) -> Floats:
    """Return min(P(R <= r), P(R >= r)); terms further out than `reach` weigh nothing."""
    k = ones.astype(np.int64)[:, None]
    r = found.astype(np.int64)[:, None] + np.arange(-reach, reach + 1)
    inside = (r >= 1) & (r <= np.minimum(k, length - k + 1))
    r = np.where(inside, r, 1)

    def log_choose(n: NDArray[np.int64], m: NDArray[np.int64]) -> Floats:
        return np.asarray(factorials[n + 1] - factorials[m + 1] - factorials[n - m + 1])

    log_law = log_choose(k - 1, r - 1) + log_choose(length - k + 1, r)
    log_law -= log_choose(np.full_like(k, length), k)
    law = np.where(inside, np.exp(log_law), 0.0)
    below, above = law[:, : reach + 1].sum(axis=1), law[:, reach:].sum(axis=1)
    return np.asarray(np.minimum(below, above))
