"""A test for a cycle of participation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtide.auditing.log.participation_log import Floats
from fedtide.auditing.statistics.autocorrelation import Autocorrelation
from fedtide.auditing.statistics.distributions import normal_sf

_MAX_PERIOD = 5000
_LEVEL = 0.0002
"""The level of the test, whose noise is not quite normal."""
_PARTS, _SHIFT_BITS = 6, 18
"""The phase test (`_test_phase`) shifts 6 parts; for cycles shorter than 8 rounds, as many as give
2^18 shifts."""
_SHIFTS = 9999
"""Random shifts in the phase test."""


@dataclass(frozen=True)
class PeriodCandidate:
    """A candidate for the period.

    Args:
        rounds: c.
        strength: the mean of R over the multiples of c: 1 for a strict cycle.
        persistence: C(c), relative to the highest R after R has first been negative: 1 for a cycle,
            less if similar times between returns make the phase fade.
        p_value: the largest of three: of the strength and of the excess of R over the lags half-way
            between, both for all candidates together (Bonferroni), and of the phase test.
    """

    rounds: int
    strength: float
    persistence: float
    p_value: float

    @property
    def found(self) -> bool:
        """Whether participation has this cycle."""
        return self.p_value < _LEVEL and self.strength > 0.005 and self.persistence > 0.5


def find_period(correlation: Autocorrelation) -> PeriodCandidate | None:
    """Return the best candidate for the period, from 2 to T / 3 rounds; None in shorter logs.

    With weights T − j c over the multiples j c < T, it maximises the smaller of

        C(c) = mean of R(j c)    and    D(c) = mean of R(j c) − (R((j − ½) c) + R((j + ½) c)) / 2

    relative to their standard deviations without periodicity. A correlation that only decays has
    D <= 0, because it is convex; one that is negative at short lags, as in permutations, has
    C <= 0. A period c implies the period 2 c: the smallest divisor of equal strength is returned.

    Cool-downs and queues return clients after similar times, too, but lose their phase: whether
    the correlation at long lags sticks to the multiples of c is tested as well (`_test_phase`).
    """
    most = min(correlation.length // 3, _MAX_PERIOD)
    if most < 2:
        return None
    candidates = np.arange(2, most + 1)
    strength, rise, noise = np.array([_score(correlation, int(c)) for c in candidates]).T
    weaker = np.minimum(strength, rise / np.sqrt(1.5))
    best = _select_shortest(strength, rise, noise)
    p = min(1.0, len(candidates) * float(normal_sf(weaker[best] / noise[best])))
    if p < 0.01:
        p = max(p, _test_phase(correlation.values, int(candidates[best])))
    persistence = float(strength[best]) / _highest_return(correlation)
    return PeriodCandidate(int(candidates[best]), float(strength[best]), persistence, p)


def _select_shortest(strength: Floats, rise: Floats, noise: Floats) -> int:
    """Return the index of the best candidate, or of its smallest divisor of equal strength."""
    best = int(np.argmax(np.minimum(strength, rise)))
    period = best + 2
    enough = 0.97 * strength[best] - 3 * noise[best]
    for divisor in range(period // 2, 1, -1):
        near = np.arange(max(period // divisor - 1, 2), period // divisor + 3) - 2
        near = near[near < len(strength)]
        found = int(near[np.argmax((strength + rise)[near])])
        if strength[found] >= enough:
            return found
    near = np.arange(max(best - 2, 0), min(best + 3, len(strength)))
    return int(near[np.argmax((strength + rise)[near])])


def _score(correlation: Autocorrelation, c: int) -> tuple[float, float, float]:
    """Return C(c), D(c), and the standard deviation of C(c) without periodicity."""
    length, r = correlation.length, correlation.values
    lags = np.arange(c, length, c)
    weights = (length - lags).astype(np.float64)
    strength = float(weights @ r[lags] / weights.sum())
    inner = lags[lags + (c + 1) // 2 < length]
    pairs = correlation.slow_clients * weights.sum()
    noise = float(np.sqrt(correlation.bartlett_factor / pairs))
    if len(inner) == 0:
        return strength, -1.0, noise
    between = _interpolate(r, inner - c / 2) + _interpolate(r, inner + c / 2)
    inner_weights = weights[: len(inner)]
    rise = float(inner_weights @ (r[inner] - between / 2) / inner_weights.sum())
    return strength, rise, noise


def _highest_return(correlation: Autocorrelation) -> float:
    """Return the largest R(ℓ) less three standard deviations, once R has been negative."""
    lags = np.arange(1, correlation.length // 2 + 1)
    r = correlation.values[lags]
    negative = np.flatnonzero(r < 0)
    start = min(int(negative[0]) if len(negative) else len(r), len(r) // 2)
    heights = r[start:] - 3 * correlation.standard_error(lags[start:])
    return max(float(heights.max()), 1e-9)


def _test_phase(r: Floats, c: int) -> float:
    """Return the p-value of the mean of R over the multiples of c beyond T / 4.

    The lags from T / 4 are cut into parts of T / 8 or c rounds (less for c < 8, to T / 24). If no
    cycle keeps its phase that long, a random shift of each part changes nothing in distribution,
    whatever the dependence between clients; it destroys the agreement of a cycle.
    """
    length, parts = len(r), max(_PARTS, math.ceil(_SHIFT_BITS / math.log2(c)))
    lags = np.arange(c * max(1, -(-length // (4 * c))), length, c)
    weights = (length - lags).astype(np.float64)
    part = (lags - lags[0]) // max(c, 3 * length // (4 * parts))
    moved = lags[:, None] + np.arange(c) - c // 2
    moved = np.where(moved < length, moved, moved - c)
    sums = np.zeros((int(part[-1]) + 1, c))  # of each part under each shift
    np.add.at(sums, part, r[moved] * weights[:, None])
    shifts = np.random.default_rng(0).integers(c, size=(_SHIFTS, len(sums)))
    shifts = shifts[(shifts != c // 2).any(axis=1)]  # a shift by 0 is what was observed
    shifted = sums[np.arange(len(sums)), shifts].sum(axis=1)
    exceeding = int((shifted >= float(r[lags] @ weights) - 1e-9).sum())
    return (1 + exceeding) / (1 + len(shifts))


def _interpolate(r: Floats, lags: NDArray[np.floating]) -> Floats:
    """Return R at these lags, averaging the two neighbours of a half-integer lag."""
    low = np.floor(lags).astype(np.int64)
    high = np.minimum(np.ceil(lags).astype(np.int64), len(r) - 1)
    return np.asarray((r[low] + r[high]) / 2)
