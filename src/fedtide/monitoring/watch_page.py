"""The page of a monitor: one self-contained HTML page that refreshes itself."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from fedtide.html_page import STYLE, render_template
from fedtide.monitoring.ledger_window import Ints
from fedtide.monitoring.monitor import Monitor
from fedtide.monitoring.status import (
    CLIENT_STATES,
    GONE,
    NEVER,
    PRESENT,
    Status,
)
from fedtide.monitoring.surroundings import Surroundings
from fedtide.participation.log.schema import REASONS, STAGES

_FOLDER = files("fedtide.monitoring")
_STYLE = _FOLDER.joinpath("watch.css").read_text(encoding="utf-8")
_SCRIPT = _FOLDER.joinpath("watch.js").read_text(encoding="utf-8")

_ROWS = 100  # of the table of clients
_BARS, _STRIP = 100, 60  # rounds in the chart, and in a client's row
_FEWEST_BARS = 30  # the chart has room for at least this many
_LISTED = 5  # names in a sentence
_STALLED = 10  # times the usual length of a round, after which a federation counts as stalled
_STALLED_SECONDS = 60.0
_FULL = 0.05  # the share of a disk that is free below which it counts as almost full
_SOON = 30 * 86_400.0  # seconds before a certificate expires that this is a warning
_MEASURES = 20  # figures that are shown at most
_SOURCES = {
    "server": "by the server",
    "evaluation": "by clients",
    "training": "of clients in training",
    "privacy": "the largest of a client so far",
}


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src {_hash(STYLE + _STYLE)}; script-src {_hash(_SCRIPT)}; "
    "connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
"""What a browser may run and load: the page's own style and script, and the page itself."""


def render_page(monitor: Monitor, find: str, now: float) -> str:
    """Return the HTML of the page.

    Args:
        monitor: of the federation.
        find: a part of the names of the clients that are shown; "": any.
        now: in seconds since 1970.
    """
    status, error, (read, ended) = monitor.status, monitor.error, monitor.progress
    lead = "No round has ended; this page waits."
    if ended:
        lead = f"The ledger is being read: {read:,} of {ended:,} rounds so far."
    content: dict[str, Any] = {"title": "No rounds yet", "lead": lead}
    if status is not None:
        content = _describe(status, find, now)
    warnings = [f"The ledger cannot be read: {error}"] if error else []
    warnings += _list_dangers(monitor.around, now)
    content["warnings"] = warnings + content.get("warnings", [])
    content["facts"] = _list_facts(status, monitor.around, now)
    return render_template(
        "fedtide.monitoring",
        "watch.html.jinja",
        style=_STYLE,
        script=_SCRIPT,
        status=status,
        find=find,
        **content,
    )


def _list_dangers(around: Surroundings, now: float) -> list[str]:
    """Return what will end the federation, or has ended it, as far as it is known."""
    lines = []
    if around.run.startswith("finished") or around.run in ("no run", "unknown"):
        lines.append(f"No run is under way: the SuperLink says {around.run!r}.")
    if around.share < _FULL:
        lines.append(f"The disk of the ledger is almost full: {around.free / 1e9:.1f} GB are free.")
    if around.expires - now < _SOON:
        lines.append(f"The certificate {_describe_expiry(around.expires, now)}.")
    return lines


def _list_facts(status: Status | None, around: Surroundings, now: float) -> list[list[str]]:
    """Return what is known of the run, the disk and the certificate, and what was measured."""
    facts = []
    if around.run:
        facts.append(["run", around.run, "", ""])
    for one in [] if status is None else status.newest[:_MEASURES]:
        label = f"{one.name}, {_SOURCES[one.source]}"
        span = f"{one.low:.4g} to {one.high:.4g}"
        facts.append([label, f"{one.value:.4g}", f"{one.round:,}", span])
    if not np.isnan(around.free):
        free = f"{around.free / 1e9:.1f} GB free ({around.share:.0%})"
        facts.append(["disk of the ledger", free, "", ""])
    if not np.isnan(around.expires):
        facts.append(["certificate", _describe_expiry(around.expires, now), "", ""])
    return facts


