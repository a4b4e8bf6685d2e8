"""The style of all figures: palette, line styles, panels, legends and axes."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from io import BytesIO
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import (
    LogLocator,
    MaxNLocator,
    NullFormatter,
    PercentFormatter,
    StrMethodFormatter,
)
from numpy.typing import NDArray

Floats = NDArray[np.float64]

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, which colour-blind readers can tell apart, without its pale yellow."""

DASHES = ("-", "--", "-.", ":")
"""Line styles; after seven methods the colours repeat with the next line style."""

MARKERS = dict(zip(DASHES, "os^D", strict=True))
"""The marker of a method where its line style cannot be seen."""

_USUAL_COLOURS = {
    "average-all": 3,
    "average-participating": 0,
    "amplified": 5,
    "amplified-fedavg": 5,
    "amplified-scaffold": 2,
    "fedau": 1,
    "fedau-50": 1,
    "fedavg": 0,
    "fedavg-all": 3,
    "fedlaavg": 2,
    "fedprox": 3,
    "fedvarp": 5,
    "known": 2,
    "known-rates": 2,
    "mifa": 4,
    "scaffold": 4,
}
"""The colours of frequent names; methods often compared with one another have different ones."""

Styles = Mapping[str, dict[str, Any]]
"""The colour and line style of each method, as arguments of Matplotlib's functions."""

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
    "legend.edgecolor": "none",
    "legend.fontsize": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedtide",
    "pdf.fonttype": 42,
    "font.family": "sans-serif",
}
"""Matplotlib's settings for every figure."""

_UNNAMED = re.compile("$|_child[0-9]+$|_nolegend_$")  # Matplotlib's default labels
_LETTERS = 13.0  # letters per inch of a legend's text
_HANDLE = 9  # letters, the width of an entry's line and its space
_LEGEND_LINE = 0.19  # inches


class ShownFigure(Figure):
    """A figure that notebooks show; Matplotlib's own figures need pyplot to be imported."""

    def _repr_png_(self) -> bytes:
        picture = BytesIO()
        self.savefig(picture, format="png", dpi=110)
        return picture.getvalue()


def new_figure(
    height: float = 2.9,
    columns: int = 1,
    width: float = 5.6,
    width_ratios: Sequence[float] | None = None,
    rows: int = 1,
    share: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Return a figure, sized in inches, and its panels row by row.

    Panels in one row share their vertical axis, unless `width_ratios` are given; with `share` all
    panels share both axes. Titles and labels may contain names that users chose, so they are not
    read as formulas.
    """
    with mpl.rc_context(STYLE):
        figure = ShownFigure(figsize=(width, height), layout="constrained")
        panels = figure.subplots(
            rows,
            columns,
            squeeze=False,
            sharex=share,
            sharey=share or (columns > 1 and rows == 1 and width_ratios is None),
            width_ratios=width_ratios,
        )
    for panel in panels.flat:
        for label in (panel.title, panel.xaxis.label, panel.yaxis.label):
            label.set_parse_math(False)
    return figure, list(panels.flat)


def method_styles(methods: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the colour and line style of each method.

    They depend on the names, not on their order; labels such as "fedau, cutoff 5" prefer the colour
    of their first part. Adding a method changes the style of another only if both prefer the same
    colour.

    >>> method_styles(["fedau", "fedavg"])["fedavg"]
    {'color': '#0072B2', 'linestyle': '-'}
    """
    methods = list(dict.fromkeys(methods))
    free: list[tuple[str, str]] = []
    styles = {}
    for method in sorted(methods, key=lambda name: (name not in _USUAL_COLOURS, name)):
        free = free or [(colour, dashes) for dashes in DASHES for colour in COLOURS]
        first = free[0][1]  # the line style in use
        wanted = _preferred_colour(method)
        order = [COLOURS[(wanted + i) % len(COLOURS)] for i in range(len(COLOURS))]
        look = next((colour, first) for colour in order if (colour, first) in free)
        free.remove(look)
        styles[method] = {"color": look[0], "linestyle": look[1]}
    return {method: styles[method] for method in methods}


def _preferred_colour(method: str) -> int:
    name = re.split(", | \\(", method)[0]
    return _USUAL_COLOURS.get(name, sha256(name.encode()).digest()[0] % len(COLOURS))


def shorten(name: str, most: int = 18) -> str:
    """Return the beginning of a long name, for a label.

    >>> shorten("south-hospital-of-the-city")
    'south-hospital-of…'
    """
    return name if len(name) <= most else f"{name[: most - 1]}…"


def place_legend(*panels: Axes) -> None:
    """Put one legend for these panels below the figure, where it covers no data."""
    handles: list[Any] = [h for p in panels for h in (*p.get_children(), *p.containers)]
    found = {
        label: handle
        for handle in handles
        if isinstance(label := handle.get_label(), str) and not _UNNAMED.match(label)
    }  # Matplotlib's own list leaves out names that begin with an underscore
    if not found:
        return
    figure = panels[0].get_figure()
    assert isinstance(figure, Figure)
    letters = int(_LETTERS * figure.get_figwidth())
    labels = ["\n".join(textwrap.wrap(label, letters - _HANDLE)) for label in found]
    longest = max(len(line) for label in labels for line in label.splitlines())
    columns = max(1, min(len(labels), letters // (longest + _HANDLE)))
    lines = sum(
        max(label.count("\n") + 1 for label in labels[row : row + columns])
        for row in range(0, len(labels), columns)
    )
    figure.set_figheight(figure.get_figheight() + _LEGEND_LINE * (lines + 0.5))
    with mpl.rc_context({**STYLE, "text.parse_math": False}):
        figure.legend(found.values(), labels, loc="outside lower center", ncols=columns)


def label_rounds(panel: Axes) -> None:
    """Label the horizontal axis with whole rounds."""
    panel.set_xlabel("round")
    panel.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))


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


def percentages(axis: Axis) -> None:
    """Show the shares on an axis in per cent, and nothing below 0 or above 100 %."""
    axes = axis.axes
    is_x = axis is axes.xaxis
    low, high = axes.get_xlim() if is_x else axes.get_ylim()
    (axes.set_xlim if is_x else axes.set_ylim)(max(0.0, low), min(1.0, high))
    axis.set_major_formatter(PercentFormatter(1.0))


def thin_out(values: Floats) -> tuple[Floats, Floats]:
    """Return the indices and values of at most 400 entries, evenly spaced."""
    chosen = np.linspace(0, len(values) - 1, min(400, len(values))).astype(int)
    return chosen.astype(np.float64), values[chosen]
