"""The raster of participation: rounds from left to right, clients from top to bottom."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from numpy.typing import NDArray

from fedtide.plotting.style import label_rounds

Ints = NDArray[np.int64]

_CELLS = (240, 600)  # most rows and columns; a cell shows the mean over its clients and rounds
_SHADES = 24  # few, so that the image compresses well


def draw_raster(
    panel: Axes, entries: Iterable[tuple[Ints, Ints]], counts: Ints, first: int, length: int
) -> None:
    """Draw who took part in which round, the most frequent client at the top.

    Args:
        panel: where to draw.
        entries: arrays of clients and of the rounds they took part in, in parts of any size.
        counts: in how many rounds each client took part, shape (N,).
        first: the first round.
        length: the number of rounds.
    """
    size = len(counts)
    rows, columns = min(_CELLS[0], size), min(_CELLS[1], length)
    row_of = np.empty(size, dtype=np.int64)
    row_of[np.argsort(-counts, kind="stable")] = np.arange(size) * rows // size
    sums = np.zeros(rows * columns)
    for clients, rounds in entries:
        cells = row_of[clients] * columns + (rounds - first) * columns // length
        sums += np.bincount(cells, minlength=rows * columns)
    area = np.outer(
        np.bincount(row_of, minlength=rows),
        np.bincount(np.arange(length) * columns // length, minlength=columns),
    )
    means = sums.reshape(rows, columns) / area
    top = max(float(np.quantile(means[means > 0], 0.98)), 1e-9) if means.any() else 1.0
    panel.imshow(
        np.minimum(np.rint(means / top * _SHADES), _SHADES),
        aspect="auto",
        cmap="Blues",
        extent=(first, first + length, size, 0),
        vmin=0,
        vmax=_SHADES,
        interpolation="nearest",
    )
    label_rounds(panel)
    panel.set_ylabel("clients, most frequent first")
    panel.yaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
