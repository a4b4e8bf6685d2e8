"""The summary figure of a comparison: learning curves, participation, and weights of updates."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from fedtide.plotting.style import method_styles, new_figure, place_legend
from fedtide.report.figures.client_influence import draw_weights
from fedtide.report.figures.learning_curves import draw_curves
from fedtide.report.figures.participation_raster import draw_participation
from fedtide.report.loading import LoadedRun, group_by_method
from fedtide.report.summary import headline_metric


def comparison_figure(runs: Sequence[LoadedRun]) -> Figure:
    """Return how the methods learn, who took part in the first run, and the weights of clients."""
    groups = group_by_method(runs)
    styles = method_styles(groups)
    ratios = (1.25, 1, 1)
    figure, (curves, raster, weights) = new_figure(4.2, 3, width=13.5, width_ratios=ratios)
    draw_curves(curves, groups, headline_metric(groups), styles)
    seeds = max(map(len, groups.values()))
    curves.set_title(f"Mean ± standard deviation over {seeds} seeds" if seeds > 1 else "One seed")
    draw_participation(raster, runs[0])
    raster.set_title(f"Who took part (seed {runs[0].experiment['seed']})")
    draw_weights(weights, groups, styles)
    weights.set_title("Weights (dashed: all clients count equally)")
    place_legend(curves)
    return figure
