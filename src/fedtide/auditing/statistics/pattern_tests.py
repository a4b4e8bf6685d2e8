"""Tests and estimates of how participation depends on time, from which its pattern follows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.auditing.statistics.autocorrelation import (
    Autocorrelation,
    estimate_neighbour_correlation,
)
from fedtide.auditing.statistics.change import Drift, detect_drift
from fedtide.auditing.statistics.distributions import normal_sf, normal_two_sided
from fedtide.auditing.statistics.periodicity import CycleProfile, PeriodCandidate, find_period
from fedtide.auditing.statistics.runs_test import (
    RunCounts,
    run_lag_one_tests,
    run_second_order_test,
)

_LEVEL = 0.001
"""The level of each test."""
_PERIOD_LEVEL = 0.0002
"""The level of the test for a period, whose noise is not quite normal."""
_DRIFT_LEVEL = 0.002
"""The level of the test for drift."""
_CLIENTS_LEVEL = 0.002
"""The family-wise level of the tests of individual clients."""
_MARGIN = 0.1
"""The largest correlation at which rounds are called independent."""
_VARIANCE_MARGIN = 2.0
"""The same for the variance of counts over many rounds: a factor on that of independent rounds."""
ALWAYS = 0.85
"""Clients are called always present if the log excludes rates below this (95%)."""


@dataclass(frozen=True)
class Estimate:
    """An estimate of a correlation and its standard deviation."""

    value: float
    error: float

    @property
    def z(self) -> float:
        """The distance from independence in standard deviations."""
        return self.value / self.error if self.error > 0 else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95%."""
        reach = 1.96 * self.error
        return max(-1.0, float(self.value - reach)), min(1.0, float(self.value + reach))

    @property
    def finite_interval(self) -> tuple[float, float] | None:
        """The interval; None if nothing is excluded."""
        return self.interval if np.isfinite([self.error, *self.interval]).all() else None

    def lies_within(self, low: float, high: float) -> bool:
        """Return whether the interval lies inside these bounds."""
        return low < self.interval[0] and self.interval[1] < high


@dataclass(frozen=True)
class Ratio(Estimate):
    """The variance of counts in windows relative to independent rounds, and its relative error.

    Args:
        window: in rounds.
    """

    window: int

    @property
    def z(self) -> float:
        return (self.value - 1) / self.error

    @property
    def interval(self) -> tuple[float, float]:
        """95%, symmetric on a logarithmic scale."""
        factor = float(np.exp(1.96 * self.error))
        value = max(self.value, 0.0)
        return value / factor, value * factor


@dataclass(frozen=True, eq=False)
class TestResults:
    """All test statistics, before a family is chosen.

    Args:
        log: the participation log.
        run_counts: pattern counts of each client.
        correlation: pooled autocorrelation.
        client_p_values: of the dependence of each client on the previous round, shape (N,).
        lag_one: z of the same test for all clients together.
        neighbour: the correlation between neighbouring rounds.
        beyond: the correlation beyond the previous round.
        dispersion: the relative variance of counts in windows.
        slow_dispersion: the same for the longest windows.
        period: the best candidate; None in short logs.
        drift: the test for drift.
    """

    log: ParticipationLog
    run_counts: RunCounts
    correlation: Autocorrelation
    client_p_values: Floats
    lag_one: float
    neighbour: Estimate
    beyond: Estimate
    dispersion: Ratio
    slow_dispersion: Ratio
    period: PeriodCandidate | None
    drift: Drift

    @property
    def shows_drift(self) -> bool:
        """Whether the test for drift is significant, whatever the size of the effect."""
        return self.drift.p_value is not None and self.drift.p_value < _DRIFT_LEVEL

    @property
    def drifts(self) -> bool:
        """Whether the rates change, beyond the minimum effect."""
        return self.shows_drift and self.drift.relative_change > 0.1

    @property
    def repeats(self) -> bool:
        """Whether participation is periodic."""
        return self.period is not None and _is_periodic(self.period)

    @property
    def is_regular(self) -> bool:
        """Whether counts vary less than by chance, beyond the minimum effect."""
        return self.dispersion.value < 0.7 and float(normal_sf(-self.dispersion.z)) < _LEVEL

    @property
    def depends(self) -> bool:
        """Whether neighbouring rounds are correlated, beyond the minimum effect."""
        return normal_two_sided(self.lag_one) < _LEVEL and abs(self.neighbour.value) > 0.02

    @property
    def depends_further(self) -> bool:
        """Whether rounds are correlated beyond the previous one, beyond the minimum effect."""
        return abs(self.beyond.z) > 4 and abs(self.beyond.value) > 0.05

    @property
    def ends_with_previous(self) -> bool:
        """Whether the interval of correlation beyond the previous round lies within the margin."""
        return self.beyond.lies_within(-_MARGIN, _MARGIN)

    @property
    def is_even(self) -> bool:
        """Whether counts in long windows vary as for independent rounds, within the margin."""
        return self.slow_dispersion.lies_within(1 / _VARIANCE_MARGIN, _VARIANCE_MARGIN)

    @property
    def is_independent(self) -> bool:
        """Whether dependence between rounds is within all margins, and no drift shows."""
        neighbours = self.neighbour.lies_within(-_MARGIN, _MARGIN)
        return neighbours and self.ends_with_previous and self.is_even and not self.shows_drift


