"""An interval for Σ |δ_n| from noisy estimates of the δ_n."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import special

from fedtide.audit.attendance import Floats
from fedtide.audit.laws import normal_above

_FAR = 4.0
"""A client of so many standard errors counts as far from its share, and has no bias."""
_SURE = 2.326
"""How many of its own standard errors the spread of the near ones is lowered."""

Variance = Callable[[Floats], Floats]
"""From slopes ψ, shape (N, 2), to the variance of Σ ψ_n δ̂_n, shape (2,)."""


def skew_interval(gaps: Floats, errors: Floats, variance: Variance) -> tuple[float, float]:
    """Return a 95 % interval of Σ |δ_n|, between 0 and 2.

    Noise makes absolute values too large, by B = Σ_n E|δ̂_n| − |δ_n|: by nothing where |δ_n| is far
    above its error s_n, by s_n √(2/π) where it is 0. For the clients within 4 errors, with
    z_n = δ̂_n / s_n, take δ_n / s_n ~ N(0, τ²), so that

        B = Σ s_n √(2/π) (√(1 + τ²) − τ)

    and the smallest τ that their Σ z² allows at the level 0.01: 0, the most bias, where they may
    all have their share. The interval is from

        Σ|δ̂_n| − B − c σ_low   to   Σ|δ̂_n| + c σ_high,     c between 1.751 and 2.054

    and covers 95 % with the bias B as well as with none (Imbens and Manski 2004; 1 % is added,
    because a sum of absolute values is skewed). About δ_n,

        |δ_n + e| = mean + (2 Φ(δ_n / s_n) − 1) e + rest

    so σ² is the bootstrap's variance of Σ (2 Φ − 1) e_n, which keeps the rounds' dependence, and
    the sum of the rests' variances. At δ_n = 0 there is nothing but the rest.

    Args:
        gaps: δ̂_n, shape (N,).
        errors: s_n, (N,).
        variance: of sums of the δ̂_n, by a bootstrap of the rounds.
    """
    near = np.abs(gaps) < _FAR * errors
    spread = _least_spread(gaps[near] / errors[near])
    likely = np.where(near, gaps * spread**2 / (1 + spread**2), gaps)
    slopes = np.stack([_slope(likely, errors), _slope(gaps, errors)], axis=1)
    linear = variance(slopes)
    rests = [_rest(likely, errors), _rest(gaps, errors)]
    low_noise, high_noise = np.sqrt(linear + np.array(rests))
    most = float(errors[near].sum()) * np.sqrt(2 / np.pi) * (np.hypot(1, spread) - spread)
    factor = _factor(most / max(low_noise, high_noise, 1e-300))
    skew = float(np.abs(gaps).sum())
    low = max(0.0, skew - most - factor * float(low_noise))
    return low, min(2.0, skew + factor * float(high_noise))


def _least_spread(ratios: Floats) -> float:
    """Return the smallest τ with which z ~ N(0, 1 + τ²), cut off at 4, may have this Σ z².

    >>> _least_spread(np.array([0.3, -1.2, 0.5, 1.4])), round(_least_spread(np.full(50, 1.5)), 2)
    (0.0, 0.76)
    """
    if len(ratios) < 2:
        return 0.0
    found = float((ratios**2).mean())
    low, high = 0.0, 8.0
    for _ in range(40):
        middle = (low + high) / 2
        mean, deviation = _cut_moments(1 + middle**2)
        within = mean + _SURE * deviation / np.sqrt(len(ratios)) >= found
        low, high = (low, middle) if within else (middle, high)
    return 0.0 if high < 1e-6 else high


def _cut_moments(variance: float) -> tuple[float, float]:
    """Return the mean and standard deviation of z² for a centred normal z within ±4."""
    a = _FAR / np.sqrt(variance)
    share = 2 * float(np.exp(-(a**2) / 2) / np.sqrt(2 * np.pi) / (2 * special.ndtr(a) - 1))
    mean = variance * (1 - a * share)
    fourth = variance**2 * (3 - (a**3 + 3 * a) * share)
    return mean, float(np.sqrt(fourth - mean**2))


def _factor(width: float) -> float:
    """Return c with Φ(c + width) − Φ(−c) = 0.96.

    >>> round(_factor(0.0), 3), round(_factor(9.0), 3)
    (2.054, 1.751)
    """
    low, high = 1.7, 2.1
    for _ in range(40):
        middle = (low + high) / 2
        covered = 1 - float(normal_above(middle + width)) - float(normal_above(middle))
        low, high = (middle, high) if covered < 0.96 else (low, middle)
    return high


def _slope(center: Floats, error: Floats) -> Floats:
    """Return 2 Φ(δ / s) − 1."""
    ratio = np.divide(center, error, out=np.sign(center) * 40.0, where=error > 0)
    return np.asarray(2 * special.ndtr(ratio) - 1)


def _folded(center: Floats, error: Floats) -> Floats:
    """Return E|X| for X normal with this centre and standard deviation."""
    ratio = np.divide(center, error, out=np.zeros_like(center), where=error > 0)
    density = np.exp(-(ratio**2) / 2) / np.sqrt(2 * np.pi)
    folded = 2 * error * density + center * (2 * special.ndtr(ratio) - 1)
    return np.where(error > 0, folded, np.abs(center))


def _rest(center: Floats, error: Floats) -> float:
    """Return the variance of Σ |δ_n + e_n| that is not linear in the e_n."""
    squares = error**2 + center**2 - _folded(center, error) ** 2
    rest = squares - (_slope(center, error) * error) ** 2
    return float(np.maximum(rest, 0).sum())
