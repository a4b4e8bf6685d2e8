"""What a log leaves open, and what no method corrects: the last sentences of an audit."""

from __future__ import annotations

import numpy as np

from fedtide.auditing.log.participation_log import Ints
from fedtide.auditing.log.refusals import format_reasons
from fedtide.auditing.output.formatting import list_some
from fedtide.auditing.recommend.findings import Findings
from fedtide.auditing.statistics.unseen import UnseenClients
from fedtide.errors import quantify

_LONG_MEMORY = 0.2
"""The probability of memory beyond the log above which its intervals have a warning."""
_NAMED = 3
"""The most clients that a sentence names."""


def list_limits(audit: Findings) -> list[str]:
    """Return what no weights can correct, and what the log and its intervals leave out."""
    churn, unseen = audit.churn, audit.unseen
    limits = _list_unused(audit)
    if unseen is not None:
        limits.append(describe_unseen(unseen))
    if len(churn.gone):
        limits.append(
            f"whether clients that stopped coming return ({_name(audit, churn.gone)}): until then, "
            "no weights correct their share"
        )
    memory = audit.rates.dispersion.long_memory
    drifting = audit.pattern.drift.found
    if audit.rates.intervals and memory > _LONG_MEMORY and not drifting:
        limits.append(
            f"whether participation depends on rounds before the log (probability {memory:.0%}); "
            "if so, the intervals are too narrow"
        )
    limits.append("whether rare clients have other data: only then a skew does harm")
    return limits


def _list_unused(audit: Findings) -> list[str]:
    """Return why clients were never used, as far as the log tells."""
    log, selection, availability = audit.log, audit.selection, audit.availability
    never = audit.coverage.never
    if selection is None:
        reason = f"why {quantify(len(never), 'client')} never took part ({_name(audit, never)})"
        return [reason] if len(never) else []
    lost, refused = selection.lost, selection.refused
    groups: list[tuple[Ints, str, Ints | None]]
    if availability is None:
        unasked = np.setdiff1d(never, np.union1d(lost, refused))
        groups = [(unasked, "never selected, and perhaps never available", None)]
    else:
        groups = [
            (availability.never, "never available, so out of reach", None),
            (selection.left_out, "available, but left out by the selection", None),
        ]
    asked = None if log.selected is None else log.selected.counts
    groups += [
        (lost, "selected, but never reported", asked),
        (refused, "reported, but every update was refused", selection.reports),
    ]
    return [
        f"{what}: {quantify(len(clients), 'client')} ({_name(audit, clients, counts)})"
        for clients, what, counts in groups
        if len(clients)
    ]


def _name(audit: Findings, clients: Ints, counts: Ints | None = None) -> str:
    """Return the first clients, each with its number of rounds and reasons if there are counts."""
    shown, refusals = [], audit.log.refusals
    for n in clients[:_NAMED].tolist():
        text = audit.log.show_name(n)
        if counts is not None:
            reasons = format_reasons(refusals.of_client(n)) if refusals else ""
            text += f" {quantify(int(counts[n]), 'time')}{reasons and f': {reasons}'}"
        shown.append(text)
    return list_some(shown, _NAMED, len(clients))


def describe_unseen(unseen: UnseenClients) -> str:
    """Return the estimated number of clients that the log has not seen."""
    low, high = unseen.interval
    if low == 0:
        reach = f": up to {high:,.0f} (95%)" if np.isfinite(high) else ""
        return f"whether there are clients that the log does not show{reach}"
    return (
        f"how many clients never came: at least {low:,.0f} (97.5%) if clients come independently; "
        f"{unseen.estimate:,.0f} (95%: {low:,.0f} to {high:,.0f}) if rare ones also come equally "
        "often. Give their number with --clients, or a table with --roster"
    )
