"""Classification of a participation pattern by a sequence of tests."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.auditing.log.participation_log import MIN_REPEATS, ParticipationLog
from fedtide.auditing.statistics.autocorrelation import Autocorrelation, estimate_autocorrelation
from fedtide.auditing.statistics.change import Drift
from fedtide.auditing.statistics.distributions import normal_two_sided
from fedtide.auditing.statistics.pattern_tests import (
    ALWAYS,
    Estimate,
    TestResults,
    classify_clients,
    run_tests,
    smallest_rate,
)
from fedtide.auditing.statistics.periodicity import CycleProfile, fold_over_period
from fedtide.auditing.statistics.runs_test import RunCounts, count_runs
from fedtide.errors import quantify

Family = Literal[
    "always", "independent", "markov", "cyclic", "regularized", "drifting", "undecided"
]

NEIGHBOURS, BEYOND = "neighbouring rounds", "beyond the previous round"
DISPERSION, SLOW_DISPERSION = "dispersion of counts", "dispersion over a 25th of the log"
DRIFT, PERIOD, PRESENCE = "drift", "periodicity", "constant presence"
"""The names of the tests and estimates."""

MIN_ROUNDS = 12
"""With fewer rounds, nothing is said about the pattern."""
_PAUSE_FACTOR = 5
"""The federation paused if rounds with a single client are this many times rarer than expected;
three more of them than the log has are not excluded (95%)."""


@dataclass(frozen=True)
class Evidence:
    """One test or estimate.

    Args:
        test: its name.
        result: in words.
        p_value: the probability of a result at least as extreme if the effect is absent; None if
            the log does not allow the test.
        estimate: of the effect; None if it has no natural size.
        interval: of the estimate, 95%.
    """

    test: str
    result: str
    p_value: float | None
    estimate: float | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class Pattern:
    """How clients come and go.

    Args:
        family: "always" (every client seen is present in every round, which excludes rates below
            0.85), "independent" (correlation between rounds is excluded beyond a margin), "markov"
            (a two-state chain), "cyclic" (periodic), "regularized" (counts in a window vary less
            than by chance), "drifting" (rates change), or "undecided".
        reason: what the log shows or does not exclude, in words, if undecided; otherwise empty.
        period: in rounds, if cyclic.
        parameters: of the family.
        mixing_time: (τ + 1) / 2 rounds, 1 / (1 − ρ) for a Markov chain; None if it never mixes.
        evidence: all tests and estimates.
        clients: the family of each client, "never" for clients that never took part, shape (N,).
        run_counts: pattern counts of each client.
        correlation: pooled autocorrelation; None if each client is always or never present.
        drift: the test for drift; None without autocorrelation.
        idle_rounds: rounds of pauses of the federation, left out of all but `run_counts`.
    """

    family: Family
    reason: str
    period: int | None
    parameters: dict[str, Any]
    mixing_time: float | None
    evidence: list[Evidence]
    clients: NDArray[np.str_]
    run_counts: RunCounts
    correlation: Autocorrelation | None = None
    drift: Drift | None = None
    idle_rounds: int = 0

    def find_evidence(self, test: str) -> Evidence:
        """Return the test or estimate of this name.

        Raises:
            KeyError: there is none.
        """
        return {one.test: one for one in self.evidence}[test]

    def leave_out_pauses(self, log: ParticipationLog) -> ParticipationLog:
        """Return the log without the rounds that this pattern leaves out as pauses."""
        return log.leave_out_idle(self.period or 1)[0] if self.idle_rounds else log


def find_pattern(log: ParticipationLog) -> Pattern:
    """Classify the pattern of a log.

    Decisions are taken in a fixed order: drifting, cyclic, regularized, then Markov or independent
    by the dependence on the previous round. Effects need a test at level 0.001 (drift: 0.002,
    period: 0.0002) and a minimum size. An effect counts as absent only if its 95% interval lies
    inside a margin: ±0.1 for the correlation of rounds; a factor of two around that of independent
    rounds for the variance of counts over a 25th of the log. Otherwise the pattern is undecided.
    Tests and intervals allow for dependence between clients.

    If far more rounds are empty than independent clients would leave, the federation paused, which
    says nothing about its clients: the pattern is then that of the other rounds. In a cyclic log
    only whole cycles are left out.
    """
    run_counts = count_runs(log)
    pattern = _classify(log, run_counts)
    if _round_step(log) > 1 or not _has_pauses(log):
        return pattern
    active, _ = log.leave_out_idle(pattern.period or 1)
    if active.length < log.length:
        pattern = _classify(active, count_runs(active))
    return replace(pattern, run_counts=run_counts, idle_rounds=log.length - active.length)


def _has_pauses(log: ParticipationLog) -> bool:
    """Return whether far more rounds are empty than independent clients would leave.

    For independent clients with rates p_n, P(|S_t| = 1) / P(|S_t| = 0) = Σ p_n / (1 − p_n) ≥ Σ p_n,
    however the rounds of each client depend on each other: there would be at least as many rounds
    with a single client as empty ones times the mean cohort size.
    """
    idle, single = (int((log.cohorts == size).sum()) for size in (0, 1))
    return idle * float(log.cohorts.mean()) > _PAUSE_FACTOR * (single + 3)


def _classify(log: ParticipationLog, run_counts: RunCounts) -> Pattern:
    """Return the pattern of all rounds of a log."""
    if log.length < MIN_ROUNDS:
        length = quantify(log.length, "round")
        return _no_pattern(log, run_counts, f"{length}: too few to say anything about the pattern")
    if (repeats := log.repeats) < MIN_REPEATS:
        came_back = f"clients came back only {quantify(repeats, 'time')} in all"
        fact = came_back if repeats else "no client came twice"
        reason = f"{fact}, which does not show how the rounds of one client depend on each other"
        return _no_pattern(log, run_counts, reason)
    if (step := _round_step(log)) > 1:
        reason = (
            f"the rounds with clients are {step} rounds apart or multiples of it; if the others "
            "never took place, number the rounds without gaps"
        )
        return _no_pattern(log, run_counts, reason)
    correlation = estimate_autocorrelation(log)
    if correlation is None:
        return _describe_constant_presence(log, run_counts)
    results = run_tests(log, run_counts, correlation)
    evidence = _collect_evidence(results)
    family, reason = _choose_family(results, evidence)
    period = results.period.rounds if family == "cyclic" and results.period else None
    profile = None if period is None else fold_over_period(log, period)
    return Pattern(
        family=family,
        reason=reason,
        period=period,
        parameters=_estimate_parameters(family, results, profile),
        mixing_time=_mixing_time(family, correlation),
        evidence=evidence,
        clients=classify_clients(family, results, profile),
        run_counts=run_counts,
        correlation=correlation,
        drift=results.drift,
    )


def _round_step(log: ParticipationLog) -> int:
    """Return c if only every c-th round of the log has clients; otherwise 1."""
    rounds = np.flatnonzero(log.cohorts)
    step = max(1, int(np.gcd.reduce(rounds)))
    return step if len(rounds) > log.length / (2 * step) else 1


def _no_pattern(log: ParticipationLog, run_counts: RunCounts, reason: str) -> Pattern:
    seen = log.counts > 0
    parameters = {"rate": float(log.counts[seen].mean() / log.length)}
    clients = np.where(seen, "undecided", "never")
    return Pattern("undecided", reason, None, parameters, None, [], clients, run_counts)


def _describe_constant_presence(log: ParticipationLog, run_counts: RunCounts) -> Pattern:
    """Return "always" if the log is long enough to exclude rates below 0.85."""
    excluded = smallest_rate(log.length)
    digits = max(2, 1 + math.ceil(-math.log10(1 - excluded)))
    bound = math.floor(excluded * 10**digits) / 10**digits
    fact = (
        f"every client that took part did so in each of {quantify(log.length, 'round')}, which "
        f"excludes rates below {bound:.{digits}f} (95%)"
    )
    if excluded < ALWAYS:
        return _no_pattern(log, run_counts, fact)
    evidence = [Evidence(PRESENCE, fact, None, 1.0, (excluded, 1.0))]
    clients = np.where(log.counts > 0, "always", "never")
    return Pattern("always", "", None, {"rate": 1.0}, 1.0, evidence, clients, run_counts)


def _choose_family(results: TestResults, evidence: list[Evidence]) -> tuple[Family, str]:
    """Return the family and, if it is undecided, the reason."""
    if results.drifts:
        return "drifting", ""
    if results.repeats:
        return "cyclic", ""
    if results.is_regular:
        return "regularized", ""
    found = {one.test: one.result for one in evidence}
    if results.depends:
        fact = f"rounds are dependent: {found[NEIGHBOURS]}"
        if results.depends_further:
            return "undecided", f"{fact}, and {found[BEYOND]}, so no known pattern fits"
        if results.ends_with_previous:
            return "markov", ""
        return "undecided", (
            f"{fact}; the log cannot tell whether memory ends with the previous round: "
            f"{found[BEYOND]}"
        )
    if results.is_independent:
        return "independent", ""
    is_open = {
        NEIGHBOURS: True,
        BEYOND: not results.ends_with_previous,
        SLOW_DISPERSION: not results.is_even,
        DRIFT: results.shows_drift,
    }
    questions = ", ".join(found[test] for test in is_open if is_open[test])
    return "undecided", f"neither dependence nor independence is excluded: {questions}"


def _collect_evidence(results: TestResults) -> list[Evidence]:
    def describe(test: str, text: str, estimate: Estimate, z: float) -> Evidence:
        p_value = normal_two_sided(z)
        return Evidence(test, text, p_value, estimate.value, estimate.finite_interval)

    evidence = []
    for test, where, estimate, z in (
        (NEIGHBOURS, "between neighbouring rounds", results.neighbour, results.lag_one),
        (BEYOND, "beyond the previous round", results.beyond, results.beyond.z),
    ):
        ends = estimate.finite_interval
        reach = "error unknown" if ends is None else f"95%: {ends[0]:+.3f} to {ends[1]:+.3f}"
        text = f"correlation {where} {estimate.value:+.3f} ({reach})"
        evidence.append(describe(test, text, estimate, z))
    ratios = {DISPERSION: results.dispersion, SLOW_DISPERSION: results.slow_dispersion}
    for test, ratio in ratios.items():
        low, high = ratio.interval
        text = (
            f"variance of counts in windows of {ratio.window} rounds {ratio.value:.2f} times that "
            f"of independent rounds (95%: {low:.2f} to {high:.2f})"
        )
        evidence.append(describe(test, text, ratio, ratio.z))
    evidence.append(_describe_drift(results.drift))
    if (period := results.period) is not None:
        text = (
            f"best period {period.rounds} rounds, which explains {max(period.strength, 0):.0%} of "
            "the variance"
        )
        evidence.append(Evidence(PERIOD, text, period.p_value))
    return evidence


def _describe_drift(drift: Drift) -> Evidence:
    if drift.interval is None:
        return Evidence(DRIFT, f"not testable: {drift.obstacle}", None)
    low, high = drift.interval
    result = (
        f"rates of the two halves differ by {drift.relative_change:.0%} of their mean beyond "
        f"chance (95%: {low:.0%} to {high:.0%}); {drift.batches} batches permuted"
    )
    return Evidence(DRIFT, result, drift.p_value, drift.relative_change, drift.interval)


def _estimate_parameters(
    family: Family, results: TestResults, profile: CycleProfile | None
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
        return {"dispersion": results.dispersion.value, "everyone_within": round(1 / rate)}
    if family == "drifting":
        return {"relative_change": results.drift.relative_change, "rate": rate}
    return {"rate": rate}


def _mixing_time(family: Family, correlation: Autocorrelation) -> float | None:
    if family in ("cyclic", "drifting"):
        return None
    return max(1.0, (correlation.integrated_time + 1) / 2)
