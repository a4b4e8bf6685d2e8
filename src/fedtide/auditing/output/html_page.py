"""The audit as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from fedtide.atomic_io import write_text
from fedtide.auditing.log.refusals import format_reasons
from fedtide.auditing.output import audit_figures, formatting, sentences
from fedtide.auditing.recommend.findings import Findings
from fedtide.auditing.statistics.group_influence import GroupInfluence
from fedtide.html_page import render_template
from fedtide.validation import expand_home

_ROWS = 12
Rows = list[list[str]]


def write_page(audit: Findings, path: str | Path, privacy: Sequence[Sequence[str]] = ()) -> None:
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


def render_page(audit: Findings, privacy: Sequence[Sequence[str]] = ()) -> str:
    """Return the HTML of the page."""
    style = files("fedtide.auditing.output").joinpath("audit.css").read_text(encoding="utf-8")
    lines = sentences.list_lines(audit).items()
    return render_template(
        "fedtide.auditing.output",
        "audit.html.jinja",
        "Whose model is this log training?",
        style,
        audit=audit,
        privacy=privacy,
        sentences=sentences,
        formatting=formatting,
        lines=[(label, formatting.to_sentence(text)) for label, text in lines],
        figures=audit_figures.draw_figures(audit),
        refusals=_list_refusals(audit),
        updates=_list_updates(audit),
        churn=_list_churn(audit),
        groups=[(group.grouping, _list_groups(group)) for group in audit.groups],
        extremes=[
            ("Most influence for their share", _rank_clients(audit, over=True)),
            ("Least influence for their share", _rank_clients(audit, over=False)),
        ],
    )


def _rank_clients(audit: Findings, over: bool) -> Rows:
    """Return the most over- or under-represented clients among those that took part.

    They have no intervals, as they are selected.
    """
    ratios = audit.objectives.ratios
    chosen = np.flatnonzero((audit.log.counts > 0) & (ratios > 1 if over else ratios < 1))
    keys = -ratios[chosen] if over else ratios[chosen]
    return [
        [
            audit.log.show_name(n),
            f"{ratios[n]:.2f}",
            f"{audit.rates.estimate[n]:.1%}",
        ]
        for n in chosen[np.argsort(keys, kind="stable")][:_ROWS]
    ]


def _list_groups(group: GroupInfluence) -> Rows:
    rows = []
    for g, name in enumerate(group.names):
        wanted = group.wanted[g] if group.wanted[g] > 0 else np.nan
        rows.append(
            [
                name[:80],
                f"{group.sizes[g]:,}",
                f"{group.never[g]:,}",
                f"{group.rates[g]:.1%}",
                f"{group.weights[g]:.1%}",
                f"{group.ratios[g]:.2f}" if wanted > 0 else "–",
                formatting.format_range(group.low[g] / wanted, group.high[g] / wanted),
            ]
        )
    return rows


def _list_refusals(audit: Findings) -> Rows:
    """Return the clients that were left out of most rounds for a known reason."""
    refusals = audit.log.refusals
    if refusals is None:
        return []
    reports = None if audit.selection is None else audit.selection.reports
    return [
        [
            audit.log.show_name(n),
            f"{rounds:,}",
            "–" if reports is None else f"{reports[n]:,}",
            f"{audit.log.counts[n]:,}",
            format_reasons(refusals.of_client(n)),
        ]
        for n, rounds in refusals.rank_clients()[:_ROWS]
    ]


def _list_updates(audit: Findings) -> Rows:
    """Return the clients whose updates moved the model furthest, by weight times norm."""
    if audit.log.updates is None:
        return []
    weights, norms = audit.log.updates.fill_null(0.0).to_numpy().T
    reach = weights * norms
    furthest = np.argsort(-reach, kind="stable")[: min(_ROWS, np.count_nonzero(reach))]
    return [
        [
            audit.log.show_name(n),
            f"{audit.log.counts[n]:,}",
            f"{weights[n]:.3g}",
            f"{norms[n]:.3g}",
            f"{reach[n]:.3g}",
        ]
        for n in furthest
    ]


def _list_churn(audit: Findings) -> Rows:
    """Return the clients that left or joined, by their numbers."""
    churn, states = audit.churn, audit.churn.states
    chosen = np.union1d(churn.gone, churn.late)
    return [
        [
            audit.log.show_name(n),
            str(states[n]),
            f"{churn.first[n] + audit.log.first_round:,}",
            f"{churn.last[n] + audit.log.first_round:,}",
            f"{churn.rates[n]:.1%}",
        ]
        for n in chosen[:_ROWS]
    ]