def _describe_expiry(expires: float, now: float) -> str:
    if expires < now:
        return f"has expired {format_duration(now - expires)} ago"
    return f"expires in {format_duration(expires - now)}"


def _describe(status: Status, find: str, now: float) -> dict[str, Any]:
    matching, chosen = _choose_clients(status, find)
    return {
        "title": status.federation,
        "lead": _describe_rounds(status, now),
        "warnings": _list_warnings(status, now),
        "tiles": _list_tiles(status),
        "chart": _draw_chart(status),
        "explanation": _explain(status),
        "shown": f"{len(chosen):,} of {matching:,} clients" if len(chosen) < matching else "",
        "strip_rounds": min(_STRIP, len(status.rounds)),
        "rows": _list_rows(status, chosen, now),
        "reasons": _list_reasons(status),
    }


def _describe_rounds(status: Status, now: float) -> str:
    count = status.counts.ended
    ended = "1 round has ended" if count == 1 else f"{count:,} rounds have ended"
    text = f"{ended}, the last one {format_duration(now - status.last.time)} ago"
    if np.isnan(status.round_seconds):
        return f"{text}."
    return f"{text}; a round takes {format_duration(status.round_seconds)}."


def _list_warnings(status: Status, now: float) -> list[str]:
    lines = []
    age = now - status.last.time
    if age > max(_STALLED * status.round_seconds, _STALLED_SECONDS):
        lines.append(
            f"No round has ended for {format_duration(age)}: the federation has stalled, or has "
            "ended."
        )
    gone = np.flatnonzero(status.states == GONE)
    if len(gone):
        names = _list_names([status.names[n] for n in gone])
        lines.append(f"Silent for longer than their habits explain: {names}.")
    if status.announced is not None and len(status.names) > status.announced:
        lines.append(
            f"{len(status.names):,} clients have come, more than the {status.announced:,} "
            f"that were expected: fair shares are 1 / {len(status.names):,}."
        )
    return lines


def _list_tiles(status: Status) -> list[tuple[str, str]]:
    there, selected, _, used = status.last.count_stages().tolist()
    tiles = [
        (f"{there:,}", f"of {len(status.names):,} clients there in the last round"),
        (f"{used:,}", f"updates used, of {selected:,} clients that were asked in it"),
    ]
    if status.objective is not None:
        (low, high), skew = status.objective.interval, status.objective.skew
        text = f"L1 skew of the last {len(status.rounds):,} rounds (0 fair, at most 2)"
        if np.isnan(low):
            tiles.append((f"{skew.observed:.2f}", f"{text}, chance included"))
        else:
            text += f", chance deducted; 95% interval: {low:.2f} to {high:.2f}"
            tiles.append((f"{skew.corrected:.2f}", text))
    states = status.count_states()
    tiles.append((f"{states['gone']:,}", "clients gone"))
    return tiles


def _explain(status: Status) -> str:
    text = (
        f"Figures are of the last {len(status.rounds):,} rounds, refusals of all. Times its share: "
        "the client's influence under plain averaging, over its fair share; methods such as FedAU "
        "correct it. Weight in steps: the mean factor with which its updates entered the model's "
        "steps; norm: the median of theirs. Rate: how often an update of the client is used"
    )
    if status.rates is None:
        return f"{text}; known after two rounds."
    if status.rates.reason is not None:
        return f"{text}; without an interval, as {status.rates.reason}."
    return f"{text}, with a 95% interval."


def _draw_chart(status: Status) -> dict[str, Any]:
    rounds = status.rounds[-_BARS:]
    counts = np.array([one.count_stages() for one in rounds])
    most = max(int(counts[:, 0].max()), 1)
    bars = []
    for x, (one, reached) in enumerate(zip(rounds, counts.tolist(), strict=True)):
        parts = []
        for stage in reversed(range(len(STAGES))):
            above = reached[stage + 1] if stage + 1 < len(STAGES) else 0
            if reached[stage] > above:
                top, bottom = 100 * reached[stage] / most, 100 * above / most
                height = round(top - bottom, 2)
                parts.append({"stage": stage, "y": round(100 - top, 2), "height": height})
        words = ", ".join(f"{n:,} {name}" for name, n in zip(STAGES, reached, strict=True))
        bars.append({"x": x, "title": f"round {one.number:,}: {words}", "parts": parts})
    ends = rounds[0].number, rounds[-1].number
    return {
        "width": max(len(bars), _FEWEST_BARS),
        "bars": bars,
        "most": most,
        "first": ends[0],
        "last": ends[1],
    }


