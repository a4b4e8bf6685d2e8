"""An interval for Σ |δ_n| from noisy estimates of the δ_n."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import special

from fedtide.audit.attendance import Floats
from fedtide.audit.laws import normal_above

_FAR = 3.0
"""A client may in truth be this many standard errors nearer to its share than it seems."""

Variance = Callable[[Floats], Floats]
"""From slopes ψ, shape (N, 2), to the variance of Σ ψ_n δ̂_n, shape (2,)."""


def skew_interval(gaps: Floats, errors: Floats, variance: Variance) -> tuple[float, float]:
    """Return a 95 % interval of Σ |δ_n|, between 0 and 2.

    Noise makes absolute values too large, by B = Σ_n E|δ̂_n| − |δ_n|. B hangs on how many of the δ_n
    are 0, which no estimate from few rounds can tell, so it is bounded:

        most:   δ_n = 0 wherever |δ̂_n| is below 3 standard errors, else 3 of them nearer to 0
        least:  0, as where no δ_n is near 0

    The interval is from Σ|δ̂_n| − B_most − c σ_most to Σ|δ̂_n| + c σ_least, with the c between 1.645
    and 1.960 that covers 95 % at either bound (Imbens and Manski 2004). About δ_n,

        |δ_n + e| = mean + (2 Φ(δ_n / s_n) − 1) e + rest

    so σ² is the bootstrap's variance of Σ (2 Φ − 1) e_n, which keeps the rounds' dependence, and
    the sum of the rests' variances. At δ_n = 0 there is nothing but the rest.

    Args:
        gaps: δ̂_n, shape (N,).
        errors: s_n, (N,).
        variance: of sums of the δ̂_n, by a bootstrap of the rounds.
    """
    near = np.sign(gaps) * np.maximum(np.abs(gaps) - _FAR * errors, 0)
    slopes = np.stack([_slope(near, errors), _slope(gaps, errors)], axis=1)
    linear = variance(slopes)
    rests = [_rest(near, errors), _rest(gaps, errors)]
    low_noise, high_noise = np.sqrt(linear + np.array(rests))
    most = float((_folded(near, errors) - np.abs(near)).sum())
    factor = _factor(most / max(low_noise, high_noise, 1e-300))
    skew = float(np.abs(gaps).sum())
    low = max(0.0, skew - most - factor * float(low_noise))
    return low, min(2.0, skew + factor * float(high_noise))


def _factor(width: float) -> float:
    """Return c with Φ(c + width) − Φ(−c) = 0.95.

    >>> round(_factor(0.0), 3), round(_factor(9.0), 3)
    (1.96, 1.645)
    """
    low, high = 1.6, 2.0
    for _ in range(40):
        middle = (low + high) / 2
        covered = 1 - float(normal_above(middle + width)) - float(normal_above(middle))
        low, high = (middle, high) if covered < 0.95 else (low, middle)
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
