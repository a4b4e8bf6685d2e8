"""Tail probabilities of standard distributions, without the slow import of `scipy.stats`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from fedtide.auditing.log.participation_log import Floats


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
