"""Which methods fit the log, ranked, with reasons from its numbers, and what each costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedtide.auditing.log.participation_log import ParticipationLog
from fedtide.auditing.statistics.coverage import Coverage
from fedtide.auditing.statistics.influence import EffectiveObjectives
from fedtide.auditing.statistics.pattern import Pattern
from fedtide.auditing.statistics.rate_estimates import Rates
from fedtide.auditing.statistics.windows import Regularity

Memory = Literal["light", "heavy"]


@dataclass(frozen=True)
class Advice:
    """One method.

    Args:
        algorithm: its `type` in an experiment file.
        parameters: its parameters there.
        reasons: why it stands where it stands, in sentences.
        memory: "light", O(N + d), or "heavy", O(N d).
        memory_floats: how many numbers the server keeps beyond the model.
        message_floats: how many numbers go to and from a participant in a round, together.
        remaining: the L1 skew that is expected to be left.
        simulated: its distance from the wanted optimum in a replay, and the error of that.
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
    """What the advice rests on; the fields are the parts of an audit."""

    log: ParticipationLog
    coverage: Coverage
    rates: Rates
    objectives: EffectiveObjectives
    pattern: Pattern
    regularity: Regularity
    cutoff: int
    dimension: int


def advise(findings: Findings) -> list[Advice]:
    """Return the methods, best first: those that mend what is wrong here, light before heavy.

    Where averaging over the cohort already minimises what is wanted, as far as the log can tell, it
    comes first. Otherwise the methods come by the L1 skew that they leave, in steps of 0.05. For
    memory of N d numbers, and updates from old models in it, 0.15 is added, and 0.1 more for every
    factor 10 above 10⁸ numbers.
    """
    fine = _plain_is_fine(findings)
    listed = [_fedavg(findings, fine), _fedau(findings), _known(findings), _all(findings)]
    if findings.pattern.family == "cyclic" and findings.regularity.period:
        listed.append(_amplified(findings, fine))
        listed.append(_amplified_scaffold(findings))
    listed += [_mifa(findings), _fedvarp(findings)]

    def rank(advice: Advice) -> tuple[bool, float, bool, float]:
        plain = advice.algorithm == "fedavg" and "weights" not in advice.parameters
        handicap = 0.0
        if advice.memory == "heavy":
            handicap = 0.15 + 0.1 * max(0.0, float(np.log10(advice.memory_floats / 1e8)))
        level = np.floor((advice.remaining + handicap) / 0.05)
        return (not (fine and plain), float(level), advice.memory == "heavy", advice.remaining)

    return sorted(listed, key=rank)


def limits(findings: Findings) -> list[str]:
    """Return what no method can mend, in sentences."""
    said = []
    never = len(findings.coverage.never)
    if never:
        said.append(
            f"{never:,} of {findings.log.size:,} clients never came: no method can learn from them"
        )
    once = int((findings.log.counts == 1).sum())
    if once:
        said.append(f"{once:,} clients came once: their weight rests on a single update")
    if findings.pattern.family == "drifting":
        said.append("the rates change: what held in this log need not hold in the next")
    return said


def _plain_is_fine(findings: Findings) -> bool:
    plain = findings.objectives.plain
    return (plain.interval[0] < 0.02 and plain.interval[1] < 0.5) or plain.l1_skew < 0.05


def _fedavg(findings: Findings, fine: bool) -> Advice:
    plain = findings.objectives.plain
    low, high = plain.interval
    if fine:
        reasons = [f"its L1 skew of {plain.l1_skew:.2f} is within what chance makes of none"]
    else:
        reasons = [
            f"it minimises another objective: L1 skew {plain.skew.likely:.2f} "
            f"({low:.2f} to {high:.2f}), {plain.total_variation:.0%} of the influence misplaced"
        ]
    return _advice(findings, "fedavg", {}, reasons, 0, 2, low if fine else plain.l1_skew)


def _fedau(findings: Findings) -> Advice:
    skew = findings.objectives.others[1].l1_skew
    reasons = [
        f"it learns 1 / p_n as it goes; the weights that it would have given here leave an L1 skew "
        f"of {skew:.2f}, its start included",
        f"K = {findings.cutoff} balances bias and variance of the weights on this log",
    ]
    size = 2 * findings.log.size
    return _advice(findings, "fedau", {"cutoff": findings.cutoff}, reasons, size, 2, skew)


