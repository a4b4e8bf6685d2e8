"""How clients come and go: one test for a cycle, one for drift, one for memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedtide.auditing.log.participation_log import MIN_REPEATS, ParticipationLog
from fedtide.auditing.statistics.autocorrelation import Autocorrelation, estimate_autocorrelation
from fedtide.auditing.statistics.drift import UNKNOWN, Drift, Memory, find_drift_and_memory
from fedtide.auditing.statistics.periodicity import PeriodCandidate, find_period
from fedtide.auditing.statistics.runs import RunCounts, count_runs
from fedtide.errors import quantify

Family = Literal[
    "always", "drifting", "cyclic", "persistent", "regularized", "independent", "undecided"
]

MIN_ROUNDS = 12
"""With fewer rounds, nothing is said about the pattern."""
_ALWAYS = 0.85
"""Clients are called always present if the log excludes rates below this (95%)."""
_PAUSE_FACTOR = 5
"""The federation paused if rounds with a single client are this many times rarer than expected;
three more of them than the log has are not excluded (95%)."""


@dataclass(frozen=True, eq=False)
class Pattern:
    """How clients come and go.

    Args:
        run_counts: of each client.
        drift: whether rates change slowly.
        memory: how much the rounds of a client depend on each other, besides the cycle.
        reason: why the log says nothing about these, in words, or that every client is always
            there; otherwise empty.
        always: whether every client that took part did so in every round, which excludes rates
            below 0.85.
        cycle: the best candidate for a cycle; None: the log is too short.
        correlation: pooled autocorrelation; None if each client is always or never present.
        idle_rounds: rounds of pauses of the federation, left out of all but `run_counts`.
    """

    run_counts: RunCounts
    drift: Drift
    memory: Memory = UNKNOWN
    reason: str = ""
    always: bool = False
    cycle: PeriodCandidate | None = None
    correlation: Autocorrelation | None = None
    idle_rounds: int = 0

    @property
    def period(self) -> int | None:
        """The length of the cycle in rounds; None: no cycle is found."""
        return self.cycle.rounds if self.cycle is not None and self.cycle.found else None

    @property
    def family(self) -> Family:
        """The first of these words that the log proves.

        "always", "drifting", "cyclic"; "persistent", "regularized" or "independent" for positive,
        negative or no memory; "undecided".
        """
        if self.always:
            return "always"
        if self.drift.found:
            return "drifting"
        if self.period is not None:
            return "cyclic"
        words: dict[str, Family] = {"positive": "persistent", "negative": "regularized"}
        words["none"] = "undecided" if self.drift.found is None else "independent"
        return words.get(self.memory.state, "undecided")

    def leave_out_pauses(self, log: ParticipationLog) -> ParticipationLog:
        """Return the log without the rounds that this pattern leaves out as pauses."""
        return log.leave_out_idle(self.period or 1)[0] if self.idle_rounds else log


def find_pattern(log: ParticipationLog) -> Pattern:
    """Return whether participation has a cycle, drift and memory.

    If far more rounds are empty than independent clients would leave, the federation paused, which
    says nothing about its clients: the pattern is then that of the other rounds. In a cyclic log
    only whole cycles are left out.
    """
    run_counts = count_runs(log)
    pattern = _test(log, run_counts)
    if _round_step(log) > 1 or not _has_pauses(log):
        return pattern
    active, _ = log.leave_out_idle(pattern.period or 1)
    if active.length < log.length:
        pattern = _test(active, count_runs(active))
    return replace(pattern, run_counts=run_counts, idle_rounds=log.length - active.length)


def _test(log: ParticipationLog, run_counts: RunCounts) -> Pattern:
    """Return the pattern of all rounds of a log."""
    if reason := _find_obstacle(log):
        return Pattern(run_counts, Drift(None, reason), reason=reason)
    correlation = estimate_autocorrelation(log)
    if correlation is None:
        fact, always = _describe_constant_presence(log)
        return Pattern(run_counts, Drift(None, fact), reason=fact, always=always)
    cycle = find_period(correlation)
    pattern = Pattern(run_counts, Drift(None, ""), cycle=cycle, correlation=correlation)
    drift, memory = find_drift_and_memory(log, pattern.period)
    return replace(pattern, drift=drift, memory=memory)


def _find_obstacle(log: ParticipationLog) -> str:
    """Return why the log says nothing about the dependence between rounds; empty: it does."""
    if log.length < MIN_ROUNDS:
        return f"{quantify(log.length, 'round')}: too few to say anything about the pattern"
    if (repeats := log.repeats) < MIN_REPEATS:
        came_back = f"clients came back only {quantify(repeats, 'time')} in all"
        fact = came_back if repeats else "no client came twice"
        return f"{fact}, which does not show how the rounds of one client depend on each other"
    if (step := _round_step(log)) > 1:
        return (
            f"the rounds with clients are {step} rounds apart or multiples of it; if the others "
            "never took place, number the rounds without gaps"
        )
    return ""


def _has_pauses(log: ParticipationLog) -> bool:
    """Return whether far more rounds are empty than independent clients would leave.

    For independent clients with rates p_n, P(|S_t| = 1) / P(|S_t| = 0) = Σ p_n / (1 − p_n) ≥ Σ p_n,
    however the rounds of each client depend on each other: there would be at least as many rounds
    with a single client as empty ones times the mean cohort size.
    """
    idle, single = (int((log.cohorts == size).sum()) for size in (0, 1))
    return idle * float(log.cohorts.mean()) > _PAUSE_FACTOR * (single + 3)


def _round_step(log: ParticipationLog) -> int:
    """Return c if only every c-th round of the log has clients; otherwise 1."""
    rounds = np.flatnonzero(log.cohorts)
    step = max(1, int(np.gcd.reduce(rounds)))
    return step if len(rounds) > log.length / (2 * step) else 1


def _describe_constant_presence(log: ParticipationLog) -> tuple[str, bool]:
    """Return which rates a log excludes in which all are always present, and if it is enough.

    Presence in all of T rounds has probability 0.05 at the rate 0.05^(1/T).
    """
    excluded = 0.05 ** (1 / log.length)
    digits = max(2, 1 + math.ceil(-math.log10(1 - excluded)))
    bound = math.floor(excluded * 10**digits) / 10**digits
    fact = (
        f"every client that took part did so in each of {quantify(log.length, 'round')}, which "
        f"excludes rates below {bound:.{digits}f} (95%)"
    )
    return fact, excluded >= _ALWAYS
