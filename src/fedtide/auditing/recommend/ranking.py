"""A ranking of methods for a log, with reasons, settings and costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.auditing.recommend.log_replay import Settings
from fedtide.auditing.recommend.replay_problem import ReplayedLoss, ReplayProblem
from fedtide.auditing.recommend.strategy_source import write_strategy
from fedtide.auditing.statistics.coverage import Coverage
from fedtide.auditing.statistics.forgetting import Forgetting
from fedtide.auditing.statistics.influence import EffectiveObjective, ObjectiveComparison
from fedtide.auditing.statistics.pattern import Pattern
from fedtide.auditing.statistics.rate_estimates import RateEstimates
from fedtide.auditing.statistics.windows import Regularity

Memory = Literal["light", "heavy"]
WantedSource = Literal["equal", "roster", "samples"]

_TOLERANCE = 0.1
"""Losses that differ by less than this share are equivalent."""
_FLOOR = 0.01
"""So are those that differ by less than this share of the loss at the start."""
_CLOSE = {"light": 0.25, "heavy": 0.6}
"""Methods within this part of that tolerance are tied with the best, by memory: a light one must be
nearly as good as the best, while heavy ones hardly differ in cost."""
_ERRORS = 2.0
"""So are those within that tolerance whose distance is less than this many standard errors."""
_MIN_WINDOWS = 8
"""Windows of amplification in a log whose swings are too slow to be seen three times."""
_MOST_FLOATS = 1e10
"""A memory of more numbers than this (40 GB) puts a method behind the light ones."""
_SURE = 0.001
"""The level of the test for forgetting."""
_NOTHING_AGAINST = (
    "nothing in this log speaks against it: no skew of its objective is found that is more than "
    "small or beyond chance, also in the last rounds, and no swing of the objective in force"
)
_FACTORS = {"amplified": (2.0, 1.5), "amplified-scaffold": (1.5,)}
"""Amplification factors that are tried, the usual one first."""


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
        simulated: the loss with which it ends in the replay, as a share of the loss at the start,
            and the standard error of its difference from the best method's.
        equivalent: whether its loss is equivalent to that of the best method.
        tied: whether the replay cannot tell it from the best method, so that the simpler of them
            comes first.
        objective: `objective` of an experiment that trains for the wanted weights.
        clients: the clients' names in the order of `parameters`, or N if they are 0..N − 1.
    """

    algorithm: str
    parameters: dict[str, Any]
    reasons: list[str]
    memory: Memory
    memory_floats: int
    message_floats: int
    remaining: float
    simulated: tuple[float, float] | None = None
    equivalent: bool = False
    tied: bool = False
    objective: str | tuple[float, ...] = "uniform"
    clients: int | tuple[str, ...] = 0

    @property
    def settings(self) -> Settings:
        """The method as `algorithm:` of an experiment file."""
        return {"type": self.algorithm, **self.parameters}

    @property
    def experiment(self) -> dict[str, Any]:
        """Arguments of `ft.simulate`, or lines of an experiment file: `algorithm`, `objective`."""
        experiment: dict[str, Any] = {"algorithm": self.settings}
        if self.objective != "uniform":
            given = self.objective
            experiment["objective"] = given if isinstance(given, str) else list(given)
        return experiment

    @property
    def strategy(self) -> str:
        """Python source that makes the `FedTide` strategy of this method for Flower."""
        return write_strategy(self.settings, self.clients, self.objective)


