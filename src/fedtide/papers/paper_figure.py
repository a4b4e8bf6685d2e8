"""The figure of a published experiment: the curves of its methods, one panel per case."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedtide.papers.paper_spec import MAIN, PaperExperiment
from fedtide.papers.record import Record
from fedtide.plotting.style import (
    Styles,
    method_styles,
    new_figure,
    place_legend,
    plain_logarithms,
)

Floats = NDArray[np.float64]

_MAX_LABEL_LENGTH = 32  # letters beside a panel


def draw_figure(paper: PaperExperiment, records: Iterable[Record]) -> Figure:
    """Return the figure of the records' curves."""
    panels = _panels(paper, [record for record in records if record.curve])
    columns = min(3, max(1, len(panels)))
    rows = -(-max(1, len(panels)) // columns)
    height, width = 0.6 + 3.2 * rows, 1.6 + 4.0 * columns
    figure, axes = new_figure(height, columns, width, [1.0] * columns, rows)
    for panel in axes[len(panels) :]:
        panel.set_axis_off()
    styles = method_styles(paper.methods)
    for panel, (title, curves) in zip(axes, panels.items(), strict=False):
        _draw_panel(panel, paper, title, curves, styles)
    if not panels:
        axes[0].text(0, 0.5, "No curve has been recorded.", transform=axes[0].transAxes)
    place_legend(*axes)
    title = f"{paper.title} ({paper.reference})"
    if any(len(curve.values) > 1 for curves in panels.values() for curve in curves):
        title += ", mean ± standard error over the seeds"
    figure.suptitle("\n".join(textwrap.wrap(title, int(11 * width))), fontsize="medium")
    return figure


@dataclass(frozen=True)
class _Curve:
    """The curve of a method: values at x, one row per seed."""

    method: str
    x: Floats
    values: Floats


def _panels(paper: PaperExperiment, records: Sequence[Record]) -> dict[str, list[_Curve]]:
    """Return the curves of each panel: a panel for each case, or one over all cases."""
    metric = paper.figure.get("metric", "loss")
    groups = {
        (case, method): runs
        for case in paper.cases
        for method in paper.methods
        if (runs := [r for r in records if (r.case, r.method) == (case, method)])
    }
    if paper.figure.get("kind") == "cases":
        return {"": _curves_over_cases(paper, groups, metric)}
    panels: dict[str, list[_Curve]] = {}
    for (case, method), runs in groups.items():
        shortest = min(len(run.curve["round"]) for run in runs)
        values = [run.curve[metric][:shortest] for run in runs]
        x = np.array(runs[0].curve["round"][:shortest], dtype=float)
        curve = _Curve(method, x, np.array(values, dtype=float))
        panels.setdefault("" if case == MAIN else case, []).append(curve)
    return panels


def _curves_over_cases(
    paper: PaperExperiment, groups: Mapping[tuple[str, str], Sequence[Record]], metric: str
) -> list[_Curve]:
    """Return the final metric of each method over the cases."""
    curves = []
    for method in paper.methods:
        runs = [groups[case, method] for case in paper.cases if (case, method) in groups]
        seeds = min(map(len, runs), default=0)
        if seeds:
            x = [run[0].final[paper.figure["x"]] for run in runs]
            values = [[one.final[metric] for one in run[:seeds]] for run in runs]
            points = np.array(values, dtype=float).T
            curves.append(_Curve(method, np.array(x, dtype=float), points))
    return curves


def _draw_panel(
    axes: Axes, paper: PaperExperiment, title: str, curves: Sequence[_Curve], styles: Styles
) -> None:
    """Draw the mean ± standard error over the seeds of each method."""
    for curve in curves:
        style = styles[curve.method]
        seeds, mean = len(curve.values), curve.values.mean(axis=0)
        if paper.figure.get("log"):
            mean = np.where(mean > 0, mean, np.nan)
        axes.plot(curve.x, mean, label=curve.method, linewidth=1.6, **style)
        if seeds > 1:
            error = curve.values.std(axis=0, ddof=1) / np.sqrt(seeds)
            low, high = mean - error, mean + error
            axes.fill_between(curve.x, low, high, color=style["color"], alpha=0.15, linewidth=0)
    if paper.figure.get("log"):
        plain_logarithms(axes.yaxis)
    if paper.figure.get("x_log"):
        axes.set_xscale("symlog", linthresh=10)
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel(paper.figure.get("x_title", "round"), parse_math=True)  # our own text
    what = paper.figure.get("y", paper.figure.get("metric", "loss"))
    axes.set_ylabel("\n".join(textwrap.wrap(what, _MAX_LABEL_LENGTH)))
    axes.grid(alpha=0.25)
