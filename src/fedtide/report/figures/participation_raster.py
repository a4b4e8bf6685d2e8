"""The figures of who takes part: rasters and the sizes of cohorts."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from fedtide.plotting.style import Floats, Picture, axes, legend, over_rounds
from fedtide.report.loading import FinishedRun
from fedtide.report.summary import Groups, unique_participation

_RASTER = (
    240,
    600,
)  # rows and columns at most; each cell is the mean of what lower_is_better into it
_BINS = 200  # of the rounds, for the sizes of cohorts


def presence(groups: Groups, most: int = 4) -> list[Picture]:
    """Return who took part when, and the sizes of cohorts, for each way of taking part."""
    found = unique_participation(groups)
    pictures = []
    for i, (methods, run) in enumerate(found[:most]):
        of = f"Seed {run.experiment['seed']}" + (f", of {methods}." if len(found) > 1 else ".")
        raster = (
            f"{of} The most frequent clients are at the top, the rarest at the bottom; a cell is "
            "the darker, the more often its clients took part in its rounds."
        )
        pictures += [
            Picture(f"raster-{i}", "Who took part in which round", raster, _raster(run)),
            Picture(f"cohorts-{i}", "Cohort sizes", _cohort_words(run), _cohorts(run)),
        ]
    return pictures


def _raster(run: FinishedRun) -> Figure:
    log, rounds, size = run.used(), int(run.experiment["rounds"]), len(run.clients)
    order = np.argsort(-run.clients["participation"].to_numpy(), kind="stable")
    rows, columns = min(_RASTER[0], size), min(_RASTER[1], rounds)
    place = np.empty(size, dtype=np.int64)
    place[order] = np.arange(size) * rows // size
    cells = place[log["client"].to_numpy()] * columns + log["round"].to_numpy() * columns // rounds
    image = np.bincount(cells, minlength=rows * columns).reshape(rows, columns)
    area = np.outer(
        np.bincount(place, minlength=rows),
        np.bincount(np.arange(rounds) * columns // rounds, minlength=columns),
    )
    shown = image / area
    top = max(float(np.quantile(shown[shown > 0], 0.98)), 1e-9) if shown.any() else 1.0
    figure, (panel,) = axes(3.2)
    panel.imshow(
        shown,
        aspect="auto",
        cmap="Blues",
        extent=(0, rounds, size, 0),
        vmin=0,
        vmax=top,
        interpolation="nearest",
    )
    over_rounds(panel)
    panel.set_ylabel("clients, most frequent first")
    return figure


def _cohort_words(run: FinishedRun) -> str:
    sizes = run.cohorts()
    empty = int((sizes == 0).sum())
    words = f"Between {sizes.min():,} and {sizes.max():,} clients, {sizes.mean():,.1f} on average"
    return f"{words}; {empty:,} of {len(sizes):,} rounds had nobody." if empty else f"{words}."


def _cohorts(run: FinishedRun) -> Figure:
    sizes = run.cohorts().astype(np.float64)
    figure, (panel,) = axes(2.4)
    at, low, mean, high = _binned(sizes)
    panel.fill_between(at, low, high, color="#0072B2", alpha=0.25, lw=0, step="mid", label="range")
    panel.plot(at, mean, color="#0072B2", lw=1.2, drawstyle="steps-mid", label="mean")
    panel.set_ylim(bottom=0)
    over_rounds(panel)
    panel.set_ylabel("clients used")
    if len(at) < len(sizes):
        legend(panel, 2)
    return figure


def _binned(values: Floats, bins: int = _BINS) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the middle of bins of rounds, and the least, mean and greatest value in each."""
    parts = np.array_split(values, min(bins, len(values)))
    ends = np.cumsum([len(part) for part in parts])
    middles = ends - np.array([len(part) for part in parts]) / 2
    low, mean, high = (np.array([f(part) for part in parts]) for f in (np.min, np.mean, np.max))
    return middles, low, mean, high
