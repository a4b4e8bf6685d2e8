"""The summary figure of a comparison: learning curves, participation, and weights of updates."""

from __future__ import annotations

import textwrap
from itertools import islice

from matplotlib.figure import Figure

from fedtide.plotting.curves import scale_values
from fedtide.plotting.style import method_styles, new_figure, place_legend
from fedtide.report.figures.client_influence import draw_weights
from fedtide.report.figures.learning_curves import draw_curves
from fedtide.report.figures.participation_raster import draw_participation
from fedtide.report.grouping import Conditions
from fedtide.report.summary import count_seeds, lower_is_better, worst_tenth_metric

_MOST = 8  # conditions in one figure


def comparison_figure(conditions: Conditions) -> Figure:
    """Return a figure of learning curves, participation in the first run, and clients' weights.

    Each condition has a row of panels; only the first eight conditions are shown.
    """
    shown = dict(islice(conditions.items(), _MOST))
    styles = method_styles(method for groups in shown.values() for method in groups)
    rows, ratios = len(shown), (1.25, 1, 1)
    figure, panels = new_figure(4.2 * rows, 3, width=13.5, width_ratios=ratios, rows=rows)
    for row, (name, groups) in enumerate(shown.items()):
        curves, raster, weights = panels[3 * row : 3 * row + 3]
        metric = worst_tenth_metric(groups)
        draw_curves(curves, groups, metric, styles)
        scale_values([curves], metric, lower_is_better(groups, metric))
        is_single = max(map(len, groups.values())) == 1
        title = "One seed" if is_single else f"Mean ± standard deviation over {count_seeds(groups)}"
        if len(conditions) > 1:
            title = f"{textwrap.fill(name, 60)}\n{title}"
        curves.set_title(title)
        first = next(iter(groups.values()))[0]
        draw_participation(raster, first)
        raster.set_title(f"Who took part (seed {first.experiment['seed']})")
        draw_weights(weights, groups, styles)
        weights.set_title("Weights (dashed: all clients count equally)")
    if len(conditions) > rows:
        figure.suptitle(f"The first {rows} of {len(conditions)} conditions")
    place_legend(*panels[::3])
    return figure
