"""The report: one self-contained HTML page."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from fedtide.atomic_io import make_folder, write_text
from fedtide.errors import InvalidInputError
from fedtide.html_page import render_template
from fedtide.metric_direction import is_share
from fedtide.plotting.saving import figure_svg
from fedtide.plotting.style import DASHES, Styles, method_styles
from fedtide.provenance import versions
from fedtide.report.comparison import (
    compare_runs,
    format_cell,
    format_mean,
    shown_columns,
    weights_clients,
)
from fedtide.report.figures import ReportFigure
from fedtide.report.figures.client_influence import influence_figures
from fedtide.report.figures.learning_curves import client_figures, learning_figures
from fedtide.report.figures.participation_raster import participation_figures
from fedtide.report.grouping import (
    Groups,
    abbreviate,
    differing_fields,
    flatten_alike,
    group_by_method,
    split_by_problem,
)
from fedtide.report.loading import LoadedRun, OmittedRun, find_repeats, find_runs
from fedtide.report.summary import (
    Target,
    client_influence,
    l1_skew,
    measure_target,
    unique_participation,
)
from fedtide.report.verdict import verdict
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
    """The part of the report about one problem.

    Args:
        name: distinguishes the problem from the others.
        groups: its runs, by method.
        target: what it takes the methods to reach a level of a metric.
        styles: of its methods; a method name has the same style in every section.
        figures: its figures, by heading.
    """

    name: str
    groups: Groups
    target: Target
    styles: Styles
    figures: Mapping[str, Sequence[ReportFigure]]


def make_sections(
    runs: Sequence[LoadedRun], wanted: str | None = None, smooth: float = 0.0
) -> list[Section]:
    """Return one section per problem, because metrics of different problems are not comparable.

    Args:
        runs: finished runs.
        wanted: a target, METRIC=LEVEL; None: the level that all methods of a problem reach.
        smooth: the share of the evaluations over which curves are averaged.

    Raises:
        InvalidInputError: there are no runs, some run lacks the metric of the target, a target is
            given for several problems, or the share is outside [0, 1].
    """
    if not 0 <= smooth <= 1:
        raise InvalidInputError(f"smooth: {smooth} is not a share from 0 to 1; give 0.01")
    problems = split_by_problem(runs)
    if not problems:
        raise InvalidInputError("report: no finished run to show; wait for one or run one")
    if wanted and len(problems) > 1:
        raise InvalidInputError(
            f"target: {wanted!r} is ambiguous, the runs are of {len(problems)} different "
            "problems; give the folders of one problem"
        )
    by_method = [group_by_method(group) for _, group in problems]
    styles = method_styles(method for groups in by_method for method in groups)
    sections = []
    for (name, _), groups in zip(problems, by_method, strict=True):
        figures = {
            "learning": learning_figures(groups, styles, smooth),
            "participation": participation_figures(groups),
            "influence": influence_figures(groups, styles),
            "clients": client_figures(groups, styles),
        }
        sections.append(Section(name, groups, measure_target(groups, wanted), styles, figures))
    return sections


def render_page(
    sections: Sequence[Section],
    omitted: Sequence[OmittedRun],
    refresh: float | None = None,
) -> str:
    """Return the HTML of a report with these sections and a list of the omitted runs.

    Args:
        sections: the sections.
        omitted: the runs that are not shown in any figure.
        refresh: the seconds after which a browser reloads the page; None: it does not.
    """
    return render_template(
        "fedtide.report",
        "report.html.jinja",
        _title(sections),
        _STYLE,
        omitted=[_describe_omitted(run) for run in omitted],
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


def read_sections(
    folders: Iterable[str | Path], wanted: str | None = None, smooth: float = 0.0
) -> tuple[list[Section], list[OmittedRun]]:
    """Return the sections of a report on the runs in these folders, and the runs left out.

    Raises:
        InvalidInputError: as for `find_runs` and `make_sections`, or there is no run to show.
    """
    shown, omitted = find_runs(folders)
    if omitted and not shown:
        first = omitted[0]
        message = first.message or "the run has not ended; continue it with --resume"
        raise InvalidInputError(f"report: no run to show; {first.folder.path}: {message}")
    return make_sections(shown, wanted, smooth), omitted + find_repeats(shown)


def check_page(html: Path) -> None:
    """Raise InvalidInputError unless this can be the path of a page."""
    require_suffix("html", html, PAGE_SUFFIXES)
    if html.is_dir():
        raise InvalidInputError(f"html: {html} is a folder; give a file, such as report.html")


def write_page(
    html: Path,
    sections: Sequence[Section],
    omitted: Sequence[OmittedRun],
    refresh: float | None = None,
) -> None:
    """Write the page of a report; see `render_page`.

    Raises:
        InvalidInputError: the file cannot be written.
    """
    make_folder(html.parent, field="html")
    page = render_page(sections, omitted, refresh)
    write_text(html, page, field="html", hint="choose another file")


def _title(sections: Sequence[Section]) -> str:
    names = ", ".join(dict.fromkeys(section.name for section in sections))
    methods = dict.fromkeys(method for section in sections for method in section.groups)
    listed = ", ".join(methods)
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
    return {
        "name": section.name,
        "verdict": verdict(groups),
        "tiles": tiles,
        **_comparison(groups, section.styles),
        "warnings": _warnings(groups),
        "without_influence": _without_influence(groups),
        **_target(target),
        "figures": section.figures,
        "differing": fields,
        "settings": settings,
        "experiments": [(method, _format_experiment(group[0])) for method, group in groups.items()],
    }


def _warnings(groups: Groups) -> list[str]:
    """Return the warnings of runs, each with its method and seed."""
    runs = [(method, run) for method, group in groups.items() for run in group]
    return [f"{m}, seed {r.experiment['seed']}: {text}" for m, r in runs for text in r.warnings]


def _comparison(groups: Groups, styles: Styles) -> dict[str, Any]:
    """Return the head and rows of the comparison, with the L1 skew as the last column."""
    frame = compare_runs(run for group in groups.values() for run in group)
    weighted = weights_clients(run for group in groups.values() for run in group)
    columns = shown_columns(frame, weighted)
    rows = []
    for row, (method, group) in zip(frame.iter_rows(named=True), groups.items(), strict=True):
        skews = [skew for run in group if (skew := l1_skew(run)) is not None]
        skew_cell = f"{np.mean(skews):.3f}" if skews else "—"
        cells = [str(len(group)), *(format_cell(row, column) for column in columns), skew_cell]
        look = styles[method]
        line = _LINE.format(colour=look["color"], dashes=_DASHES[look["linestyle"]])
        rows.append([line + method, *cells])
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
    return {reason: ", ".join(names) for reason, names in reasons.items()}


def _target(target: Target) -> dict[str, Any]:
    """Return the target's name, and the head and rows of the table of what it takes to reach it.

    The column of exchanged bytes is left out if they are known for no method.
    """
    level = f"{100 * target.level:.1f} %" if is_share(target.metric) else f"{target.level:.4g}"
    titles = ["runs that reach it", "rounds", "updates"]
    rows = [
        [
            row.method,
            f"{row.reached} of {row.runs}",
            _format_count(*row.rounds),
            _format_count(*row.updates),
        ]
        for row in target.rows
    ]
    known = [row.exchanged[0] for row in target.rows if row.exchanged is not None]
    if known:
        size, unit = _byte_unit(np.nan_to_num(known).max())
        titles.append(f"{unit} exchanged")
        for cells, row in zip(rows, target.rows, strict=True):
            cells.append(_format_size(row.exchanged, size))
    heads = ["method", *((title, "n") for title in titles)]
    name = f"{target.metric.replace('_', ' ')} {level}"
    return {"target_name": name, "target_heads": heads, "target": rows}


def _byte_unit(most: float) -> tuple[float, str]:
    """Return the size and the name of a unit that suits byte counts up to `most`.

    >>> _byte_unit(2.5e9), _byte_unit(300.0)
    ((1000000000.0, 'GB'), (1.0, 'bytes'))
    """
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if most >= size:
            return size, unit
    return 1.0, "bytes"


def _format_size(exchanged: tuple[float, float] | None, size: float) -> str:
    if exchanged is None:
        return "—"
    mean, std = exchanged
    return "never" if np.isnan(mean) else format_mean(mean / size, std / size or None, 1)


def _format_count(mean: float, std: float) -> str:
    if np.isnan(mean):
        return "never"
    return f"{mean:,.0f} ± {std:,.0f}" if std else f"{mean:,.0f}"


def _format_mean_sizes(groups: Groups) -> str:
    """Return the mean cohort size as text, or its range over the methods if they differ."""
    means = [run.cohort_sizes.mean() for _, run in unique_participation(groups)]
    return "–".join(dict.fromkeys(f"{mean:,.1f}" for mean in (min(means), max(means))))


def _differing_settings(groups: Groups) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the fields in which methods differ; empty if they do not."""
    experiments = [group[0].experiment for group in groups.values()]
    flat = flatten_alike(experiments, without=("seed", "name"))
    fields = differing_fields(flat)
    columns = [abbreviate([str(one.get(f, "")) for one in flat], 60) for f in fields]
    if not fields:
        return [], []
    return ["method", *fields], [list(row) for row in zip(groups, *columns, strict=True)]


def _format_experiment(run: LoadedRun) -> str:
    shortened = _shorten(run.experiment)
    return dump(shortened, width=100)


def _shorten(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _shorten(inner) for key, inner in value.items()}
    return value if len(str(value)) <= _MAX_VALUE_LENGTH else f"{value!s:.{_MAX_VALUE_LENGTH}} …"
