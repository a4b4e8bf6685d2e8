"""The methods that may be recommended for a log, with settings, reasons and costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.auditing.recommend.advice import Advice
from fedtide.auditing.recommend.findings import Findings
from fedtide.auditing.statistics.auto_weights import MOST_ROUNDS, average_auto_weights
from fedtide.auditing.statistics.influence import (
    EffectiveObjective,
    share_entries,
    share_samples,
)
from fedtide.errors import quantify

_NOTHING_AGAINST = (
    "nothing in this log speaks against it: its objective shows no skew both more than small "
    "and beyond chance, not even in the last rounds, and the objective in force does not swing"
)
_SELECTION_OF_RATES = (
    "the rates hold as long as clients are chosen as in this log, as many in each round; otherwise "
    "use auto or fedau, which need no rates"
)
_HEAVY = ("scaffold", "amplified-scaffold", "fedvarp", "mifa", "fedlaavg")
"""Methods that store an update of every client."""
_FACTORS = {"amplified": (2.0, 1.5), "amplified-scaffold": (1.5,)}
"""Amplification factors that are tried, the usual one first."""


def list_variants(findings: Findings) -> list[list[Advice]]:
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
    mifa = _mifa(findings)
    heavy = [_scaffold(findings), _fedvarp(findings), mifa, _fedlaavg(mifa)]
    listed = [
        *averages,
        [_auto(findings)],
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
    remaining = findings.objectives.scaled_skew(weights)
    if findings.wanted_source == "equal":
        reasons = _judge_objective(findings, findings.objectives.plain)
    else:
        reasons = [
            "the loss of each client is multiplied by N times its wanted weight; averaging over "
            f"the cohort then leaves an L1 skew of {remaining:.2f} on this log",
            *findings.swing,
        ]
    return _advice(findings, "fedavg", {}, reasons, 0, remaining=remaining)


def _data_weighted(findings: Findings) -> Advice:
    """Return averaging weighted by samples, whose losses are not multiplied."""
    remaining = float(np.abs(_average_samples(findings.log) - findings.objectives.wanted).sum())
    reasons = [
        "it weights each update by the client's samples, the default of Flower's FedAvg: L1 skew "
        f"{remaining:.2f} on this log"
    ]
    if findings.wanted_source == "samples":
        reasons += _judge_objective(findings, findings.objectives.in_force)
    advice = _advice(findings, "fedavg", {"weights": "data"}, reasons, 0, remaining=remaining)
    return replace(advice, objective="uniform")


def _auto(findings: Findings) -> Advice:
    length, longest = findings.log.length, MOST_ROUNDS
    where = "on this log" if length <= longest else f"in the last {longest:,} rounds"
    skew = findings.objectives.scaled_skew(average_auto_weights(findings.log))
    reasons = [
        "it keeps an account of the weight that each client is owed, so it has no setting besides "
        f"the learning rates; {where} its weights leave an L1 skew of {skew:.2f}",
        "in training on quadratics and digits under 27 laws of participation, it was nearly "
        "always the best of the methods that do not store an update of every client "
        "(docs/audit-methods.md); the replay leaves out that it scales the coordinates and that "
        "its output is a mean",
        "a network did better with FedAdam where a third of the clients never took part "
        "(docs/auto.md)",
    ]
    size = findings.log.size + 2 * findings.dimension
    return _advice(findings, "auto", {}, reasons, size, remaining=skew)


def _fedau(findings: Findings) -> Advice:
    skew = findings.objectives.scaled_skew(findings.objectives.fedau.weights)
    reasons = [
        "it estimates 1 / p_n during training; on this log its weights leave an L1 skew of "
        f"{skew:.2f}, including the start-up phase",
        f"K = {findings.cutoff} minimises bias² + variance of its weights on this log",
    ]
    size = 2 * findings.log.size
    return _advice(findings, "fedau", {"cutoff": findings.cutoff}, reasons, size, remaining=skew)


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
            f"{quantify(never, 'client')} that never took part {'has' if never == 1 else 'have'} "
            "the upper end of the rate's interval, in case they appear"
        )
    reasons.append(_SELECTION_OF_RATES)
    if findings.pattern.family == "drifting":
        reasons.append("the rates drift, so the rates of this audit may not hold for the next run")
    parameters = {"rates": findings.known_rates}
    return _advice(findings, "known-rates", parameters, reasons, findings.log.size)


def _average_all(findings: Findings) -> Advice:
    skew = findings.objectives.scaled_skew(findings.objectives.average_all.weights)
    reasons = [f"averaging over all clients weights each by its rate: L1 skew {skew:.2f}"]
    return _advice(findings, "fedavg", {"weights": "all"}, reasons, 0, remaining=skew)


def _amplified(findings: Findings, inner: Advice) -> list[Advice]:
    return [
        _advice(
            findings,
            "amplified",
            {"period": window, "factor": factor, "inner": inner.settings},
            [
                f"small local steps, amplified once in every P = {window} rounds, follow the mean "
                "over all clients that take part in these",
                *([_SELECTION_OF_RATES] if inner.algorithm == "known-rates" else []),
            ],
            findings.dimension + inner.memory_floats,
            remaining=inner.remaining,
        )
        for window in findings.windows
        for factor in _FACTORS["amplified"]
    ]


def _amplified_scaffold(findings: Findings) -> list[Advice]:
    size = 2 * findings.table_floats + 2 * findings.dimension  # control variates, and the window's
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
            messages=3,
        )
        for window in findings.windows
        for factor in _FACTORS["amplified-scaffold"]
    ]


def _scaffold(findings: Findings) -> Advice:
    reasons = [
        "control variates turn every local step towards the mean over all clients, present or not"
    ]
    size = findings.table_floats + 2 * findings.dimension
    return _advice(findings, "scaffold", {}, reasons, size, messages=3)


def _mifa(findings: Findings) -> Advice:
    reasons = [
        "the latest update of every client has the weight 1 / N in every round, present or not",
        f"updates become up to {findings.coverage.longest_absence:,} rounds old, which requires "
        "correspondingly small steps",
    ]
    size = findings.table_floats + findings.dimension
    return _advice(findings, "mifa", {}, reasons, size)


def _fedlaavg(mifa: Advice) -> Advice:
    reasons = [
        "the latest gradients of every client have the weight 1 / N in every round; with a "
        "constant learning rate it is MIFA",
        *mifa.reasons[1:],
    ]
    return replace(mifa, algorithm="fedlaavg", reasons=reasons)


def _fedvarp(findings: Findings) -> Advice:
    reasons = [
        "stored updates remove the variance due to the choice of the cohort; unequal rates are "
        "corrected as far as clients' updates resemble their stored ones"
    ]
    size = findings.table_floats + findings.dimension
    return _advice(findings, "fedvarp", {}, reasons, size)


def _judge_objective(findings: Findings, objective: EffectiveObjective) -> list[str]:
    """Return what speaks against a way of averaging, or that nothing does, in sentences."""
    never = len(findings.coverage.never)
    missing = (
        f"no method gives weight to clients that never took part ({never:,} here)"
        if objective.correctable is not objective.skew
        else ""
    )
    if reasons := findings.objections(objective):
        return [*reasons, missing] if missing else reasons
    return [f"{missing}; beyond that, {_NOTHING_AGAINST}" if missing else _NOTHING_AGAINST]


def _average_samples(log: ParticipationLog) -> Floats:
    """Return the influence of clients weighted by their samples, (N,)."""
    assert log.samples is not None
    shares = share_samples(log, np.nan_to_num(log.samples))
    return share_entries(log.clients, shares, log.size)


def _advice(
    findings: Findings,
    algorithm: str,
    parameters: dict[str, Any],
    reasons: Sequence[str],
    memory_floats: int,
    messages: int = 2,
    remaining: float | None = None,
) -> Advice:
    """Return the advice.

    Args:
        findings: the audit.
        algorithm: its `type` in an experiment file.
        parameters: its parameters there.
        reasons: for its rank.
        memory_floats: numbers stored beyond the model.
        messages: vectors exchanged per participant; `Traits.message_vectors`, whose import would
            load PyTorch.
        remaining: the L1 skew that is left; None: that of known rates.
    """
    if remaining is None:
        remaining = findings.objectives.scaled_skew(findings.objectives.known_rates.weights)
    return Advice(
        algorithm=algorithm,
        parameters=parameters,
        reasons=list(reasons),
        memory="heavy" if algorithm in _HEAVY else "light",
        memory_floats=memory_floats,
        message_floats=messages * findings.dimension,
        remaining=remaining,
        objective=findings.objective,
        clients=findings.clients,
        cohort=findings.cohort,
    )
