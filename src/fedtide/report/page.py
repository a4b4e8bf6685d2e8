"""The report: one self-contained HTML page."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from fedtide.atomic_io import make_folder, write_text
from fedtide.errors import InvalidInputError
from fedtide.html_page import render_template
from fedtide.plotting.saving import figure_svg
from fedtide.plotting.style import DASHES, Styles, method_styles
from fedtide.provenance import versions
from fedtide.report.comparison import (
    compare_methods,
    format_cell,
    list_warnings,
    shown_columns,
    weights_clients,
)
from fedtide.report.figures import ReportFigure
from fedtide.report.figures.client_influence import influence_figures
from fedtide.report.figures.learning_curves import (
    client_figures,
    condition_figures,
    learning_figures,
)
from fedtide.report.figures.participation_raster import participation_figures
from fedtide.report.grouping import Conditions, Groups, arrange
from fedtide.report.loading import LoadedRun, OmittedRun, find_repeats
from fedtide.report.summary import (
    Target,
    client_influence,
    l1_skew,
    measure_target,
    unique_participation,
)
from fedtide.report.target_table import describe_target, tabulate_target
from fedtide.report.verdict import verdict
from fedtide.simulation.run_labels import abbreviate, show_value
from fedtide.validation import PAGE_SUFFIXES, require_suffix
from fedtide.yaml_text import dump

_DASHES = dict(zip(DASHES, ("none", "11 5", "14 4 4 4", "4 4"), strict=True))
"""The line styles of the figures as dashes of an SVG line, for the table."""
_LINE = Markup(
    '<svg class="line" viewBox="0 0 36 14" aria-hidden="true"><line x1="0" y1="7" x2="36" y2="7" '
    'stroke="{colour}" stroke-width="5" stroke-dasharray="{dashes}"/></svg>'
)
_STYLE = """
.tiles { max-width: 46rem; }
figure > h2 { border: 0; padding: 0; }
figure.wide { grid-column: 1 / -1; max-width: 52rem; }
figure svg { min-width: 20rem; }
figure.wide svg { min-width: 38rem; }
.line { width: 1.5em; height: .7em; margin-right: .45em; }
.limit tbody th, .limit td:last-child { min-width: 11rem; }
@media print { figure svg, figure.wide svg { min-width: 0; } }
"""
_MAX_VALUE_LENGTH = 1500  # characters of a resolved value, such as a list of rates


@dataclass(frozen=True)
class Section:
    """The part of a report about one condition.

    Args:
        name: the label of the condition.
        groups: its runs, by method.
        target: what it takes the methods to reach a level of a metric.
        styles: of the methods.
        figures: its figures, by heading.
    """

    name: str
    groups: Groups
    target: Target
    styles: Styles
    figures: Mapping[str, Sequence[ReportFigure]]


@dataclass(frozen=True)
class Report:
    """What a page shows.

    Args:
        sections: one for each condition, because methods are compared under equal conditions.
        overview: figures of all conditions, if there are several.
        omitted: the runs that are not shown in any figure.
    """

    sections: Sequence[Section]
    overview: Sequence[ReportFigure]
    omitted: Sequence[OmittedRun]

    @property
    def conditions(self) -> Conditions:
        """The runs that are shown."""
        return {section.name: section.groups for section in self.sections}


def make_report(
    runs: Sequence[LoadedRun],
    omitted: Sequence[OmittedRun] = (),
    wanted: str | None = None,
    smooth: float = 0.0,
) -> Report:
    """Return a report on these runs.

    Args:
        runs: finished runs, or runs under way.
        omitted: other runs, which are listed; so are repeated ones among `runs`.
        wanted: a target, METRIC=LEVEL; None: under each condition, the level that all methods
            reach.
        smooth: the share of the evaluations over which curves are averaged.

    Raises:
        InvalidInputError: there are no runs, some run lacks the metric of the target, or the share
            is outside [0, 1].
    """
    if not 0 <= smooth <= 1:
        raise InvalidInputError(f"smooth: {smooth} is not a share from 0 to 1; give 0.01")
    if not runs:
        why = "report: no finished run to show; wait for one or run one"
        if omitted:
            message = omitted[0].message or "the run has not ended; continue it with --resume"
            why = f"report: no run to show; {omitted[0].folder.path}: {message}"
        raise InvalidInputError(why)
    conditions = arrange(runs)
    styles = method_styles(method for groups in conditions.values() for method in groups)
    sections = []
    for name, groups in conditions.items():
        figures = {
            "learning": learning_figures(groups, styles, smooth),
            "participation": participation_figures(groups),
            "influence": influence_figures(groups, styles),
            "clients": client_figures(groups, styles),
        }
        sections.append(Section(name, groups, measure_target(groups, wanted), styles, figures))
    overview = condition_figures(conditions, styles, smooth)
    return Report(sections, overview, [*omitted, *find_repeats(runs)])


def render_page(report: Report, refresh: float | None = None) -> str:
    """Return the HTML of a report.

    Args:
        report: what it shows.
        refresh: the seconds after which a browser reloads the page; None: it does not.
    """
    sections = report.sections
    return render_template(
        "fedtide.report",
        "report.html.jinja",
        _title(sections),
        _STYLE,
        omitted=[_describe_omitted(run) for run in report.omitted],
        overview=report.overview,
        refresh=refresh,
        runs=sum(len(group) for section in sections for group in section.groups.values()),
        sections=[_content(section) for section in sections],
        draw=_embed_figure,
        versions=_versions(),
    )


def _describe_omitted(run: OmittedRun) -> list[str]:
    rounds = f"{run.ended:,} of {run.experiment.get('rounds', '?')}"
    why = run.message or "not finished; continue it with --resume"
    return [str(run.folder.path), run.state, rounds, why]


def check_page(html: Path) -> None:
    """Raise InvalidInputError unless this can be the path of a page."""
    require_suffix("html", html, PAGE_SUFFIXES)
    if html.is_dir():
        raise InvalidInputError(f"html: {html} is a folder; give a file, such as report.html")


def write_page(html: Path, report: Report, refresh: float | None = None) -> None:
    """Write the page of a report; see `render_page`.

    Raises:
        InvalidInputError: the file cannot be written.
    """
    make_folder(html.parent, field="html")
    page = render_page(report, refresh)
    write_text(html, page, field="html", hint="choose another file")


def _title(sections: Sequence[Section]) -> str:
    methods = dict.fromkeys(method for section in sections for method in section.groups)
    listed = "; ".join(methods)
    names = sections[0].name if len(sections) == 1 else f"{len(sections)} conditions"
    return f"{names}: {listed if len(listed) <= 60 else f'{len(methods)} methods'}"


def _versions() -> str:
    packages = versions(("fedtide", "torch", "numpy", "python"))
    return f"Made with {packages} on {platform.machine()}."


def _embed_figure(one: ReportFigure, section: int) -> Markup:
    """Return the drawing of a figure as HTML."""
    return Markup(figure_svg(one.figure, str(escape(one.title)), f"p{section}-{one.name}"))


def _content(section: Section) -> dict[str, Any]:
    groups, target = section.groups, section.target
    first = next(iter(groups.values()))[0]
    sizes = _format_mean_sizes(groups)
    seeds = {run.experiment["seed"] for group in groups.values() for run in group}
    ended = {run.ended for group in groups.values() for run in group}
    rounds = [f"{number:,}" for number in sorted({min(ended), max(ended)})]
    tiles = [
        (f"{len(groups):,}", "methods" if len(groups) > 1 else "method"),
        (f"{len(seeds):,}", "seeds" if len(seeds) > 1 else "seed"),
        ("–".join(rounds), "rounds" if rounds != ["1"] else "round"),
        (f"{len(first.clients):,}", "clients" if len(first.clients) > 1 else "client"),
        (sizes, "clients per round, on average"),
    ]
    fields, settings = _differing_settings(groups)
    target_titles, target_rows = tabulate_target(target)
    return {
        "name": section.name,
        "verdict": verdict(groups),
        "tiles": tiles,
        **_comparison(groups, section.styles),
        "warnings": list_warnings(groups),
        "without_influence": _without_influence(groups),
        "target_title": describe_target(target),
        "target": [[_unbroken(row[0]), *row[1:]] for row in target_rows],
        "target_heads": ["method", *((title, "n") for title in target_titles[1:])],
        "figures": section.figures,
        "differing": fields,
        "settings": settings,
        "experiments": [(method, _format_experiment(group[0])) for method, group in groups.items()],
    }


def _comparison(groups: Groups, styles: Styles) -> dict[str, Any]:
    """Return the head and rows of the comparison, with the L1 skew as the last column."""
    frame = compare_methods(groups)
    weighted = weights_clients(groups)
    columns = shown_columns(frame, weighted)
    rows = []
    for row, (method, group) in zip(frame.iter_rows(named=True), groups.items(), strict=True):
        skews = [skew for run in group if (skew := l1_skew(run)) is not None]
        skew_cell = f"{np.mean(skews):.3f}" if skews else "—"
        cells = [str(len(group)), *(format_cell(row, column) for column in columns), skew_cell]
        look = styles[method]
        line = _LINE.format(colour=look["color"], dashes=_DASHES[look["linestyle"]])
        rows.append([line + _unbroken(method), *cells])
    titles = ["seeds", *(column.title.replace("\n", " ") for column in columns), "L1 skew"]
    heads = ["method", *((title, "n") for title in titles)]
    return {
        "heads": heads,
        "rows": rows,
        "columns": " ".join(column.key for column in columns),
        "weighted": weighted,
    }


def _without_influence(groups: Groups) -> dict[str, str]:
    """Return the names of the methods that have neither influence nor L1 skew, by the reason."""
    reasons: dict[str, list[str]] = {"absent": [], "unavailable": [], "unused": []}
    for method, group in groups.items():
        if group[0].algorithm is None:
            reasons["unavailable"].append(method)
        elif not group[0].weights_tell_influence:
            reasons["absent"].append(method)
        elif all(client_influence(run) is None for run in group):
            reasons["unused"].append(method)
    return {reason: "; ".join(names) for reason, names in reasons.items()}


def _unbroken(label: str) -> str:
    """Return a label that is broken only between its parts."""
    return label.replace(" ", "\N{NO-BREAK SPACE}").replace(",\N{NO-BREAK SPACE}", ", ")


def _format_mean_sizes(groups: Groups) -> str:
    """Return the mean cohort size as text, or its range over the methods if they differ."""
    means = [run.cohort_sizes.mean() for _, run in unique_participation(groups)]
    return "–".join(dict.fromkeys(f"{mean:,.1f}" for mean in (min(means), max(means))))


def _differing_settings(groups: Groups) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the fields in which methods differ; empty if they do not."""
    listed = [group[0].fields for group in groups.values()]
    columns = {
        field: {i: show_value(one.get(field, "")) for i, one in enumerate(listed)}
        for field in dict.fromkeys(field for one in listed for field in one)
    }
    differing = {f: abbreviate(c, 60) for f, c in columns.items() if len({*c.values()}) > 1}
    if not differing:
        return [], []
    rows = zip(
        map(_unbroken, groups), *(column.values() for column in differing.values()), strict=True
    )
    return ["method", *differing], [list(row) for row in rows]


def _format_experiment(run: LoadedRun) -> str:
    shortened = _shorten(run.experiment)
    return dump(shortened, width=100)


def _shorten(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _shorten(inner) for key, inner in value.items()}
    return value if len(str(value)) <= _MAX_VALUE_LENGTH else f"{value!s:.{_MAX_VALUE_LENGTH}} …"
