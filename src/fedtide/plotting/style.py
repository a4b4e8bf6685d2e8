"""The style of all figures: palette, line styles, panels, legends and axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
from numpy.typing import NDArray

Floats = NDArray[np.float64]

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#000000")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""

DASHES = ("-", "--", "-.", ":")
"""Line styles; after eight methods the colours repeat with the next one."""

GREY = "#8a8f98"
"""The colour of axes and of whatever stays in the background."""

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": "#333333",
    "axes.titlesize": 10,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "legend.framealpha": 0.75,
    "legend.edgecolor": "none",
    "legend.fontsize": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedtide",
    "pdf.fonttype": 42,
    "font.family": "sans-serif",
}
"""Matplotlib's settings for every figure."""

_LONG_LABEL = 28  # characters; a legend with a longer label goes below the figure


def new_figure(
    height: float = 2.9,
    columns: int = 1,
    width: float = 5.6,
    width_ratios: Sequence[float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """Return a figure (inches) and its panels side by side; without `width_ratios` they share y."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        panels = figure.subplots(
            1,
            columns,
            squeeze=False,
            sharey=columns > 1 and width_ratios is None,
            width_ratios=width_ratios,
        )
        return figure, list(panels[0])


def method_styles(methods: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the colour and line style of each method, by its place in the order given."""
    looks = cycle([(colour, dashes) for dashes in DASHES for colour in COLOURS])
    return {
        method: {"color": colour, "linestyle": dashes}
        for method, (colour, dashes) in zip(methods, looks, strict=False)
    }


def shorten(name: str, most: int = 18) -> str:
    """Return the beginning of a long name, for a label.

    >>> shorten("south-hospital-of-the-city")
    'south-hospital-of…'
    """
    return name if len(name) <= most else f"{name[: most - 1]}…"


def place_legend(panel: Axes, outside: bool = False) -> None:
    """Add a legend: in the panel if it is short, else (or if `outside`) below the figure."""
    handles, labels = panel.get_legend_handles_labels()
    if not handles:
        return
    long = max(map(len, labels)) > _LONG_LABEL
    with mpl.rc_context(STYLE):
        if len(labels) <= 5 and not long and not outside:
            panel.legend(handles, labels)
            return
        figure = panel.get_figure()
        assert isinstance(figure, Figure)
        columns = 1 if long else 3
        rows = -(-len(labels) // columns)
        figure.set_figheight(figure.get_figheight() + 0.19 * rows)
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def label_rounds(panel: Axes) -> None:
    """Label the horizontal axis with whole rounds."""
    panel.set_xlabel("round")
    panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))


class _PlainLogLocator(LogLocator):
    """Ticks at 1, 2 and 5 of each decade; powers of ten on long axes, even steps on short ones."""

    def tick_values(self, vmin: float, vmax: float) -> Any:
        """Return the first of these three kinds of ticks that puts 2 to 10 of them in view."""
        low, high = sorted((vmin, vmax))
        for subs in ((1, 2, 5), (1,)):
            self.set_params(subs=subs)
            ticks = np.asarray(super().tick_values(vmin, vmax))
            if 2 <= ((low <= ticks) & (ticks <= high)).sum() <= 10:
                return ticks
        return MaxNLocator(4, steps=[1, 2, 5, 10]).tick_values(low, high)


def plain_logarithms(axis: Axis) -> None:
    """Make an axis logarithmic with plain numbers."""
    axes = axis.axes
    (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
    axis.set_major_locator(_PlainLogLocator())
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def thin_out(values: Floats) -> tuple[Floats, Floats]:
    """Return the indices and values of at most 400 entries, evenly spaced."""
    chosen = np.linspace(0, len(values) - 1, min(400, len(values))).astype(int)
    return chosen.astype(np.float64), values[chosen]
