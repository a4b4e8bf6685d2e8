"""The methods that an audit advises: a table of conditions, methods and reasons.

It replaces a replay of the log on simulated losses, and is as good: docs/audit-methods.md has the
counts. docs/audit.md shows the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtide.auditing.recommend.advice import Advice
from fedtide.auditing.recommend.cohort_size import find_cohort_size
from fedtide.auditing.recommend.findings import Findings

_FACTOR = 1.5
"""Amplification: Amplified SCAFFOLD's authors take 1.5 (paper 002)."""


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Args:
        condition: under which the method is advised, in words.
        method: its `type` in an experiment file.
        reason: why, in words.
        holds: the condition.
    """

    condition: str
    method: str
    reason: str
    holds: Callable[[Findings], bool]


TABLE = (
    Row(
        "nothing speaks against averaging: no skew beyond chance, neither over the whole log nor "
        "in the last rounds, no swing, no turns",
        "fedavg",
        "averaging already trains for the wanted weights, and nothing costs less",
        lambda found: not found.objections,
    ),
    Row(
        "the objective swings; the server may keep an update of each client",
        "amplified-scaffold",
        "its control variates are means over whole windows, so they average over the swings, where "
        "SCAFFOLD's are those of the end of a client's turn",
        lambda found: found.swings and found.may_store and found.period is not None,
    ),
    Row(
        "clients take turns, and nothing else speaks against averaging; the server may keep an "
        "update of each client",
        "scaffold",
        "averaging may stay, as it is right over whole turns; but each round follows those whose "
        "turn it is, and control variates stand in for the others",
        lambda found: found.objections == ["turns"] and found.may_store,
    ),
    Row(
        "averaging is skewed, or the log cannot exclude it; the server may keep an update of each "
        "client",
        "scaffold",
        "its control variates turn every local step towards the mean over all clients, present or "
        "not",
        lambda found: found.may_store,
    ),
    Row(
        "the same, but clients cannot correct their local steps (they use Adam, or a program of "
        "their own)",
        "fedvarp",
        "the last updates of absent clients stand in for them, and clients train as they do when "
        "averaging",
        lambda found: found.may_store,
    ),
    Row(
        "nothing may be kept for each client but a number, or most clients come only once",
        "auto",
        "it keeps an account of the weight that each client is owed, which corrects unequal, "
        "changing and periodic rates, and there is nothing to tune but the learning rates",
        lambda found: True,
    ),
    Row(
        "weights must depend on participation alone, as with differential privacy",
        "fedau",
        "it estimates 1 / p_n during training, and its largest weight, to which noise is adapted, "
        "is the cutoff",
        lambda found: True,
    ),
    Row(
        "clients will be chosen as in this log, as many in each round, and rates do not drift",
        "known-rates",
        "it divides each update by the client's rate, so the weights are fixed from the first "
        "round on; where clients are chosen otherwise, use auto or fedau, which need no rates",
        lambda found: not found.pattern.drift.found,
    ),
)
"""From the best to the last. The first row of a method whose condition holds gives its reason."""


def recommend(findings: Findings) -> list[Advice]:
    """Return the methods whose condition holds, in the order of the table."""
    rows = dict[str, Row]()
    for row in TABLE:
        if row.holds(findings):
            rows.setdefault(row.method, row)
    return [_advise(row, findings) for row in rows.values()]


def _advise(row: Row, findings: Findings) -> Advice:
    names, size = findings.log.names.to_list(), findings.log.size
    stored, messages, needs = _price(row.method, findings)
    parameters = _choose_parameters(row.method, findings)
    facts = _describe_rates(findings) if row.method == "known-rates" else []
    by_samples = parameters.get("weights") == "data"
    return Advice(
        algorithm=row.method,
        parameters=parameters,
        reasons=[row.reason, *facts],
        needs=needs,
        memory="heavy" if row.method in ("amplified-scaffold", "scaffold", "fedvarp") else "light",
        memory_floats=stored,
        message_floats=messages * findings.dimension,
        objective="uniform" if by_samples else _choose_objective(findings),
        clients=size if names == list(range(size)) else tuple(map(str, names)),
        cohort=find_cohort_size(findings.log),
    )


def _choose_parameters(method: str, findings: Findings) -> dict[str, Any]:
    if method == "amplified-scaffold":
        return {"period": findings.period, "factor": _FACTOR}
    if method == "fedau":
        return {"cutoff": _private_cutoff(findings) if findings.private else findings.cutoff}
    if method == "known-rates":
        return {"rates": findings.known_rates}
    by_samples = method == "fedavg" and findings.wanted_source == "samples"
    return {"weights": "data"} if by_samples else {}


def _private_cutoff(findings: Findings) -> int:
    """Return twice the mean interval between a client's rounds, the best or nearly at any ε.

    docs/privacy-evidence.md has the measurement.
    """
    rates = findings.rates.estimate[findings.rates.estimate > 0]
    return max(1, round(2 / float(rates.mean())))


def _choose_objective(findings: Findings) -> str | tuple[float, ...]:
    """Return `objective:` of an experiment that trains for the wanted weights."""
    if findings.wanted_source == "roster":
        return tuple(float(f"{share:.6g}") for share in findings.objectives.wanted)
    return "samples" if findings.wanted_source == "samples" else "uniform"


def _price(method: str, findings: Findings) -> tuple[int, int, list[str]]:
    """Return the numbers stored beyond the model, the vectors that a client exchanges, and needs.

    The vectors are `Traits.message_vectors`, whose import would load PyTorch.
    """
    dimension, size, table = findings.dimension, findings.log.size, findings.table_floats
    if method in ("scaffold", "amplified-scaffold"):
        tables = 2 if method == "amplified-scaffold" else 1
        stored = tables * table + 2 * dimension
        again = findings.log.repeats / len(findings.log.clients)
        what = "a vector" if tables == 1 else "two vectors"
        needs = [
            f"the server keeps {what} of the model's size for each client",
            "clients receive a second such vector in each round, add it to every gradient, train "
            "with plain SGD, and need not keep anything between rounds",
            f"they come back: {again:.0%} of these updates are by clients seen before",
        ]
        return stored, 3, needs
    if method == "fedvarp":
        needs = [
            "the server keeps a vector of the model's size for each client",
            "clients come back; they train as they do when averaging",
        ]
        return table + dimension, 2, needs
    if method == "auto":
        needs = ["the server keeps two more models and a number for each client"]
        return size + 2 * dimension, 2, needs
    stored = {"fedau": 2 * size, "known-rates": size}.get(method, 0)
    return stored, 2, []


def _describe_rates(findings: Findings) -> list[str]:
    rates = findings.rates
    seen = rates.estimate > 0
    relative = (rates.high - rates.low)[seen] / (2 * 1.96 * rates.estimate[seen])
    known = (
        f"to within {np.minimum(relative, 1).mean():.0%} on average"
        if np.isfinite(relative).all()
        else "without an interval"
    )
    found = [
        f"the rates of this log are known {known}, and the rarest client gets the weight "
        f"{1 / min(findings.known_rates):,.0f}"
    ]
    if never := len(findings.coverage.never):
        found.append(
            f"clients that never took part ({never:,}) have the upper end of the rate's interval, "
            "in case they appear"
        )
    return found