def run_tests(
    log: ParticipationLog, run_counts: RunCounts, correlation: Autocorrelation
) -> TestResults:
    """Return all test statistics of a log; all intervals allow for dependence between clients."""
    period = find_period(correlation)
    cycle = period.rounds if period is not None and _is_periodic(period) else 1
    rate = len(log.clients) / (log.length * max(1, int((log.counts > 0).sum())))
    window = int(np.clip(2 / rate, 4, max(4, log.length // 4)))
    longest = max(2, log.length // 25)
    spread = np.sqrt(correlation.design_effect)
    effect, error = run_second_order_test(run_counts)
    p_values, z = run_lag_one_tests(run_counts)
    neighbour, width = estimate_neighbour_correlation(log, correlation)
    return TestResults(
        log=log,
        run_counts=run_counts,
        correlation=correlation,
        client_p_values=p_values,
        lag_one=float(z / spread),
        neighbour=Estimate(neighbour, width / 1.96),
        beyond=Estimate(effect, float(error * spread)),
        dispersion=Ratio(*correlation.window_dispersion(window), window),
        slow_dispersion=Ratio(*correlation.window_dispersion(longest), longest),
        period=period,
        drift=detect_drift(log, cycle, run_counts.autocorrelation_time),
    )


def _is_periodic(period: PeriodCandidate) -> bool:
    return period.p_value < _PERIOD_LEVEL and period.strength > 0.005 and period.persistence > 0.5


def classify_clients(
    family: str, results: TestResults, profile: CycleProfile | None
) -> NDArray[np.str_]:
    """Return the family of each client by its own tests, with Holm's procedure over all clients.

    A client without an effect of its own is "independent" only if the family is, or if its own
    correlation between neighbouring rounds is within the margin (95%).
    """
    counts, length = results.log.counts, results.log.length
    families = np.full(len(counts), "undecided", dtype="<U12")
    enough = (counts >= 5) & (length - counts >= 5)
    within = np.abs(results.run_counts.correlation) + 1.96 / np.sqrt(length) < _MARGIN
    families[enough & (within | (family == "independent"))] = "independent"
    if family == "regularized":
        families[enough] = "regularized"
    families[enough & _reject_by_holm(results.client_p_values, enough)] = (
        family if family in ("regularized", "undecided") else "markov"
    )
    if profile is not None:
        families[enough & profile.repeats] = "cyclic"
    families[enough & _reject_by_holm(results.drift.client_p_values, enough)] = "drifting"
    families[counts == length] = "always" if smallest_rate(length) >= ALWAYS else "undecided"
    families[counts == 0] = "never"
    return families


def smallest_rate(rounds: int) -> float:
    """Return the rate at which presence in all of r rounds has probability 0.05: 0.05^(1/r)."""
    return float(0.05 ** (1 / rounds))


def _reject_by_holm(p_values: Floats, among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which hypotheses are rejected at the family-wise level of clients (Holm 1979)."""
    indices = np.flatnonzero(among)
    order = indices[np.argsort(p_values[indices])]
    adjusted = p_values[order] * np.arange(len(order), 0, -1)
    rejected = np.zeros(len(p_values), dtype=bool)
    rejected[order[np.maximum.accumulate(adjusted) < _CLIENTS_LEVEL]] = True
    return rejected