def _choose_clients(status: Status, find: str) -> tuple[int, Ints]:
    """Return how many clients match, and those that are shown: gone ones first, then by name."""
    part, names = find.casefold(), status.names
    matching = [n for n in status.by_name if names[n] and part in names[n].casefold()]
    matching.sort(key=lambda n: status.states[n] != GONE)
    return len(matching), np.array(matching[:_ROWS], dtype=np.int64)


def _list_rows(status: Status, chosen: Ints, now: float) -> list[dict[str, Any]]:
    rounds = status.rounds[-_STRIP:]
    table = np.full((len(chosen), len(rounds)), -1)
    stages = np.full(len(status.names), -1)
    for column, one in enumerate(rounds):
        stages[one.clients] = one.stages
        table[:, column] = stages[chosen]
        stages[one.clients] = -1
    ratios, unused = status.ratios, status.totals.unused
    return [
        {
            "name": status.names[n],
            "state": CLIENT_STATES[status.states[n]],
            "strip": _draw_strip(line),
            "strip_label": f"there in {int((line >= 0).sum())} of {len(line)} rounds",
            "ratio": "–" if np.isnan(ratios[n]) else f"{ratios[n]:.2f}",
            "weight": _format_figure(status.step_weights[n]),
            "norm": _format_figure(status.norms[n]),
            "rate": _format_rate(status, n),
            "absence": _format_absence(status, n, now),
            "unused": f"{unused[n]:,}" if unused[n] else "",
        }
        for n, line in zip(chosen.tolist(), table, strict=True)
    ]


def _draw_strip(stages: Ints) -> list[dict[str, int]]:
    """Return the runs of rounds with the same stage, except where the client was not seen."""
    bounds = np.flatnonzero(np.diff(stages, prepend=-2, append=-2))
    runs = zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    return [{"stage": int(stages[a]), "x": a, "width": b - a} for a, b in runs if stages[a] >= 0]


def _list_reasons(status: Status) -> list[tuple[str, str]]:
    """Return why updates were not used, and how often in all rounds."""
    return [(REASONS.get(one, one), f"{n:,}") for one, n in status.counts.reasons.most_common()]


def _format_figure(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.3g}"


def _format_rate(status: Status, n: int) -> str:
    if status.rates is None:
        return "–"
    rate, low, high = (one[n] for one in (status.expected, status.rates.low, status.rates.high))
    known = rate > 0 and not np.isnan(low)
    return f"{rate:.0%} ({low:.0%} to {high:.0%})" if known else f"{rate:.0%}"


def _format_absence(status: Status, n: int, now: float) -> str:
    if status.states[n] == NEVER:
        return "never"
    if status.states[n] == PRESENT:
        return "last round"
    rounds, seen = int(status.absences[n]), status.totals.seen_at[n]
    text = "1 round" if rounds == 1 else f"{rounds:,} rounds"
    return text if np.isnan(seen) else f"{text}, {format_duration(now - seen)}"


def _list_names(names: Sequence[str]) -> str:
    listed = ", ".join(names[:_LISTED])
    return listed if len(names) <= _LISTED else f"{listed} and {len(names) - _LISTED:,} more"


def format_duration(seconds: float) -> str:
    """Return a duration in words, with two digits.

    >>> [format_duration(s) for s in (0.4, 59, 61, 5400, 90_000)]
    ['0 s', '59 s', '1 min', '1.5 h', '25 h']
    """
    if seconds < 60:
        return f"{max(seconds, 0):.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    if hours < 48:
        return f"{hours:.1f} h" if hours < 10 else f"{hours:.0f} h"
    return f"{hours / 24:.0f} days"
