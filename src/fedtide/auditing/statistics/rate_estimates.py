"""Participation rates with confidence intervals that account for dependence between rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.auditing.statistics.distributions import student_t_isf
from fedtide.auditing.statistics.pattern import Pattern


@dataclass(frozen=True, eq=False)
class RateEstimates:
    """Participation rates.

    Args:
        estimate: k_n / T, shape (N,).
        low: lower end of the 95% interval, (N,).
        high: upper end, (N,).
        autocorrelation_time: integrated autocorrelation time τ_n, in rounds, (N,).
        freedom: degrees of freedom of Student's t in the intervals, (N,); infinite: normal.
        method: of the intervals, in words.
        variation: coefficient of variation of the rates of clients that took part.
        clients_for_half: the smallest number of clients that made half of all updates.
    """

    estimate: Floats
    low: Floats
    high: Floats
    autocorrelation_time: Floats
    freedom: Floats
    method: str
    variation: float
    clients_for_half: int


def wilson_interval(
    share: ArrayLike, draws: ArrayLike, level: float = 0.95, freedom: ArrayLike = np.inf
) -> tuple[Floats, Floats]:
    """Return Wilson's confidence interval of a proportion.

        (p̂ + z² / 2n ± z √( p̂ (1 − p̂) / n + z² / 4n² )) / (1 + z² / n)

    Args:
        share: p̂.
        draws: n independent draws, any positive number.
        level: of confidence.
        freedom: z is the quantile of Student's t with these degrees of freedom.

    >>> low, high = wilson_interval(0.5, 100)
    >>> float(low.round(3)), float(high.round(3))
    (0.404, 0.596)
    """
    p, n = np.asarray(share, dtype=np.float64), np.asarray(draws, dtype=np.float64)
    z2 = student_t_isf((1 - level) / 2, np.maximum(freedom, 1.0)) ** 2
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = np.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n**2))) / (1 + z2 / n)
    return np.clip(middle - half, 0, p), np.clip(middle + half, p, 1)


def estimate_rates(log: ParticipationLog, pattern: Pattern) -> RateEstimates:
    """Return every client's rate with a 95% interval, by the family of the pattern.

    independent: Wilson's interval for T rounds.
    markov, drifting, undecided: the same for T / τ_n rounds, τ_n = (1 + ρ_n) / (1 − ρ_n) with ρ_n
        the client's own lag-1 correlation, corrected for bias (the pooled one for clients present
        or absent fewer than 3 times), and Student's t with 2 n min(p, 1 − p) degrees of freedom.
    cyclic: as independent, around the rate over whole cycles, with the variance that the cycle does
        not explain.
    regularized: (k ± 1) / T: the count is even up to the ends of the log.
    """
    k, length = log.counts.astype(np.float64), log.length
    estimate = k / length
    times, method = _estimate_times(log, pattern)
    freedom = _degrees_of_freedom(estimate, times, pattern, length)
    if pattern.family == "regularized":
        low, high = np.maximum(k - 1, 0) / length, np.minimum(k + 1, length) / length
    else:
        center = estimate if pattern.profile is None else pattern.profile.rate
        low, high = wilson_interval(center, length / times, freedom=freedom)
    seen = estimate[estimate > 0]
    return RateEstimates(
        estimate=estimate,
        low=np.minimum(low, estimate),
        high=np.maximum(high, estimate),
        autocorrelation_time=times,
        freedom=freedom,
        method=method,
        variation=float(seen.std() / seen.mean()),
        clients_for_half=count_clients_for_half(log.counts),
    )


def count_clients_for_half(counts: ArrayLike) -> int:
    """Return the smallest number of clients that made half of all updates.

    >>> count_clients_for_half([1, 5, 2, 2])
    1
    """
    sums = np.cumsum(np.sort(np.asarray(counts))[::-1])
    return int(np.searchsorted(sums, sums[-1] / 2)) + 1


def _degrees_of_freedom(estimate: Floats, times: Floats, pattern: Pattern, length: int) -> Floats:
    if pattern.family not in ("markov", "drifting", "undecided"):
        return np.full(len(times), np.inf)
    rarer = np.maximum(np.minimum(estimate, 1 - estimate), 1e-9)
    return np.where(times > 1.0, np.maximum(2 * length / times * rarer, 4.0), np.inf)


def _estimate_times(log: ParticipationLog, pattern: Pattern) -> tuple[Floats, str]:
    """Return τ_n and, in words, the method of the intervals."""
    ones = np.ones(log.size)
    if pattern.family in ("independent", "always"):
        return ones, "Wilson, independent rounds"
    if pattern.family == "regularized":
        return ones, "counts are exact up to one round"
    if pattern.profile is not None:
        unexplained = np.maximum(1 - pattern.profile.explained, 1e-9)
        return unexplained, "Wilson, with the variance that the cycle does not explain"
    runs, pooled = pattern.run_counts, pattern.correlation
    rarer = np.minimum(runs.ones, runs.length - runs.ones)
    common = 0.0 if pooled is None or not len(pooled.significant) else float(pooled.significant[0])
    rho = np.where(rarer < 3, common, runs.correlation)
    return (1 + rho) / (1 - rho), "Wilson, for the effective number of rounds T (1 − ρ) / (1 + ρ)"
