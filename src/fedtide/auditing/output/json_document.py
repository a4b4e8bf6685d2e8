"""The audit as plain data: the content of its JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedtide.auditing.recommend.ranking import Advice
from fedtide.auditing.statistics.influence import GroupShares, Objective

if TYPE_CHECKING:
    from fedtide.auditing.api import Audit


def plain_audit(audit: Audit) -> dict[str, Any]:
    """Return the audit as nested dicts, lists, numbers and strings."""
    names = [str(name) for name in audit.log.names.to_list()]
    never = [names[n] for n in audit.coverage.never]
    return {
        "clients": audit.log.size,
        "rounds": audit.log.length,
        "first_round": audit.log.first,
        "never_seen": len(never),
        "never_seen_clients": never,
        "coverage": _coverage(audit),
        "rates": _rates(audit, names),
        "rate_variation": audit.rates.variation,
        "clients_of_half_of_updates": audit.rates.half,
        "objective": _objective(audit, names),
        "groups": {group.grouping: _group(group) for group in audit.groups},
        "pattern": _pattern(audit, names),
        "regularity": [
            {"period": int(p), "value": float(v)}
            for p, v in zip(audit.regularity.periods, audit.regularity.values, strict=True)
        ],
        "regularity_floor": audit.regularity.floor,
        "settings": {
            "cutoff": audit.cutoffs.best,
            "period": audit.regularity.period,
            "learning_rates": audit.learning_rates,
        },
        "advice": [_advice(one) for one in audit.advice],
        "limits": audit.limits,
    }


def _coverage(audit: Audit) -> dict[str, Any]:
    coverage = audit.coverage
    return {
        "longest_absence": coverage.longest_absence,
        "typical_absence": coverage.typical_absence,
        "empty_rounds": coverage.empty_rounds,
        "cohort": coverage.cohort,
    }


def _rates(audit: Audit, names: list[str]) -> dict[str, list[float]]:
    table = np.stack([audit.rates.low, audit.rates.estimate, audit.rates.high], axis=1)
    return dict(zip(names, table.tolist(), strict=True))


def _objective(audit: Audit, names: list[str]) -> dict[str, Any]:
    objectives = audit.objectives
    plain, given = objectives.plain, objectives.given
    return {
        "weights": dict(zip(names, plain.weights.tolist(), strict=True)),
        "total_variation": plain.total_variation,
        **_skew(plain),
        "others": {other.method: _skew(other) for other in objectives.others},
        "given": given
        and {
            "weights": dict(zip(names, given.weights.tolist(), strict=True)),
            **_skew(given),
        },
    }


def _skew(objective: Objective) -> dict[str, Any]:
    return {
        "l1_skew": objective.skew.found,
        "l1_skew_without_chance": objective.skew.likely,
        "l1_skew_interval": list(objective.skew.interval),
    }


def _group(group: GroupShares) -> dict[str, Any]:
    return {
        name: {
            "clients": int(group.sizes[g]),
            "never_seen": int(group.never[g]),
            "longest_absence": int(group.absence[g]),
            "pattern": group.patterns[g],
            "rate": float(group.rates[g]),
            "weight": float(group.weights[g]),
            "weight_interval": [float(group.low[g]), float(group.high[g])],
            "times_its_share": float(group.ratios[g]),
        }
        for g, name in enumerate(group.names)
    }


def _pattern(audit: Audit, names: list[str]) -> dict[str, Any]:
    pattern = audit.pattern
    return {
        "family": pattern.family,
        "confidence": pattern.confidence,
        "period": pattern.period,
        "parameters": pattern.parameters,
        "mixing_time": pattern.mixing_time,
        "evidence": [vars(one) for one in pattern.evidence],
        "clients": dict(zip(names, pattern.clients.tolist(), strict=True)),
    }


def _advice(advice: Advice) -> dict[str, Any]:
    simulated = None
    if advice.simulated is not None:
        simulated = {"distance": advice.simulated[0], "error": advice.simulated[1]}
    return {
        "algorithm": advice.algorithm,
        "parameters": advice.parameters,
        "reasons": advice.reasons,
        "memory": advice.memory,
        "memory_floats": advice.memory_floats,
        "message_floats": advice.message_floats,
        "remaining_l1_skew": advice.remaining,
        "simulated": simulated,
    }
