"""The audit as a JSON document."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.auditing.log.participation_log import Ints
from fedtide.auditing.output.limits import list_limits
from fedtide.auditing.output.sentences import list_lines
from fedtide.auditing.recommend.advice import Advice
from fedtide.auditing.recommend.findings import Findings
from fedtide.auditing.statistics.forgetting import Forgetting
from fedtide.auditing.statistics.group_influence import GroupInfluence
from fedtide.auditing.statistics.influence import EffectiveObjective
from fedtide.auditing.statistics.stages import StageShift
from fedtide.auditing.statistics.unseen import UnseenClients


def build_document(audit: Findings) -> dict[str, Any]:
    """Return the audit as nested dicts, lists, numbers and strings.

    Numbers that do not exist, such as the ends of an unknown interval, are None.
    """
    document: dict[str, Any] = _replace_nonfinite(_build(audit))
    return document


def _build(audit: Findings) -> dict[str, Any]:
    names = [str(name) for name in audit.log.names.to_list()]
    never = [names[n] for n in audit.coverage.never]
    return {
        "summary": list_lines(audit),
        "clients": audit.log.size,
        "rounds": audit.log.length,
        "first_round": audit.log.first_round,
        "never_seen": len(never),
        "never_seen_clients": never,
        "unseen": _build_unseen(audit.unseen),
        "coverage": _build_coverage(audit),
        "churn": _build_churn(audit, names),
        "rates": _build_rates(audit, names),
        "rate_variation": audit.rates.variation,
        "clients_of_half_of_updates": audit.rates.clients_for_half,
        "objective": _build_objective(audit, names),
        "forgetting": _build_forgetting(audit.forgetting),
        "availability": _build_availability(audit, names),
        "selection": _build_selection(audit, names),
        "refusals": _build_refusals(audit, names),
        "groups": {group.grouping: _build_group(group) for group in audit.groups},
        "pattern": _build_pattern(audit),
        "regularity": [
            {"period": int(p), "value": float(v)}
            for p, v in zip(audit.regularity.periods, audit.regularity.values, strict=True)
        ],
        "regularity_floor": audit.regularity.floor,
        "settings": {
            "cutoff": audit.cutoff,
            "period": audit.regularity.period,
            "learning_rates": audit.learning_rates,
        },
        "advice": [_build_advice(one) for one in audit.advice],
        "left_out": [
            {"algorithm": one.algorithm, "parameters": one.parameters} for one in audit.left_out
        ],
        "limits": list_limits(audit),
        "notes": list(audit.log.notes),
    }


def _build_coverage(audit: Findings) -> dict[str, Any]:
    coverage = audit.coverage
    return {
        "longest_absence": coverage.longest_absence,
        "typical_absence": coverage.typical_absence,
        "empty_rounds": coverage.empty_rounds,
        "cohort": coverage.cohort,
    }


def _build_unseen(unseen: UnseenClients | None) -> dict[str, Any] | None:
    if unseen is None:
        return None
    return {
        "at_least": unseen.interval[0],
        "estimate": unseen.estimate if math.isfinite(unseen.interval[1]) else None,
        "interval": list(unseen.interval),
        "assumptions": {
            "at_least": "clients come independently of each other and of their past",
            "interval": "the same, and clients that came at most twice come equally often",
        },
        "seen_once": unseen.once,
        "seen_twice": unseen.twice,
        "coverage": unseen.coverage,
        "coverage_interval": list(unseen.coverage_interval),
        "rounds_of_a_visit": unseen.link,
    }


def _build_churn(audit: Findings, names: list[str]) -> dict[str, Any]:
    churn, start = audit.churn, audit.log.first_round

    def describe(clients: Ints) -> dict[str, Any]:
        return {
            names[n]: {
                "first_round": int(churn.first[n]) + start,
                "last_round": int(churn.last[n]) + start,
                "rate": [float(churn.low[n]), float(churn.rates[n]), float(churn.high[n])],
            }
            for n in clients
        }

    return {
        "tested": churn.tested,
        "gone": describe(churn.gone),
        "late": describe(churn.late),
    }


def _build_availability(audit: Findings, names: list[str]) -> dict[str, Any] | None:
    availability = audit.availability
    if availability is None:
        return None
    return {
        **_build_skew(availability.objective),
        "weights": _by_name(names, availability.objective.weights),
        "rounds": _by_name(names, availability.counts),
        "never_available": [names[n] for n in availability.never],
        **_build_weighting(audit, availability.weighted),
    }


def _build_selection(audit: Findings, names: list[str]) -> dict[str, Any] | None:
    selection = audit.selection
    if selection is None:
        return None
    refused = {
        names[n]: None if selection.reports is None else int(selection.reports[n])
        for n in selection.refused
    }
    return {
        "selected": selection.objective and _build_skew(selection.objective),
        "selecting": _build_shift(selection.selecting),
        "dropping": _build_shift(selection.dropping),
        "left_out": [names[n] for n in selection.left_out],
        "lost": [names[n] for n in selection.lost],
        "refused": refused,
        **_build_weighting(audit, selection.weighted),
    }


def _build_weighting(audit: Findings, by_samples: bool) -> dict[str, bool]:
    """Return how the clients of a stage are weighted; nothing if the log has no weights."""
    return {} if audit.objectives.given is None else {"weighted_by_samples": by_samples}


def _build_refusals(audit: Findings, names: list[str]) -> dict[str, Any] | None:
    """Return in how many rounds clients were left out, by reason; None: the log gives none."""
    refusals = audit.log.refusals
    if refusals is None:
        return None
    clients = {names[n]: refusals.of_client(n) for n in np.unique(refusals.clients).tolist()}
    return {"total": refusals.total(), "clients": clients}


def _build_shift(shift: StageShift | None) -> dict[str, Any] | None:
    if shift is None:
        return None
    return {
        "distance": shift.distance.observed,
        "distance_without_chance": shift.distance.corrected,
        "distance_interval": list(shift.distance.interval),
        "p_value_of_uniform_drawing": shift.p_value,
    }


def _build_rates(audit: Findings, names: list[str]) -> dict[str, list[float]]:
    rates = audit.rates
    return _by_name(names, np.stack([rates.low, rates.estimate, rates.high], axis=1))


def _build_objective(audit: Findings, names: list[str]) -> dict[str, Any]:
    objectives = audit.objectives
    in_force = objectives.in_force
    document: dict[str, Any] = {
        "weights": _by_name(names, in_force.weights),
        "wanted_from": audit.wanted_source,
        "total_variation": in_force.total_variation,
        "favours_clients": audit.favours_clients,
        **_build_skew(in_force),
        "now": _build_now(audit, names),
        "given": None,
    }
    if objectives.given is not None:
        for key, objective in (("given", objectives.given), ("plain", objectives.plain)):
            document[key] = {
                "weights": _by_name(names, objective.weights),
                **_build_skew(objective),
            }
    return document


def _build_now(audit: Findings, names: list[str]) -> dict[str, Any]:
    recent = audit.objectives.recent
    assert recent is not None
    last_rounds = (recent.ends - 1 + audit.log.first_round).tolist()
    series = zip(last_rounds, recent.skews.tolist(), recent.chance.tolist(), strict=True)
    return {
        "rounds": recent.window,
        "weights": _by_name(names, recent.objective.weights),
        **_build_skew(recent.objective),
        "series": [
            {"last_round": t, "l1_skew": skew, "by_chance": chance} for t, skew, chance in series
        ],
    }


def _build_forgetting(forgetting: Forgetting) -> dict[str, Any]:
    columns = (forgetting.windows, forgetting.low, forgetting.estimates, forgetting.high)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {
        "estimate": forgetting.estimate,
        "interval": list(forgetting.interval),
        "window": forgetting.window,
        "halving_window": forgetting.halving_window,
        "p_value": forgetting.p_value,
        "windows": [{"rounds": w, "estimate": e, "interval": [a, b]} for w, a, e, b in rows],
    }


def _build_skew(objective: EffectiveObjective) -> dict[str, Any]:
    return {
        "l1_skew": objective.skew.observed,
        "l1_skew_without_chance": objective.skew.corrected,
        "l1_skew_interval": list(objective.skew.interval),
    }


def _build_group(group: GroupInfluence) -> dict[str, Any]:
    return {
        name: {
            "clients": int(group.sizes[g]),
            "never_seen": int(group.never[g]),
            "longest_absence": int(group.absence[g]),
            "rate": float(group.rates[g]),
            "weight": float(group.weights[g]),
            "weight_interval": [float(group.low[g]), float(group.high[g])],
            "times_its_share": float(group.ratios[g]) if group.wanted[g] > 0 else None,
        }
        for g, name in enumerate(group.names)
    }


def _build_pattern(audit: Findings) -> dict[str, Any]:
    pattern = audit.pattern
    return {
        "family": pattern.family,
        "reason": pattern.reason,
        "period": pattern.period,
        "period_p_value": None if pattern.cycle is None else pattern.cycle.p_value,
        "idle_rounds_left_out": pattern.idle_rounds,
        "drift": asdict(pattern.drift),
        "memory": asdict(pattern.memory),
    }


def _build_advice(advice: Advice) -> dict[str, Any]:
    return {
        "algorithm": advice.algorithm,
        "parameters": advice.parameters,
        "reasons": advice.reasons,
        "needs": advice.needs,
        "memory": advice.memory,
        "memory_floats": advice.memory_floats,
        "message_floats": advice.message_floats,
        "experiment": advice.experiment,
        "strategy": advice.strategy,
    }


def _by_name(names: list[str], values: NDArray[Any]) -> dict[str, Any]:
    """Return the value of each client, (N,) or (N, k), by its name."""
    return dict(zip(names, values.tolist(), strict=True))


def _replace_nonfinite(value: Any) -> Any:
    """Return nested data in which None stands for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: _replace_nonfinite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nonfinite(inner) for inner in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
