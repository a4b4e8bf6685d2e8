"""Figures of participation: rasters of clients and rounds, and cohort sizes."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedtide.errors import quantify
from fedtide.plotting.raster import draw_raster
from fedtide.plotting.style import COLOURS, Floats, label_rounds, new_figure, place_legend
from fedtide.report.figures import ReportFigure
from fedtide.report.grouping import Groups
from fedtide.report.loading import LoadedRun
from fedtide.report.summary import unique_participation

_BINS = 200  # of rounds, in the figure of cohort sizes
_MOST = 4  # distinct participations shown


def participation_figures(groups: Groups) -> list[ReportFigure]:
    """Return a raster and the cohort sizes of each distinct participation, at most four."""
    found = unique_participation(groups)
    figures = []
    for i, (methods, run) in enumerate(found[:_MOST]):
        of = f"Seed {run.experiment['seed']}" + (f", of {methods}." if len(found) > 1 else ".")
        caption = (
            f"{of} The most frequent clients are at the top, the rarest at the bottom; the darker "
            "a cell, the more often its clients took part in its rounds."
        )
        raster, (panel,) = new_figure(3.2)
        draw_participation(panel, run)
        sizes = run.cohort_sizes
        figures += [
            ReportFigure(f"raster-{i}", "Who took part in which round", caption, raster),
            ReportFigure(f"cohorts-{i}", "Cohort sizes", _describe(sizes), _draw_sizes(sizes)),
        ]
    return figures


def draw_participation(panel: Axes, run: LoadedRun) -> None:
    """Draw who took part in which round of a run."""
    log = run.used_rows()
    clients, rounds = log["client"].to_numpy(), log["round"].to_numpy()
    counts = np.bincount(clients, minlength=len(run.clients))
    draw_raster(panel, [(clients, rounds)], counts, 0, run.ended)


def _describe(sizes: NDArray[np.int64]) -> str:
    empty = int((sizes == 0).sum())
    least, most = int(sizes.min()), int(sizes.max())
    if least == most:
        return f"{quantify(most, 'client')} in every round."
    text = f"Between {least:,} and {most:,} clients, {sizes.mean():,.1f} on average"
    verb = "was" if empty == 1 else "were"
    return f"{text}; {empty:,} of {len(sizes):,} rounds {verb} empty." if empty else f"{text}."


def _draw_sizes(sizes: NDArray[np.int64]) -> Figure:
    figure, (panel,) = new_figure(2.4)
    edges, low, mean, high = _bin_rounds(sizes.astype(np.float64))
    blue = COLOURS[0]
    panel.fill_between(edges, low, high, color=blue, alpha=0.25, lw=0, step="post", label="range")
    panel.plot(edges, mean, color=blue, lw=1.2, drawstyle="steps-post", label="mean")
    panel.set_xlim(0, len(sizes))
    panel.set_ylim(bottom=0)
    label_rounds(panel)
    panel.set_ylabel("clients used")
    panel.yaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    if len(edges) <= len(sizes):
        place_legend(panel)
    return figure


def _bin_rounds(values: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return where bins of rounds begin, and the least, mean and greatest value in each.

    The last entry is the end of the last bin, and repeats its values.
    """
    bins = np.array_split(values, min(_BINS, len(values)))
    bins.append(bins[-1])
    edges = np.cumsum([0, *(len(one) for one in bins[:-1])])
    low, mean, high = (np.array([f(one) for one in bins]) for f in (np.min, np.mean, np.max))
    return edges.astype(np.float64), low, mean, high
