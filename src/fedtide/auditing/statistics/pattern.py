"""Classification of a participation pattern by a sequence of tests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.auditing.statistics.autocorrelation import Autocorrelation, estimate_autocorrelation
from fedtide.auditing.statistics.change import Drift, compare_halves
from fedtide.auditing.statistics.distributions import normal_isf, normal_sf
from fedtide.auditing.statistics.periodicity import (
    CycleProfile,
    PeriodCandidate,
    find_period,
    fold_over_period,
)
from fedtide.auditing.statistics.runs_test import (
    RunCounts,
    count_runs,
    run_lag_one_tests,
    run_second_order_test,
)

Family = Literal[
    "always", "independent", "markov", "cyclic", "regularized", "drifting", "undecided"
]

_LEVEL = 0.001
"""The level of each test."""
_DRIFT_LEVEL = 0.002
"""The level of the test for drift, which relies on estimates; the promised level is 0.01."""


@dataclass(frozen=True)
class Evidence:
    """One test.

    Args:
        test: its name.
        result: in words.
        p_value: the probability of a result at least as extreme if the effect is absent.
    """

    test: str
    result: str
    p_value: float


@dataclass(frozen=True, eq=False)
class Pattern:
    """How clients come and go.

    Args:
        family: "always" (every client seen is present in every round), "independent" (rounds are
            independent), "markov" (a two-state chain), "cyclic" (periodic), "regularized" (counts
            in a window vary less than by chance), "drifting" (rates change), or "undecided".
        confidence: one minus the p-value of the deciding test; for "independent", the power
            against a correlation of 0.1 between neighbouring rounds.
        period: in rounds, if cyclic.
        parameters: of the family.
        mixing_time: (τ + 1) / 2 rounds, 1 / (1 − ρ) for a Markov chain; None if it never mixes.
        evidence: all test results.
        clients: the family of each client, "never" for clients that never took part, shape (N,).
        run_counts: pattern counts of each client.
        correlation: pooled autocorrelation; None for "always".
        drift: comparison of the halves; None for "always".
        profile: how the clients lie in the cycle, if cyclic.
    """

    family: Family
    confidence: float
    period: int | None
    parameters: dict[str, Any]
    mixing_time: float | None
    evidence: list[Evidence]
    clients: NDArray[np.str_]
    run_counts: RunCounts
    correlation: Autocorrelation | None = None
    drift: Drift | None = None
    profile: CycleProfile | None = None


@dataclass(frozen=True, eq=False)
class _TestResults:
    """All test statistics, before a family is chosen."""

    log: ParticipationLog
    run_counts: RunCounts
    correlation: Autocorrelation
    lag_one: tuple[Floats, float]  # p-value of each client, pooled z
    second_order: tuple[float, float]  # z, effect
    period: PeriodCandidate | None
    drift: Drift
    window: int  # of the dispersion, in rounds

    @cached_property
    def dispersion(self) -> tuple[float, float]:
        """The relative variance of counts in windows, and its standard deviation."""
        return self.correlation.window_dispersion(self.window)

    @property
    def neighbour_correlation(self) -> float:
        """R(1)."""
        return float(self.correlation.values[1]) if self.correlation.length > 1 else 0.0


def find_pattern(log: ParticipationLog) -> Pattern:
    """Classify the pattern of a log.

    Decisions are taken in a fixed order: drifting, cyclic, regularized, then Markov or independent
    by the dependence on the previous round; each at level 0.001 (drift: 0.002) and with a minimum
    effect. Dependence beyond the previous round, or too little data to exclude a correlation of
    0.1, gives "undecided".
    """
    run_counts = count_runs(log)
    correlation = estimate_autocorrelation(log)
    if correlation is None:
        clients = np.where(log.counts > 0, "always", "never")
        return Pattern("always", 1.0, None, {"rate": 1.0}, 1.0, [], clients, run_counts)
    results = _run_tests(log, run_counts, correlation)
    family, confidence = _choose_family(results)
    period = results.period.rounds if family == "cyclic" and results.period else None
    profile = None if period is None else fold_over_period(log, period)
    return Pattern(
        family=family,
        confidence=min(confidence, 0.9999),
        period=period,
        parameters=_estimate_parameters(family, results, profile),
        mixing_time=_mixing_time(family, correlation),
        evidence=_collect_evidence(results),
        clients=_classify_clients(family, results, profile),
        run_counts=run_counts,
        correlation=correlation,
        drift=results.drift,
        profile=profile,
    )


def _run_tests(
    log: ParticipationLog, run_counts: RunCounts, correlation: Autocorrelation
) -> _TestResults:
    period = find_period(correlation)
    if period is not None and _is_periodic(period):
        drift = compare_halves(log, correlation, np.ones(log.size), period.rounds)
    else:
        times = (1 + run_counts.correlation) / (1 - run_counts.correlation)
        segmented = estimate_autocorrelation(log, segments=2) or correlation
        drift = compare_halves(log, segmented, times)
    rate = len(log.clients) / (log.length * max(1, int((log.counts > 0).sum())))
    return _TestResults(
        log=log,
        run_counts=run_counts,
        correlation=correlation,
        lag_one=run_lag_one_tests(run_counts),
        second_order=run_second_order_test(run_counts),
        period=period,
        drift=drift,
        window=int(np.clip(2 / rate, 4, max(4, log.length // 4))),
    )


def _is_periodic(period: PeriodCandidate) -> bool:
    return period.p_value < _LEVEL and period.strength > 0.005


def _choose_family(results: _TestResults) -> tuple[Family, float]:
    """Return the family and the confidence in it."""
    ratio, noise = results.dispersion
    z, effect = results.second_order
    drift = results.drift
    if drift.p_value < _DRIFT_LEVEL and drift.relative_change > 0.1:
        return "drifting", 1 - drift.p_value
    if results.period is not None and _is_periodic(results.period):
        return "cyclic", 1 - results.period.p_value
    if ratio < 0.7 and (p := _p_below_one(ratio, noise)) < _LEVEL:
        return "regularized", 1 - p
    p = _two_sided(results.lag_one[1])
    if p < _LEVEL and abs(results.neighbour_correlation) > 0.02:
        beyond = abs(z) > 4 and abs(effect) > 0.05
        return ("undecided", _two_sided(z)) if beyond else ("markov", 1 - p)
    pairs = results.correlation.effective_clients * results.correlation.length
    power = float(normal_sf(normal_isf(_LEVEL / 2) - 0.1 * np.sqrt(pairs)))
    return ("independent", power) if power > 0.5 else ("undecided", power)


def _collect_evidence(results: _TestResults) -> list[Evidence]:
    lag_one = results.lag_one[1]
    ratio, noise = results.dispersion
    z, effect = results.second_order
    evidence = [
        Evidence(
            "lag-1 runs test",
            f"correlation between neighbouring rounds {results.neighbour_correlation:+.3f} "
            f"(z = {lag_one:+.1f})",
            _two_sided(lag_one),
        ),
        Evidence(
            "second-order test",
            f"correlation beyond the previous round {effect:+.3f} (z = {z:+.1f})",
            _two_sided(z),
        ),
        Evidence(
            "dispersion of counts",
            f"variance of counts in windows of {results.window} rounds {ratio:.2f} times that of "
            "independent rounds",
            min(1.0, 2 * min(_p_below_one(ratio, noise), _p_below_one(2 - ratio, noise))),
        ),
        Evidence(
            "first half against second",
            f"squared difference {results.drift.ratio:.2f} times that of a stationary log",
            results.drift.p_value,
        ),
    ]
    if results.period is not None:
        strength = max(results.period.strength, 0)
        evidence.append(
            Evidence(
                "periodicity",
                f"best period {results.period.rounds} rounds, which explains {strength:.0%} of the "
                "variance",
                results.period.p_value,
            )
        )
    return evidence


def _estimate_parameters(
    family: Family, results: _TestResults, profile: CycleProfile | None
) -> dict[str, Any]:
    seen = results.log.counts > 0
    rate = float(results.log.counts[seen].mean() / results.log.length)
    if family == "markov":
        often = seen & (results.run_counts.ones > 2)
        chosen = often if often.any() else seen
        off_on, on_off = results.run_counts.transition_probabilities
        significant = results.correlation.significant
        return {
            "off_on": float(np.median(off_on[chosen])),
            "on_off": float(np.median(on_off[chosen])),
            "correlation": float(significant[0]) if len(significant) else 0.0,
        }
    if profile is not None:
        return profile.summary()
    if family == "regularized":
        return {"dispersion": results.dispersion[0], "everyone_within": round(1 / rate)}
    if family == "drifting":
        return {"relative_change": results.drift.relative_change, "rate": rate}
    return {"rate": rate}


def _mixing_time(family: Family, correlation: Autocorrelation) -> float | None:
    if family in ("cyclic", "drifting"):
        return None
    return max(1.0, (correlation.integrated_time + 1) / 2)


def _classify_clients(
    family: Family, results: _TestResults, profile: CycleProfile | None
) -> NDArray[np.str_]:
    """Return the family of each client by its own tests, with Holm's procedure over all clients."""
    counts, length = results.log.counts, results.log.length
    families = np.full(len(counts), "undecided", dtype="<U12")
    enough = (counts >= 5) & (length - counts >= 5)
    families[enough] = "regularized" if family == "regularized" else "independent"
    families[enough & _reject_by_holm(results.lag_one[0], enough)] = (
        family if family in ("regularized", "undecided") else "markov"
    )
    if profile is not None:
        families[enough & profile.repeats] = "cyclic"
    families[enough & _reject_by_holm(results.drift.client_p_values, enough)] = "drifting"
    families[counts == length] = "always"
    families[counts == 0] = "never"
    return families


def _reject_by_holm(p_values: Floats, among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which hypotheses are rejected at family-wise level 0.01 (Holm 1979)."""
    indices = np.flatnonzero(among)
    order = indices[np.argsort(p_values[indices])]
    adjusted = p_values[order] * np.arange(len(order), 0, -1)
    rejected = np.zeros(len(p_values), dtype=bool)
    rejected[order[np.maximum.accumulate(adjusted) < 0.01]] = True
    return rejected


def _two_sided(z: float) -> float:
    return float(2 * normal_sf(abs(z)))


def _p_below_one(ratio: float, noise: float) -> float:
    """Return the one-sided p-value of a ratio below 1."""
    return float(normal_sf((1 - ratio) / noise))