@dataclass(frozen=True, eq=False)
class Findings:
    """The parts of an audit that the ranking uses."""

    log: ParticipationLog
    coverage: Coverage
    rates: RateEstimates
    objectives: ObjectiveComparison
    pattern: Pattern
    regularity: Regularity
    forgetting: Forgetting
    cutoff: int
    dimension: int
    wanted_source: WantedSource

    @cached_property
    def swing(self) -> list[str]:
        """What the forgetting says against averaging over the cohort, at most one sentence."""
        forgetting = self.forgetting
        if forgetting.p_value >= _SURE or forgetting.estimate <= 0.05:
            return []
        low, high = forgetting.interval
        return [
            f"the objective in force swings: windows of {forgetting.window:,} rounds differ from "
            f"the whole log by {forgetting.estimate:.0%} of the influence ({low:.0%} to {high:.0%})"
        ]

    def objections(self, objective: EffectiveObjective) -> list[str]:
        """Return what speaks against a way of averaging, in sentences; empty: nothing does."""
        found = _describe_bias(objective)
        recent, in_force = self.objectives.recent, self.objectives.in_force.weights
        is_in_force = float(np.abs(in_force - objective.weights).sum()) < 0.05
        if recent is not None and is_in_force and _is_biased(recent.objective):
            found += [f"in the last {recent.window:,} rounds, " + _describe_skew(recent.objective)]
        return found + self.swing

    @property
    def windows(self) -> list[int]:
        """Periods of amplification to try: regular windows in whole cycles, and whole swings.

        If there are none because a swing is slower than a third of the log, its eighth.
        """
        cycle = self.pattern.period or 1
        swings = self.forgetting.p_value < _SURE
        ends = self.forgetting.halving_window if swings else None
        wanted = [self.regularity.period, ends, self.pattern.period]
        whole = [-(-window // cycle) * cycle for window in wanted if window]
        found = sorted({window for window in whole if 2 <= window <= self.log.length // 3})
        slow = self.log.length // _MIN_WINDOWS
        return found or ([slow] if swings and slow >= 2 else [])

    @cached_property
    def known_rates(self) -> list[float]:
        """p_n; the upper end of the interval for clients that never took part."""
        rates = self.rates.estimate.copy()
        never = rates <= 0
        high = np.nan_to_num(self.rates.high[never], nan=0.0)
        # Without an honest interval: that of independent rounds, 1 − 0.025^(1 / T).
        rates[never] = np.where(high > 0, high, 1 - 0.025 ** (1 / self.log.length))
        return [float(f"{rate:.6g}") for rate in np.minimum(rates, 1.0)]

    @cached_property
    def clients(self) -> int | tuple[str, ...]:
        """The clients' names, or N if they are 0..N − 1."""
        names = self.log.names.to_list()
        return len(names) if names == list(range(len(names))) else tuple(str(n) for n in names)

    @cached_property
    def objective(self) -> str | tuple[float, ...]:
        """`objective:` of an experiment that trains for the wanted weights."""
        if self.wanted_source == "roster":
            return tuple(float(f"{share:.6g}") for share in self.objectives.wanted)
        return "samples" if self.wanted_source == "samples" else "uniform"

    @property
    def table_floats(self) -> int:
        """The size of a table of d numbers for every client that took part."""
        return int((self.log.counts > 0).sum()) * self.dimension


def rank_methods(findings: Findings, problem: ReplayProblem) -> list[Advice]:
    """Return the methods, best first, by the loss with which they end in the replay.

    Of a method with several settings the first is taken, unless another ends clearly lower.
    Losses are equivalent if they differ by less than a tenth, or by less than a hundredth of the
    loss at the start. Averaging over the cohort comes first if nothing speaks against it and it is
    equivalent to the best. Methods that are tied with the best (`_is_tied`) follow in the order of
    `_list_variants`, the simplest first, with two exceptions: averaging is the last of them if
    something speaks against it; and where the objective in force swings, the windows of Amplified
    SCAFFOLD come before SCAFFOLD, whose control variates are those of the end of a client's turn
    (paper 002). What the replay cannot know is the price of memory: methods that store more than
    10¹⁰ numbers follow all others.
    """
    variants = _list_variants(findings)
    losses = iter(problem.run([one.settings for group in variants for one in group]))
    found = [_choose_setting([(one, next(losses)) for one in group]) for group in variants]
    affordable = [loss for one, loss in found if one.memory_floats <= _MOST_FLOATS]
    best = min(affordable, key=lambda loss: loss.mean)

    def is_tied(advice: Advice, loss: ReplayedLoss) -> bool:
        if _is_average(advice) and _is_right(advice, findings):
            return _is_equivalent(loss, best)
        return _is_tied(loss, best, advice.memory)

    def rank(place: int) -> tuple[bool, bool, bool, float]:
        advice, loss = found[place]
        tied = is_tied(advice, loss)
        dear = advice.memory_floats > _MOST_FLOATS
        unfair = tied and _is_average(advice) and not _is_right(advice, findings)
        return (dear, not tied, unfair, simplicity[place] if tied else loss.mean)

    simplicity = _order_by_simplicity([one for one, _ in found], bool(findings.swing))
    order = sorted(range(len(found)), key=rank)
    plain = next(loss for one, loss in found if _is_plain(one))
    ranked = [
        replace(_report(*found[place], best, plain), tied=is_tied(*found[place])) for place in order
    ]
    return _compare_memories(ranked)


def _order_by_simplicity(listed: list[Advice], swings: bool) -> list[float]:
    """Return the place of each method among tied ones; Amplified SCAFFOLD's depends on swings."""
    plain = next(place for place, one in enumerate(listed) if one.algorithm == "scaffold")
    return [
        plain - 0.5 if swings and one.algorithm == "amplified-scaffold" else float(place)
        for place, one in enumerate(listed)
    ]


def _choose_setting(variants: list[tuple[Advice, ReplayedLoss]]) -> tuple[Advice, ReplayedLoss]:
    """Return the first setting, or the best if that is clearly better."""
    best = min(variants, key=lambda one: one[1].mean)
    first = variants[0]
    return first if _is_tied(first[1], best[1], "light") else best


def _is_tied(loss: ReplayedLoss, best: ReplayedLoss, memory: Memory) -> bool:
    """Return whether a loss is nearly the best, or equivalent to it and within its error."""
    gap = loss.mean - best.mean
    if gap <= _CLOSE[memory] * _tolerance(best):
        return True
    return _is_equivalent(loss, best) and gap <= _ERRORS * loss.error_of_gap(best)


def _is_equivalent(loss: ReplayedLoss, best: ReplayedLoss) -> bool:
    return loss.mean - best.mean <= _tolerance(best)


def _tolerance(best: ReplayedLoss) -> float:
    return max(_TOLERANCE * best.mean, _FLOOR)


def _is_plain(advice: Advice) -> bool:
    return advice.algorithm == "fedavg" and not advice.parameters


def _is_average(advice: Advice) -> bool:
    """Return whether a method averages over the cohort, by number or by samples."""
    return advice.algorithm == "fedavg" and advice.parameters.get("weights", "data") == "data"


def _is_right(advice: Advice, findings: Findings) -> bool:
    """Return whether nothing speaks against averaging, by number or by samples."""
    objectives, source = findings.objectives, findings.wanted_source
    if "weights" in advice.parameters:
        return source == "samples" and not findings.objections(objectives.in_force)
    return not (findings.objections(objectives.plain) if source == "equal" else findings.swing)


def _is_biased(objective: EffectiveObjective) -> bool:
    """Return whether chance does not explain the skew of an objective, and it is not small."""
    return objective.interval[0] >= 0.02 and objective.skew.corrected >= 0.05


def _describe_bias(objective: EffectiveObjective) -> list[str]:
    """Return what the skew says against an objective, at most one sentence."""
    if _is_biased(objective):
        return [_describe_skew(objective)]
    high = objective.interval[1]
    if high < 0.5 or objective.skew.corrected < 0.05:
        return []
    bound = f" of {high:.2f}" if np.isfinite(high) else ""
    return [f"this log cannot exclude that it minimises another objective, with an L1 skew{bound}"]


def _describe_skew(objective: EffectiveObjective) -> str:
    low, high = objective.interval
    return (
        f"it minimises another objective: L1 skew {objective.skew.corrected:.2f} ({low:.2f} to "
        f"{high:.2f}), {objective.total_variation:.0%} of the influence misplaced"
    )


def _report(advice: Advice, loss: ReplayedLoss, best: ReplayedLoss, plain: ReplayedLoss) -> Advice:
    """Return the advice with its result in the replay."""
    against = "" if _is_plain(advice) else f", averaging over the cohort with {plain.mean:.1%}"
    text = f"in the replay it ends with {loss.mean:.1%} of the loss at the start{against}"
    return replace(
        advice,
        reasons=[*advice.reasons, text],
        simulated=(loss.mean, loss.error_of_gap(best)),
        equivalent=_is_equivalent(loss, best),
    )


def _compare_memories(ranked: list[Advice]) -> list[Advice]:
    """Return the advice; the first method names the best one of the other memory.

    A heavy one always does, a light one if the other ends beyond its error lower.
    """
    first, *others = ranked
    other = next((one for one in others if one.memory != first.memory), None)
    if other is None or other.simulated is None or first.simulated is None:
        return ranked
    loss = f"{other.algorithm}, ends with {other.simulated[0]:.1%} of the loss at the start"
    if first.memory == "heavy":
        text = (
            f"it stores {first.memory_floats:,} numbers; the best method without such a memory, "
            f"{loss}"
        )
    elif first.simulated[0] - other.simulated[0] > _ERRORS * first.simulated[1] > 0:
        text = f"with a memory of {other.memory_floats:,} numbers, {loss}"
    else:
        return ranked
    return [replace(first, reasons=[*first.reasons, text]), *others]


def _list_variants(findings: Findings) -> list[list[Advice]]:
    """Return the methods in the order of their cost, each with its possible settings.

    The methods of `fedtide.algorithms` that are left out do not change whose model is learnt
    (FedProx, the adaptive and momentum servers, Averaged), or are baselines that wait, count
    participation twice or pool data (WaitForAll, WeightedFedAvg, CentralSGD).
    """
    fedavg, fedau, known = _fedavg(findings), _fedau(findings), _known_rates(findings)
    declared = findings.log.samples is not None and np.nansum(findings.log.samples) > 0
    data = [[_data_weighted(findings)]] if declared else []
    cohort = [[fedavg]]
    averages = data + cohort if findings.wanted_source == "samples" else cohort + data
    amplified = [_amplified(findings, inner) for inner in (fedavg, fedau, known)]
    heavy = [_scaffold(findings), _fedvarp(findings), _mifa(findings), _fedlaavg(findings)]
    listed = [
        *averages,
        [fedau],
        [known],
        [_average_all(findings)],
        *amplified,
        *([one] for one in heavy),
        _amplified_scaffold(findings),
    ]
    return [variants for variants in listed if variants]


def _fedavg(findings: Findings) -> Advice:
    weights = findings.objectives.plain.weights
    remaining = _scaled_skew(findings, weights)
    if findings.wanted_source == "equal":
        reasons = findings.objections(findings.objectives.plain) or [_NOTHING_AGAINST]
    else:
        reasons = [
            "the loss of each client is multiplied by N times its wanted weight; averaging over "
            f"the cohort then leaves an L1 skew of {remaining:.2f} on this log",
            *findings.swing,
        ]
    return _advice(findings, "fedavg", {}, reasons, 0, 2, remaining)


def _data_weighted(findings: Findings) -> Advice:
    """Return averaging weighted by samples, whose losses are not multiplied."""
    remaining = float(np.abs(_average_samples(findings.log) - findings.objectives.wanted).sum())
    reasons = [
        "it weights each update by the client's samples, the default of Flower's FedAvg: L1 skew "
        f"{remaining:.2f} on this log"
    ]
    if findings.wanted_source == "samples":
        reasons += findings.objections(findings.objectives.in_force) or [_NOTHING_AGAINST]
    advice = _advice(findings, "fedavg", {"weights": "data"}, reasons, 0, 2, remaining)
    return replace(advice, objective="uniform")


def _fedau(findings: Findings) -> Advice:
    skew = _scaled_skew(findings, findings.objectives.others[1].weights)
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
    never = len(findings.coverage.never)
    known = (
        f"known to within {np.minimum(relative, 1).mean():.0%} on average"
        if np.isfinite(relative).all()
        else "known without an interval"
    )
    reasons = [
        "it divides each update by the client's rate; the rates of this audit are "
        f"{known}, and the rarest client gets the weight {1 / min(findings.known_rates):,.0f}"
    ]
    if never:
        reasons.append(
            f"the {never:,} clients that never took part have the upper end of their rate's "
            "interval, in case they appear"
        )
    if findings.pattern.family == "drifting":
        reasons.append("the rates drift, so the rates of this audit may not hold for the next run")
    remaining = _scaled_skew(findings, findings.objectives.others[2].weights)
    parameters = {"rates": findings.known_rates}
    return _advice(findings, "known-rates", parameters, reasons, findings.log.size, 2, remaining)


def _average_all(findings: Findings) -> Advice:
    skew = _scaled_skew(findings, findings.objectives.others[0].weights)
    reasons = [f"averaging over all clients weights each by its rate: L1 skew {skew:.2f}"]
    return _advice(findings, "fedavg", {"weights": "all"}, reasons, 0, 2, skew)


def _amplified(findings: Findings, inner: Advice) -> list[Advice]:
    listed = []
    for window in findings.windows:
        for factor in _FACTORS["amplified"]:
            reasons = [
                f"small local steps, amplified once in every P = {window} rounds, follow the mean "
                "over all clients that take part in these"
            ]
            parameters = {"period": window, "factor": factor, "inner": inner.settings}
            size = findings.dimension + inner.memory_floats
            listed.append(
                _advice(findings, "amplified", parameters, reasons, size, 2, inner.remaining)
            )
    return listed


def _amplified_scaffold(findings: Findings) -> list[Advice]:
    size = findings.table_floats + 2 * findings.dimension
    remaining = _scaled_skew(findings, findings.objectives.others[2].weights)
    return [
        _advice(
            findings,
            "amplified-scaffold",
            {"period": window, "factor": factor},
            [
                f"control variates over windows of P = {window} rounds cancel the bias of taking "
                "turns; only the unequal weights within a window remain"
            ],
            size,
            4,
            remaining,
        )
        for window in findings.windows
        for factor in _FACTORS["amplified-scaffold"]
    ]


def _scaffold(findings: Findings) -> Advice:
    reasons = [
        "control variates turn every local step towards the mean over all clients, present or not"
    ]
    size = findings.table_floats + 2 * findings.dimension
    remaining = _scaled_skew(findings, findings.objectives.others[2].weights)
    return _advice(findings, "scaffold", {}, reasons, size, 4, remaining)


def _mifa(findings: Findings) -> Advice:
    reasons = [
        "the latest update of every client has the weight 1 / N in every round, present or not",
        f"updates become up to {findings.coverage.longest_absence:,} rounds old, which requires "
        "correspondingly small steps",
    ]
    size = findings.table_floats + findings.dimension
    remaining = _scaled_skew(findings, findings.objectives.others[2].weights)
    return _advice(findings, "mifa", {}, reasons, size, 2, remaining)


def _fedlaavg(findings: Findings) -> Advice:
    advice = _mifa(findings)
    reasons = [
        "the latest gradients of every client have the weight 1 / N in every round; with a "
        "constant learning rate it is MIFA",
        *advice.reasons[1:],
    ]
    return replace(advice, algorithm="fedlaavg", reasons=reasons)


def _fedvarp(findings: Findings) -> Advice:
    reasons = [
        "stored updates remove the variance due to the choice of the cohort; unequal rates are "
        "corrected as far as clients' updates resemble their stored ones"
    ]
    size = findings.table_floats + findings.dimension
    remaining = _scaled_skew(findings, findings.objectives.others[2].weights)
    return _advice(findings, "fedvarp", {}, reasons, size, 2, remaining)


def _scaled_skew(findings: Findings, weights: Floats) -> float:
    """Return the L1 skew of these influences once losses are multiplied by N a_n."""
    wanted = findings.objectives.wanted
    scaled = weights * wanted
    return float(np.abs(scaled / max(float(scaled.sum()), 1e-300) - wanted).sum())


def _average_samples(log: ParticipationLog) -> Floats:
    """Return the influence of clients weighted by their samples, (N,)."""
    assert log.samples is not None
    counts = np.nan_to_num(log.samples)[log.clients]
    rounds = np.repeat(np.arange(log.length), log.cohorts)
    sums = np.bincount(rounds, counts, minlength=log.length)[rounds]
    shares = np.divide(counts, sums, out=np.zeros(len(counts)), where=sums > 0)
    weights = np.bincount(log.clients, shares, minlength=log.size)
    return weights / max(float(weights.sum()), 1e-300)


def _advice(
    findings: Findings,
    algorithm: str,
    parameters: dict[str, Any],
    reasons: Sequence[str],
    memory_floats: int,
    messages: int,
    remaining: float,
) -> Advice:
    heavy = memory_floats > 4 * (findings.log.size + findings.dimension)
    return Advice(
        algorithm=algorithm,
        parameters=parameters,
        reasons=list(reasons),
        memory="heavy" if heavy else "light",
        memory_floats=memory_floats,
        message_floats=messages * findings.dimension,
        remaining=remaining,
        objective=findings.objective,
        clients=findings.clients,
    )
