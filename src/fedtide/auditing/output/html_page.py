"""The audit as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from fedtide.atomic_io import write_text
from fedtide.auditing.api import Audit
from fedtide.auditing.log.refusals import format_reasons
from fedtide.auditing.output import audit_figures, formatting, text
from fedtide.html_page import render_template
from fedtide.validation import expand_home

_ROWS = 12


def write_page(audit: Audit, path: str | Path, privacy: Sequence[Sequence[str]] = ()) -> None:
    """Write the page atomically; an existing file is replaced.

    Args:
        audit: the result.
        path: of the file.
        privacy: the lines on each mechanism whose cost was asked for.

    Raises:
        InvalidInputError: the file cannot be written.
    """
    page = render_page(audit, privacy)
    write_text(expand_home(path), page, field="html", hint="choose another path")


def render_page(audit: Audit, privacy: Sequence[Sequence[str]] = ()) -> str:
    """Return the HTML of the page."""
    style = files("fedtide.auditing.output").joinpath("audit.css").read_text(encoding="utf-8")
    return render_template(
        "fedtide.auditing.output",
        "audit.html.jinja",
        "Whose model is this log training?",
        style,
        audit=audit,
        privacy=privacy,
        text=text,
        formatting=formatting,
        tiles=_list_tiles(audit),
        never=[audit.log.show_name(n) for n in audit.coverage.never[:_ROWS]],
        figures=audit_figures.draw_figures(audit),
        refusals=_list_refusals(audit),
        churn=_list_churn(audit),
        churn_total=len(np.union1d(audit.churn.gone, audit.churn.late)),
        over=_rank_clients(audit, over=True),
        under=_rank_clients(audit, over=False),
        averages=_list_averages(audit),
        scaled=text.has_unequal_shares(audit),
    )


def _list_tiles(audit: Audit) -> list[tuple[str, str]]:
    whole, now = audit.objectives.in_force, audit.objectives.now
    has_now = bool(text.describe_now(audit))  # else too few rounds say it
    return [
        (f"{whole.l1_skew:.2f}", "L1 skew (0 fair, at most 2)"),
        (f"{whole.total_variation:.0%}", "of the influence misplaced, whole log"),
        *([(f"{now.total_variation:.0%}", "misplaced in the last rounds")] if has_now else []),
        _tile_of_clients(audit),
        (audit.pattern.family, "pattern"),
        (audit.advice[0].algorithm, "recommended"),
    ]


def _tile_of_clients(audit: Audit) -> tuple[str, str]:
    if audit.unseen is None:
        return f"{len(audit.coverage.never):,}", f"of {audit.log.size:,} clients never took part"
    low, _ = audit.unseen.interval  # the upper end does not hold if rates differ
    if round(low) == 0:
        return f"{audit.log.size:,}", "clients in the log, which may not be all"
    return f"≥ {low:,.0f}", "clients never seen, if they come independently (97.5%)"


def _list_averages(audit: Audit) -> list[dict[str, Any]]:
    """Return the L1 skew of each way of averaging.

    If unequal weights are wanted, all ways but the one in use are judged as in the advice: with
    losses multiplied by N a_n, for which there is no interval.
    """
    objectives = audit.objectives
    unequal = text.has_unequal_shares(audit)
    without = ", without these weights" if text.has_own_weights(audit) else ""
    rows = []
    in_use = [objectives.plain, *([] if objectives.given is None else [objectives.given])]
    for one in in_use if unequal else [*in_use, *objectives.others]:
        name = formatting.format_averaging(one.method)
        rows.append(
            {
                "name": name if one is objectives.given else name + without,
                "l1_skew": one.l1_skew,
                "corrected": one.skew.corrected,
                "interval": formatting.format_range(*one.interval, ".3f"),
            }
        )
    if unequal:
        rows += [
            {
                "name": f"{formatting.format_averaging(one.method)}{without}, losses multiplied",
                "l1_skew": objectives.scaled_skew(one.weights),
                "corrected": np.nan,
                "interval": "–",
            }
            for one in (objectives.plain, *objectives.others)
        ]
    return rows


def _rank_clients(audit: Audit, over: bool) -> list[dict[str, Any]]:
    """Return the most over- or under-represented clients among those that took part."""
    wanted, ratios = audit.objectives.wanted, audit.objectives.ratios
    chosen = np.flatnonzero((audit.log.counts > 0) & (ratios > 1 if over else ratios < 1))
    keys = -ratios[chosen] if over else ratios[chosen]
    return [
        {
            "name": audit.log.show_name(n),
            "ratio": ratios[n],
            "interval": formatting.format_range(
                audit.objectives.low[n] / wanted[n], audit.objectives.high[n] / wanted[n]
            ),
            "rate": audit.rates.estimate[n],
            "pattern": audit.pattern.clients[n],
        }
        for n in chosen[np.argsort(keys, kind="stable")][:_ROWS]
    ]


def _list_refusals(audit: Audit) -> list[dict[str, Any]]:
    """Return the clients that were left out of most rounds for a known reason."""
    refusals = audit.log.refusals
    if refusals is None:
        return []
    reports = None if audit.selection is None else audit.selection.reports
    return [
        {
            "name": audit.log.show_name(n),
            "rounds": rounds,
            "reported": None if reports is None else reports[n],
            "used": audit.log.counts[n],
            "reasons": format_reasons(refusals.of_client(n)),
        }
        for n, rounds in refusals.rank_clients()[:_ROWS]
    ]


def _list_churn(audit: Audit) -> list[dict[str, Any]]:
    """Return the clients that left or joined, those with the smallest p-values first."""
    churn, states = audit.churn, audit.churn.states
    p_values = np.minimum(churn.gone_p_values, churn.late_p_values)
    chosen = np.union1d(churn.gone, churn.late)
    return [
        {
            "name": audit.log.show_name(n),
            "state": states[n],
            "first": int(churn.first[n]) + audit.log.first_round,
            "last": int(churn.last[n]) + audit.log.first_round,
            "rate": churn.rates[n],
            "interval": formatting.format_range(churn.low[n], churn.high[n], ".1%"),
            "p_value": p_values[n],
        }
        for n in chosen[np.argsort(p_values[chosen], kind="stable")][:_ROWS]
    ]
