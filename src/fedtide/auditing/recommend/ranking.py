"""A ranking of methods for a log, with reasons, settings and costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedtide.auditing.log.participation_log import ParticipationLog
from fedtide.auditing.statistics.coverage import Coverage
from fedtide.auditing.statistics.influence import ObjectiveComparison
from fedtide.auditing.statistics.pattern import Pattern
from fedtide.auditing.statistics.rate_estimates import RateEstimates
from fedtide.auditing.statistics.windows import Regularity

Memory = Literal["light", "heavy"]


@dataclass(frozen=True)
class Advice:
    """A recommended method.

    Args:
        algorithm: its `type` in an experiment file.
        parameters: its parameters there.
        reasons: for its rank, in sentences.
        memory: "light", O(N + d), or "heavy", O(N d).
        memory_floats: numbers stored by the server beyond the model.
        message_floats: numbers sent to and from a participant per round, together.
        remaining: the L1 skew expected to remain.
        simulated: distance from the wanted optimum in a replay, and its standard error.
    """

    algorithm: str
    parameters: dict[str, Any]
    reasons: list[str]
    memory: Memory
    memory_floats: int
    message_floats: int
    remaining: float
    simulated: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class Findings:
    """The parts of an audit that the ranking uses."""

    log: ParticipationLog
    coverage: Coverage
    rates: RateEstimates
    objectives: ObjectiveComparison
    pattern: Pattern
    regularity: Regularity
    cutoff: int
    dimension: int

    @property
    def plain_suffices(self) -> bool:
        """Whether chance alone explains the skew of averaging over the cohort, or it is small."""
        plain = self.objectives.plain
        return (plain.interval[0] < 0.02 and plain.interval[1] < 0.5) or plain.l1_skew < 0.05

    @property
    def window(self) -> int:
        """The period of sufficiently regular windows, rounded up to whole cycles."""
        cycle, window = self.pattern.period or 1, self.regularity.period or 1
        return -(-window // cycle) * cycle

    @property
    def table_floats(self) -> int:
        """The size of a table of d numbers for every client that took part."""
        return int((self.log.counts > 0).sum()) * self.dimension


def rank_methods(findings: Findings) -> list[Advice]:
    """Return the methods, best first.

    If the log gives no evidence that averaging over the cohort misses the wanted objective, it
    comes first. The others are ordered by the L1 skew they leave, in steps of 0.05. A memory of N d
    numbers, which also means stale updates, costs 0.15, and 0.1 more for every factor of 10 above
    10⁸ numbers.
    """
    listed = [_fedavg(findings), _fedau(findings), _known_rates(findings), _average_all(findings)]
    if findings.pattern.family == "cyclic" and findings.regularity.period:
        listed += [_amplified(findings), _amplified_scaffold(findings)]
    listed += [_mifa(findings), _fedvarp(findings)]

    def rank(advice: Advice) -> tuple[bool, float, bool, float]:
        plain = advice.algorithm == "fedavg" and "weights" not in advice.parameters
        handicap = 0.0
        if advice.memory == "heavy":
            handicap = 0.15 + 0.1 * max(0.0, float(np.log10(advice.memory_floats / 1e8)))
        level = np.floor((advice.remaining + handicap) / 0.05)
        first = findings.plain_suffices and plain
        return (not first, float(level), advice.memory == "heavy", advice.remaining)

    return sorted(listed, key=rank)


def _fedavg(findings: Findings) -> Advice:
    plain = findings.objectives.plain
    low, high = plain.interval
    if findings.plain_suffices:
        reasons = [f"its L1 skew of {plain.l1_skew:.2f} is no larger than chance explains"]
        remaining = low
    else:
        reasons = [
            f"it minimises another objective: L1 skew {plain.skew.corrected:.2f} "
            f"({low:.2f} to {high:.2f}), {plain.total_variation:.0%} of the influence misplaced"
        ]
        remaining = plain.l1_skew
    return _advice(findings, "fedavg", {}, reasons, 0, 2, remaining)


def _fedau(findings: Findings) -> Advice:
    skew = findings.objectives.others[1].l1_skew
    reasons = [
        "it estimates 1 / p_n during training; on this log its weights leave an L1 skew of "
        f"{skew:.2f}, including the start-up phase",
        f"K = {findings.cutoff} minimises bias² + variance of its weights on this log",
    ]
    size = 2 * findings.log.size
    return _advice(findings, "fedau", {"cutoff": findings.cutoff}, reasons, size, 2, skew)


def _known_rates(findings: Findings) -> Advice:
    rates = findings.rates
    seen = rates.estimate > 0
    relative = (rates.high - rates.low)[seen] / (2 * 1.96 * rates.estimate[seen])
    remaining = findings.objectives.others[2].l1_skew
    never = len(findings.coverage.never)
    but = f", except for the {never:,} clients that never took part" if never else ""
    reasons = [
        "it divides each update by the client's rate; with the rates of this audit, no skew "
        f"remains on this log{but}",
        f"the rates are known to within {np.minimum(relative, 1).mean():.0%} on average, and the "
        f"rarest client gets the weight {1 / rates.estimate[seen].min():,.0f}; FedAU is safer if "
        "the rates may change",
    ]
    if findings.pattern.family == "drifting":
        reasons[0] = "the rates drift, so the rates of this audit may not hold for the next run"
        remaining += 0.3
    if relative.mean() > 0.3:
        reasons[0] = "the log is too short to estimate the rates well enough to divide by them"
        remaining += 0.4
    parameters = {"rates": "the column 'rate' of this audit"}
    return _advice(findings, "known-rates", parameters, reasons, findings.log.size, 2, remaining)


def _average_all(findings: Findings) -> Advice:
    skew = findings.objectives.others[0].l1_skew
    reasons = [f"averaging over all clients weights each by its rate: L1 skew {skew:.2f}"]
    return _advice(findings, "fedavg", {"weights": "all"}, reasons, 0, 2, skew)


def _amplified(findings: Findings) -> Advice:
    inner: dict[str, Any] = {"type": "fedavg"}
    skew = findings.objectives.plain.l1_skew
    if not findings.plain_suffices:
        inner = {"type": "fedau", "cutoff": findings.cutoff}
        skew = findings.objectives.others[1].l1_skew
    reasons = [
        f"participation repeats every {findings.pattern.period} rounds, so a single cohort is "
        "one-sided whatever its weights",
        f"windows of P = {findings.window} rounds are as regular as this log gets; small local "
        "steps, amplified once per window, follow the mean over the window",
    ]
    parameters = {"period": findings.window, "factor": 2.0, "inner": inner}
    size = findings.dimension + (0 if findings.plain_suffices else 2 * findings.log.size)
    return _advice(findings, "amplified", parameters, reasons, size, 2, skew)


def _amplified_scaffold(findings: Findings) -> Advice:
    reasons = [
        f"control variates over windows of P = {findings.window} rounds cancel the bias of taking "
        "turns; only the unequal weights within a window remain"
    ]
    parameters = {"period": findings.window, "factor": 1.5}
    size = findings.table_floats + 2 * findings.dimension
    remaining = findings.objectives.others[2].l1_skew
    return _advice(findings, "amplified-scaffold", parameters, reasons, size, 4, remaining)


def _mifa(findings: Findings) -> Advice:
    reasons = [
        "the latest update of every client has the weight 1 / N in every round, present or not",
        f"updates become up to {findings.coverage.longest_absence:,} rounds old, which requires "
        "correspondingly small steps",
    ]
    size = findings.table_floats + findings.dimension
    return _advice(findings, "mifa", {}, reasons, size, 2, findings.objectives.others[2].l1_skew)


def _fedvarp(findings: Findings) -> Advice:
    reasons = [
        "stored updates remove the variance due to the choice of the cohort; unequal rates are "
        "corrected as far as clients' updates resemble their stored ones"
    ]
    size = findings.table_floats + findings.dimension
    remaining = findings.objectives.others[2].l1_skew + 0.05
    return _advice(findings, "fedvarp", {}, reasons, size, 2, remaining)


def _advice(
    findings: Findings,
    algorithm: str,
    parameters: dict[str, Any],
    reasons: list[str],
    memory_floats: int,
    messages: int,
    remaining: float,
) -> Advice:
    heavy = memory_floats > 4 * (findings.log.size + findings.dimension)
    return Advice(
        algorithm=algorithm,
        parameters=parameters,
        reasons=reasons,
        memory="heavy" if heavy else "light",
        memory_floats=memory_floats,
        message_floats=messages * findings.dimension,
        remaining=remaining,
    )
