"""The summary figure of a comparison: learning curves, participation, and weights of updates."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.figure import Figure

from fedtide.plotting.style import method_styles, new_figure, place_legend
from fedtide.report.figures.client_influence import draw_weights
from fedtide.report.figures.learning_curves import draw_curves
from fedtide.report.figures.participation_raster import draw_participation
from fedtide.report.grouping import group_by_method, split_by_problem
from fedtide.report.loading import LoadedRun
from fedtide.report.summary import count_seeds, headline_metric

_MOST_PROBLEMS = 8  # in one figure


def comparison_figure(runs: Sequence[LoadedRun]) -> Figure:
    """Return a figure of learning curves, participation in the first run, and clients' weights.

    Each problem has a row of panels; only the first eight problems are shown.
    """
    found = split_by_problem(runs)
    problems = [(name, group_by_method(group)) for name, group in found[:_MOST_PROBLEMS]]
    styles = method_styles(method for _, groups in problems for method in groups)
    rows, ratios = len(problems), (1.25, 1, 1)
    figure, panels = new_figure(4.2 * rows, 3, width=13.5, width_ratios=ratios, rows=rows)
    for row, (name, groups) in enumerate(problems):
        curves, raster, weights = panels[3 * row : 3 * row + 3]
        draw_curves(curves, groups, headline_metric(groups), styles)
        is_single = max(map(len, groups.values())) == 1
        title = "One seed" if is_single else f"Mean ± standard deviation over {count_seeds(groups)}"
        if len(found) > 1:
            title = f"{textwrap.fill(name, 60)}\n{title}"
        curves.set_title(title)
        first = found[row][1][0]
        draw_participation(raster, first)
        raster.set_title(f"Who took part (seed {first.experiment['seed']})")
        draw_weights(weights, groups, styles)
        weights.set_title("Weights (dashed: all clients count equally)")
    if len(found) > rows:
        figure.suptitle(f"The first {rows} of {len(found)} problems")
    place_legend(*panels[::3])
    return figure