def _known(findings: Findings) -> Advice:
    rates = findings.rates
    seen = rates.estimate > 0
    relative = (rates.high - rates.low)[seen] / (2 * 1.96 * rates.estimate[seen])
    left = findings.objectives.others[2].l1_skew
    never = len(findings.coverage.never)
    but = f" but the {never:,} clients that never came" if never else ""
    reasons = [
        "divide each update by the rate of its client that this audit found: nothing is left on "
        f"this log{but}",
        f"the rates are known to within {np.minimum(relative, 1).mean():.0%} on average, and the "
        f"rarest client weighs {1 / rates.estimate[seen].min():,.0f}; if they may change, FedAU "
        "follows",
    ]
    if findings.pattern.family == "drifting":
        reasons[0] = "the rates that this audit found change, so they need not hold in the next run"
        left += 0.3
    if relative.mean() > 0.3:
        reasons[0] = "the log is too short to know the rates well enough to divide by them"
        left += 0.4
    parameters = {"rates": "the column 'rate' of this audit"}
    return _advice(findings, "known-rates", parameters, reasons, findings.log.size, 2, left)


def _all(findings: Findings) -> Advice:
    skew = findings.objectives.others[0].l1_skew
    reasons = [f"averaging over all weighs clients by how often they come: L1 skew {skew:.2f}"]
    return _advice(findings, "fedavg", {"weights": "all"}, reasons, 0, 2, skew)


def _amplified(findings: Findings, fine: bool) -> Advice:
    period = _whole_cycles(findings)
    inner: dict[str, Any] = {"type": "fedavg"}
    skew = findings.objectives.plain.l1_skew
    if not fine:
        inner = {"type": "fedau", "cutoff": findings.cutoff}
        skew = findings.objectives.others[1].l1_skew
    reasons = [
        f"participation repeats every {findings.pattern.period} rounds, so within a round the "
        "cohort is one-sided whatever its weights",
        f"windows of P = {period} rounds are as even as the log gets; a small local step, amplified"
        " once a window, follows their mean",
    ]
    parameters = {"period": period, "factor": 2.0, "inner": inner}
    size = findings.dimension + (0 if fine else 2 * findings.log.size)
    return _advice(findings, "amplified", parameters, reasons, size, 2, skew)


def _amplified_scaffold(findings: Findings) -> Advice:
    period = _whole_cycles(findings)
    reasons = [
        f"control variates over windows of P = {period} rounds cancel the turns of the groups; "
        "what is left is the weight of each client within a window"
    ]
    parameters = {"period": period, "factor": 1.5}
    size = _rows(findings) + 2 * findings.dimension
    left = findings.objectives.others[2].l1_skew
    return _advice(findings, "amplified-scaffold", parameters, reasons, size, 4, left)


def _whole_cycles(findings: Findings) -> int:
    """Return the window that is even enough, rounded up to whole cycles."""
    cycle, window = findings.pattern.period or 1, findings.regularity.period or 1
    return -(-window // cycle) * cycle


def _mifa(findings: Findings) -> Advice:
    absence = findings.coverage.longest_absence
    reasons = [
        "the latest update of every client counts 1 / N each round, whoever comes",
        f"updates get up to {absence:,} rounds old, so steps must be small against that",
    ]
    left = findings.objectives.others[2].l1_skew
    return _advice(findings, "mifa", {}, reasons, _rows(findings) + findings.dimension, 2, left)


def _fedvarp(findings: Findings) -> Advice:
    reasons = [
        "memories take the variance out of the cohort; unequal rates are mended as far as the "
        "clients' updates are as the memories say"
    ]
    left = findings.objectives.others[2].l1_skew + 0.05
    size = _rows(findings) + findings.dimension
    return _advice(findings, "fedvarp", {}, reasons, size, 2, left)


def _rows(findings: Findings) -> int:
    """Return the size of a row of d numbers for every client that came."""
    return int((findings.log.counts > 0).sum()) * findings.dimension


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
