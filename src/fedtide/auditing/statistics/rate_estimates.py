"""How often each client takes part, with an interval that knows about dependence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.auditing.statistics.distributions import student_point
from fedtide.auditing.statistics.pattern import Pattern


@dataclass(frozen=True, eq=False)
class Rates:
    """Participation rates.

    Args:
        estimate: k_n / T, shape (N,).
        low: the lower end of the interval, (N,).
        high: the upper end, (N,).
        time: τ_n, how many rounds tell as much as an independent one, (N,).
        freedom: degrees of freedom of Student's t in the intervals, (N,); infinite: normal.
        method: how the intervals were made, in a sentence.
        variation: the coefficient of variation of the rates of those who came.
        half: how many clients make half of all updates.
    """

    estimate: Floats
    low: Floats
    high: Floats
    time: Floats
    freedom: Floats
    method: str
    variation: float
    half: int


def wilson(
    share: ArrayLike, size: ArrayLike, level: float = 0.95, freedom: ArrayLike = np.inf
) -> tuple[Floats, Floats]:
    """Return Wilson's interval of a share of so many independent draws.

        (p̂ + z² / 2n ± z √( p̂ (1 − p̂) / n + z² / 4n² )) / (1 + z² / n)

    Args:
        share: p̂.
        size: n, any positive number.
        level: of confidence.
        freedom: z is the quantile of Student's t with so many degrees of freedom.

    >>> low, high = wilson(0.5, 100)
    >>> float(low.round(3)), float(high.round(3))
    (0.404, 0.596)
    """
    p, n = np.asarray(share, dtype=np.float64), np.asarray(size, dtype=np.float64)
    z2 = student_point((1 - level) / 2, np.maximum(freedom, 1.0)) ** 2
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = np.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n**2))) / (1 + z2 / n)
    return np.clip(middle - half, 0, p), np.clip(middle + half, p, 1)


def estimate_rates(log: ParticipationLog, pattern: Pattern) -> Rates:
    """Return every client's rate with a 95 % interval, by the family of the pattern.

    independent: Wilson's interval for T rounds.
    markov, drifting, undecided: the same for T / τ_n rounds, τ_n = (1 + ρ_n) / (1 − ρ_n) with ρ_n
        the client's own lag-1 correlation (the pooled one where it came or stayed away fewer than
        3 times), mended for bias, and Student's t with 2 n min(p, 1 − p) degrees of freedom.
    cyclic: as independent, around the rate over a whole cycle, with the variance that the cycle
        does not explain.
    regularized: (k ± 1) / T: the count is even but for the ends of the log.
    """
    k, length = log.counts.astype(np.float64), log.length
    estimate = k / length
    time, method = _times(log, pattern)
    freedom = _freedom(estimate, time, pattern, length)
    if pattern.family == "regularized":
        low, high = np.maximum(k - 1, 0) / length, np.minimum(k + 1, length) / length
    else:
        whole = estimate if pattern.profile is None else pattern.profile.rate
        low, high = wilson(whole, length / time, freedom=freedom)
    low, high = np.minimum(low, estimate), np.maximum(high, estimate)
    half = half_of(log.counts)
    return Rates(estimate, low, high, time, freedom, method, _variation(estimate), half)


def half_of(counts: ArrayLike) -> int:
    """Return how many clients, the busiest first, make half of all updates.

    >>> half_of([1, 5, 2, 2])
    1
    """
    sums = np.cumsum(np.sort(np.asarray(counts))[::-1])
    return int(np.searchsorted(sums, sums[-1] / 2)) + 1


def _freedom(estimate: Floats, time: Floats, pattern: Pattern, length: int) -> Floats:
    if pattern.family not in ("markov", "drifting", "undecided"):
        return np.full(len(time), np.inf)
    rarer = np.maximum(np.minimum(estimate, 1 - estimate), 1e-9)
    return np.where(time > 1.0, np.maximum(2 * length / time * rarer, 4.0), np.inf)


def _times(log: ParticipationLog, pattern: Pattern) -> tuple[Floats, str]:
    ones = np.ones(log.size)
    if pattern.family in ("independent", "always"):
        return ones, "Wilson, independent rounds"
    if pattern.family == "regularized":
        return ones, "counts are even up to one round"
    if pattern.profile is not None:
        left = np.maximum(1 - pattern.profile.explained, 1e-9)
        return left, "Wilson, for the variance that the cycle leaves"
    rho = pattern.runs.correlation
    moves = np.minimum(pattern.runs.ones, pattern.runs.length - pattern.runs.ones)
    pooled = pattern.correlation
    common = 0.0 if pooled is None or not len(pooled.short) else float(pooled.short[0])
    rho = np.where(moves < 3, common, rho)
    return (1 + rho) / (1 - rho), "Wilson, for the effective number of rounds T (1 − ρ) / (1 + ρ)"


def _variation(rates: Floats) -> float:
    seen = rates[rates > 0]
    return float(seen.std() / seen.mean())
