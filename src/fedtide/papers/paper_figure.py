"""The figure of a published experiment: the curves of its methods, one panel per case."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedtide.papers.paper_spec import MAIN, PaperExperiment
from fedtide.papers.rows import Row
from fedtide.plotting.style import (
    Styles,
    method_styles,
    new_figure,
    place_legend,
    plain_logarithms,
)

Floats = NDArray[np.float64]
Curves = Mapping[str, tuple[Floats, Floats]]
"""By method: x, and the values at x, one row per seed."""

_MAX_LABEL_LENGTH = 32  # letters beside a panel


def draw_figure(paper: PaperExperiment, rows: Sequence[Row]) -> Figure:
    """Return the figure of the recorded curves."""
    panels = _panels(paper, rows)
    columns = min(3, max(1, len(panels)))
    lines = -(-max(1, len(panels)) // columns)
    height, width = 0.6 + 3.2 * lines, 1.6 + 4.0 * columns
    figure, axes = new_figure(height, columns, width, [1.0] * columns, lines)
    for panel in axes[len(panels) :]:
        panel.set_axis_off()
    styles = method_styles(paper.methods)
    for panel, (title, curves) in zip(axes, panels.items(), strict=False):
        _draw_panel(panel, paper, title, curves, styles)
    if not panels:
        axes[0].text(0, 0.5, "No curve has been recorded.", transform=axes[0].transAxes)
    place_legend(*axes)
    title = f"{paper.title} ({paper.reference})"
    if any(len(values) > 1 for curves in panels.values() for _, values in curves.values()):
        title += ", mean ± standard error over the seeds"
    figure.suptitle("\n".join(textwrap.wrap(title, int(11 * width))), fontsize="medium")
    return figure


def _panels(paper: PaperExperiment, rows: Sequence[Row]) -> dict[str, Curves]:
    """Return the curves of each panel: a panel for each case, or one over all cases."""
    metric = paper.figure.get("metric", "loss")
    panels: dict[str, dict[str, tuple[Floats, Floats]]] = {}
    over_cases: dict[str, list[tuple[float, list[float | None]]]] = {}
    for row in rows:
        runs = [record for record in row.records if record.curve]
        if not runs:
            continue
        if paper.figure.get("kind") == "cases":
            point = (float(runs[0].final[paper.figure["x"]] or 0), [r.final[metric] for r in runs])
            over_cases.setdefault(row.method, []).append(point)
            continue
        shortest = min(len(run.curve["round"]) for run in runs)
        x = np.array(runs[0].curve["round"][:shortest], dtype=float)
        values = np.array([run.curve[metric][:shortest] for run in runs], dtype=float)
        panels.setdefault("" if row.case == MAIN else row.case, {})[row.method] = x, values
    for method, points in over_cases.items():
        seeds = min(len(values) for _, values in points)
        values = np.array([values[:seeds] for _, values in points], dtype=float).T
        panels.setdefault("", {})[method] = np.array([x for x, _ in points]), values
    return {title: curves for title, curves in panels.items() if curves}


def _draw_panel(
    axes: Axes, paper: PaperExperiment, title: str, curves: Curves, styles: Styles
) -> None:
    """Draw the mean ± standard error over the seeds of each method."""
    for method, (x, values) in curves.items():
        style = styles[method]
        mean = values.mean(axis=0)
        if paper.figure.get("log"):
            mean = np.where(mean > 0, mean, np.nan)
        axes.plot(x, mean, label=method, linewidth=1.6, **style)
        if len(values) > 1:
            error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
            low, high = mean - error, mean + error
            axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
    if paper.figure.get("log"):
        plain_logarithms(axes.yaxis)
    if paper.figure.get("x_log"):
        axes.set_xscale("symlog", linthresh=10)
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel(paper.figure.get("x_title", "round"), parse_math=True)  # our own text
    what = paper.figure.get("y", paper.figure.get("metric", "loss"))
    axes.set_ylabel("\n".join(textwrap.wrap(what, _MAX_LABEL_LENGTH)))
    axes.grid(alpha=0.25)
