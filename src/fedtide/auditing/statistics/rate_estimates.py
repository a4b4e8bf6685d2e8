"""Participation rates with confidence intervals that account for dependence between rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.auditing.statistics.dispersion import Dispersion, estimate_dispersion
from fedtide.auditing.statistics.distributions import student_t_isf
from fedtide.auditing.statistics.pattern import MIN_ROUNDS, Pattern
from fedtide.auditing.statistics.session_tails import measure_session_tail

_LONG_MEMORY = 0.5
"""The probability of long memory above which there are no intervals."""
_MIN_DISPERSION = 1e-9
_MIN_EFFECTIVE_ROUNDS = 30
"""There are no intervals for logs with fewer effective rounds than this, due to dependence."""


@dataclass(frozen=True, eq=False)
class RateEstimates:
    """Participation rates.

    Args:
        estimate: k_n / T, shape (N,).
        low: lower end of the 95% interval, (N,).
        high: upper end, (N,).
        dispersion: of the clients' presence.
        reason: why the log allows no honest intervals, in a sentence; None: it does.
        variation: coefficient of variation of the rates of clients that took part.
        clients_for_half: the smallest number of clients that made half of all updates.
    """

    estimate: Floats
    low: Floats
    high: Floats
    dispersion: Dispersion
    reason: str | None
    variation: float
    clients_for_half: int

    @property
    def autocorrelation_time(self) -> Floats:
        """How many rounds count as one independent round, (N,): the dispersion, at least 0.001."""
        return np.maximum(self.dispersion.values, 1e-3)

    @property
    def freedom(self) -> Floats:
        """The degrees of freedom of Student's t in the intervals, (N,)."""
        return self.dispersion.freedom

    @property
    def intervals(self) -> bool:
        """Whether the log allows honest intervals of rates, weights and skews; if not, NaN."""
        return self.reason is None


def wilson_interval(
    share: ArrayLike, draws: ArrayLike, freedom: ArrayLike = np.inf
) -> tuple[Floats, Floats]:
    """Return Wilson's 95% interval of a proportion.

        (p̂ + z² / 2n ± z √( p̂ (1 − p̂) / n + z² / 4n² )) / (1 + z² / n)

    Args:
        share: p̂.
        draws: n independent draws, any positive number.
        freedom: z is the quantile of Student's t with these degrees of freedom.

    >>> low, high = wilson_interval(0.5, 100)
    >>> float(low.round(3)), float(high.round(3))
    (0.404, 0.596)
    """
    p, n = np.asarray(share, dtype=np.float64), np.asarray(draws, dtype=np.float64)
    z2 = student_t_isf(0.025, np.maximum(freedom, 1.0)) ** 2
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = np.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n**2))) / (1 + z2 / n)
    return np.clip(middle - half, 0, p), np.clip(middle + half, p, 1)


def estimate_rates(log: ParticipationLog, pattern: Pattern) -> RateEstimates:
    """Return every client's rate with a 95% interval.

    The interval is Wilson's for T / D_n rounds, with D_n the dispersion of the client's presence
    and the quantile of Student's t. It needs no model of the dependence between rounds: strict
    cycles and turns have D_n near 0, sessions D_n > 1. In a cyclic log it is that of whole cycles.

    Args:
        log: the participation log.
        pattern: its period and its runs are used.
    """
    length = log.length
    estimate = log.counts / length
    spread = estimate * (1 - estimate)
    dispersion = estimate_dispersion(
        log, None, estimate, spread, pattern.run_counts, pattern.period
    )
    reason = _find_obstacle(log, pattern, dispersion)
    if reason is None:
        draws = dispersion.rounds / np.maximum(dispersion.values, _MIN_DISPERSION)
        low, high = wilson_interval(dispersion.means, draws, freedom=dispersion.freedom)
    else:
        low = high = np.full(log.size, np.nan)
    seen = estimate[estimate > 0]
    return RateEstimates(
        estimate=estimate,
        low=np.minimum(low, estimate),
        high=np.maximum(high, estimate),
        dispersion=dispersion,
        reason=reason,
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


def _find_obstacle(log: ParticipationLog, pattern: Pattern, dispersion: Dispersion) -> str | None:
    """Return why no honest interval exists, in a sentence; None if one does."""
    if log.length < MIN_ROUNDS or dispersion.frequencies == 0:
        return "the log has too few rounds to tell how much the rates vary by chance"
    if dispersion.long_memory > _LONG_MEMORY:
        return (
            "rates change, or clients stay or are away for so long that a log of this length "
            "cannot tell how much the rates vary by chance"
        )
    rounds = _count_effective_rounds(log, pattern, dispersion)
    if rounds < _MIN_EFFECTIVE_ROUNDS <= _count_effective_rounds(log, pattern, None):
        return (
            "most of the chance in the rates is due to clients that stay or are away for long, and "
            f"shows no better than in {rounds:.0f} independent rounds of one client"
        )
    tail = measure_session_tail(log)
    if tail.may_lack_variance:
        low, high = tail.interval
        return (
            f"sessions are so uneven in length (tail index {tail.index:.2g}, 95%: {low:.2g} to "
            f"{high:.2g}) that their variance may be infinite: a future one may outweigh the log"
        )
    return None


def _count_effective_rounds(
    log: ParticipationLog, pattern: Pattern, dispersion: Dispersion | None
) -> float:
    """Return how many independent rounds of one client tell as much about the rates' variance.

    A client's count has the variance v_n = T p_n (1 − p_n) D_n, and shows as much of it as T / D_n
    independent rounds do. All clients show as much of Σ v_n as

        (Σ v_n)² / Σ (v_n² D_n / T)    independent rounds

    D_n is at least that of a Markov chain with the client's own lag-1 correlation: periodograms do
    not show a few clients with long sessions among many others.

    Args:
        log: the participation log.
        pattern: its runs are used, unless there is a period.
        dispersion: of the clients' presence; None: 1, independent rounds.
    """
    rates = log.counts / log.length
    times = np.ones(log.size)
    if dispersion is not None:
        times = dispersion.values
        if pattern.period is None:
            own = pattern.run_counts.autocorrelation_time
            times = np.maximum(times, own / (1 + own / log.length))
    variances = rates * (1 - rates) * times
    squares = float((variances**2 * times).sum())
    return log.length * float(variances.sum()) ** 2 / squares if squares > 0 else np.inf
