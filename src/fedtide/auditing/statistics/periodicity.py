"""Does participation repeat, and after how many rounds?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtide.auditing.log.participation_log import Floats
from fedtide.auditing.statistics.autocorrelation import Correlation
from fedtide.auditing.statistics.distributions import normal_above

_MOST = 5000
"""The longest period that is looked for."""


@dataclass(frozen=True)
class Period:
    """A candidate for the period.

    Args:
        rounds: c.
        strength: the mean of R over the multiples of c: 1 for a strict cycle.
        rise: how far these stand above the lags half-way between them.
        p_value: of the weaker of the two, for all candidates together.
    """

    rounds: int
    strength: float
    rise: float
    p_value: float


def find_period(correlation: Correlation) -> Period | None:
    """Return the best candidate for the period, from 2 to T / 2 rounds.

    With weights T − j c over the multiples j c < T, it maximises the smaller of

        C(c) = mean of R(j c)    and    D(c) = mean of R(j c) − (R((j − ½) c) + R((j + ½) c)) / 2

    over their standard deviations where nothing repeats. A correlation that only dies out has
    D <= 0, because it is convex; one that is negative at short lags, as where everybody comes once
    before anyone returns, has C <= 0. What repeats after c repeats after 2 c as well: the smallest
    divisor that is as strong is taken.
    """
    most = min(correlation.length // 2, _MOST)
    if most < 2:
        return None
    candidates = np.arange(2, most + 1)
    strength, rise, noise = np.array([_score(correlation, int(c)) for c in candidates]).T
    weaker = np.minimum(strength, rise / np.sqrt(1.5))
    best = _smallest(strength, rise, noise)
    p = min(1.0, len(candidates) * float(normal_above(weaker[best] / noise[best])))
    return Period(int(candidates[best]), float(strength[best]), float(rise[best]), p)


def _smallest(strength: Floats, rise: Floats, noise: Floats) -> int:
    """Return the place of the best, or of the shortest period of which it is a multiple."""
    best = int(np.argmax(np.minimum(strength, rise)))
    period = best + 2
    enough = 0.97 * strength[best] - 3 * noise[best]
    for divisor in range(period // 2, 1, -1):
        near = np.arange(max(period // divisor - 1, 2), period // divisor + 3) - 2
        near = near[near < len(strength)]
        found = int(near[np.argmax(strength[near])])
        if strength[found] >= enough:
            return found
    near = np.arange(max(best - 2, 0), min(best + 3, len(strength)))
    return int(near[np.argmax((strength + rise)[near])])


def _score(correlation: Correlation, c: int) -> tuple[float, float, float]:
    """Return C(c), D(c), and the standard deviation of C(c) where nothing repeats."""
    length, r = correlation.length, correlation.values
    lags = np.arange(c, length, c)
    weights = (length - lags).astype(np.float64)
    strength = float(weights @ r[lags] / weights.sum())
    inner = lags[lags + (c + 1) // 2 < length]
    noise = float(np.sqrt(correlation.spread / (correlation.clients * weights.sum())))
    if len(inner) == 0:
        return strength, -1.0, noise
    between = _between(r, inner - c / 2) + _between(r, inner + c / 2)
    inner_weights = weights[: len(inner)]
    rise = float(inner_weights @ (r[inner] - between / 2) / inner_weights.sum())
    return strength, rise, noise


def _between(r: Floats, lags: NDArray[np.floating]) -> Floats:
    """Return R at these lags, half-way between two where they are no whole numbers."""
    low = np.floor(lags).astype(np.int64)
    high = np.minimum(np.ceil(lags).astype(np.int64), len(r) - 1)
    return np.asarray((r[low] + r[high]) / 2)
