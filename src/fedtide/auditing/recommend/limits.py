"""What no weights can correct, and what the intervals leave out."""

from __future__ import annotations

from collections.abc import Sequence

from fedtide.auditing.log.participation_log import Ints, ParticipationLog
from fedtide.auditing.log.refusals import format_reasons
from fedtide.auditing.recommend.findings import Findings
from fedtide.auditing.statistics.churn import Churn
from fedtide.auditing.statistics.stages import AvailabilityBias, SelectionBias
from fedtide.auditing.statistics.unseen import UnseenClients

_LONG_MEMORY = 0.2
"""The probability of memory beyond the log above which its intervals have a warning."""
_NAMED = 3
"""The most clients that a sentence names."""


def list_limits(
    findings: Findings,
    selection: SelectionBias | None,
    availability: AvailabilityBias | None,
    churn: Churn,
    unseen: UnseenClients | None,
) -> list[str]:
    """Return what no weights can correct, and what the intervals leave out, in sentences."""
    log = findings.log
    limits = _describe_unused(log, len(findings.coverage.never), selection, availability)
    if unseen is not None and unseen.interval[0] > 0:
        limits.append(
            "clients that never came are missing from all numbers here; give the number of clients "
            "with clients= or --clients, or their names with roster= or --roster"
        )
    if len(churn.gone):
        limits.append(
            f"{_count(len(churn.gone), log.size)} stopped coming ({_name(churn.gone, log)}): until "
            "they return, weights cannot correct their share"
        )
    if once := int((log.counts == 1).sum()):
        limits.append(f"{_count(once, log.size)} took part only once, with a single update")
    is_drifting = findings.pattern.family == "drifting"
    if is_drifting:
        limits.append("the rates drift: results for this log may not hold for the next one")
    memory = findings.rates.dispersion.long_memory
    if findings.rates.intervals and memory > _LONG_MEMORY and not is_drifting:
        limits.append(
            f"participation may depend on rounds before the log (probability {memory:.0%}); if it "
            "does, the intervals are too narrow"
        )
    return limits


def _describe_unused(
    log: ParticipationLog,
    never: int,
    selection: SelectionBias | None,
    availability: AvailabilityBias | None,
) -> list[str]:
    """Return why clients were never used, as far as the log tells."""
    if not never:
        return []
    if selection is None:
        return [
            f"{_count(never, log.size)} never took part, and no method can learn from a client "
            "before it does; the log does not say who was available"
        ]
    limits = []
    if availability is not None and len(availability.never):
        limits.append(
            f"{_were(len(availability.never), log.size)} never available: out of reach of any "
            "method"
        )
    lost, refused = len(selection.lost), len(selection.refused)
    if availability is None and never > lost + refused:
        limits.append(
            f"{_were(never - lost - refused, log.size)} never selected; the log does not say who "
            "was available"
        )
    if left_out := len(selection.left_out):
        limits.append(
            f"{_unused(left_out, never)} been available: selection left them out, and another "
            "selection could reach them"
        )
    if lost:
        times = []
        if log.refusals is not None and log.selected is not None:
            times = _explain(log, selection.lost, "selected", log.selected.counts)
        limits.append(
            f"{_unused(lost, never)} been selected but never reported "
            f"({_name(selection.lost, log, times)})"
        )
    if refused and selection.reports is not None:
        times = _explain(log, selection.refused, "reported", selection.reports)
        limits.append(
            f"{_unused(refused, never)} reported, but every update was refused "
            f"({_name(selection.refused, log, times)})"
        )
    return limits


def _count(count: int, total: int) -> str:
    return f"{count:,} of {total:,} clients"


def _were(count: int, total: int) -> str:
    return f"{_count(count, total)} {'was' if count == 1 else 'were'}"


def _unused(count: int, never: int) -> str:
    """Return the beginning of a sentence on some of the clients that were never used."""
    if never == 1:
        return "the one client that was never used had"
    part = f"all {never:,}" if count == never else f"{count:,} of the {never:,}"
    return f"{part} clients that were never used had"


def _name(clients: Ints, log: ParticipationLog, details: Sequence[str] = ()) -> str:
    """Return the names of the first clients, each with its detail, and the number of the others."""
    shown = [log.show_name(n) for n in clients[:_NAMED]]
    if details:
        shown = [f"{name} {detail}" for name, detail in zip(shown, details, strict=True)]
    others = len(clients) - len(shown)
    separator = "; " if any(", " in name for name in shown) else ", "
    return separator.join(shown) + (f"{separator}and {others:,} more" if others else "")


def _explain(log: ParticipationLog, clients: Ints, stage: str, counts: Ints) -> list[str]:
    """Return how often the first of these clients reached a stage, and why they were not used."""
    texts = []
    for n in clients[:_NAMED].tolist():
        text = f"{stage} {counts[n]:,} time{'' if counts[n] == 1 else 's'}"
        reasons = {} if log.refusals is None else log.refusals.of_client(n)
        texts.append(f"{text}: {format_reasons(reasons)}" if reasons else text)
    return texts
