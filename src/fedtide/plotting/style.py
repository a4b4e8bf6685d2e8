"""How the figures of a report look, on the page and on paper."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
from numpy.typing import NDArray

from fedtide.atomic_io import write_atomically

Floats = NDArray[np.float64]

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#000000")
"""Okabe and Ito's palette, told apart by the colour-blind too."""

DASHES = ("-", "--", "-.", ":")
"""Beyond eight methods, colours come again with other dashes."""

_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a8f98",
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


def axes(height: float = 2.9, columns: int = 1, width: float = 5.6) -> tuple[Figure, list[Axes]]:
    """Return an empty figure with so many panels side by side, in inches."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        panels = figure.subplots(1, columns, squeeze=False, sharey=columns > 1)
        return figure, list(panels[0])


def styles(methods: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the colour and the dashes of each method, the same ones in every figure."""
    looks = [(colour, dashes) for dashes in DASHES for colour in COLOURS]
    return {
        method: {"color": colour, "linestyle": dashes}
        for method, (colour, dashes) in zip(methods, cycle(looks), strict=False)
    }


def legend(panel: Axes, methods: int) -> None:
    """Put the legend inside where it is short, and below the figure where it is not."""
    handles, labels = panel.get_legend_handles_labels()
    if not handles:
        return
    with mpl.rc_context(_STYLE):
        if methods <= 5 and max(map(len, labels)) <= 28:
            panel.legend(handles, labels)
            return
        figure = panel.get_figure()
        assert isinstance(figure, Figure)
        columns = 1 if max(map(len, labels)) > 28 else 3
        rows = -(-len(labels) // columns)
        figure.set_figheight(figure.get_figheight() + 0.19 * rows)
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def saved(figure: Figure, form: str, dpi: int = 200) -> bytes:
    """Return the figure as a file of this form: png, pdf or svg."""
    file = io.BytesIO()
    metadata = {"Date": None} if form == "svg" else {"CreationDate": None} if form == "pdf" else {}
    with mpl.rc_context(_STYLE):
        figure.savefig(file, format=form, dpi=dpi, metadata=metadata)
    return file.getvalue()


def write_figure(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Write a figure as PNG, PDF or SVG, by the suffix of `path`, at once or not at all.

    Raises:
        InvalidInputError: the file cannot be written.
    """
    content = saved(figure, path.suffix.removeprefix("."), dpi)
    write_atomically(path, lambda draft: draft.write_bytes(content), hint="choose another place")


def svg(figure: Figure, title: str, name: str) -> str:
    """Return the figure as SVG that fills its column, with a title for those who do not see it.

    Args:
        figure: what to show.
        title: what it is.
        name: different for every figure of a page: what is in the SVG is named after it.
    """
    figure.patch.set_alpha(0.0)
    text = saved(figure, "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(
        r'width="[\d.]+pt" height="[\d.]+pt"', f'role="img" aria-label="{title}"', text, count=1
    )
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    return text.replace("DejaVu Sans", "inherit")


def over_rounds(panel: Axes) -> None:
    """Let the horizontal axis be that of the rounds."""
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


def thinned(values: Floats) -> tuple[Floats, Floats]:
    """Return the places and values of at most 400 entries."""
    chosen = np.linspace(0, len(values) - 1, min(400, len(values))).astype(int)
    return chosen.astype(np.float64), values[chosen]


@dataclass(frozen=True)
class Picture:
    """A figure with its words.

    Args:
        name: of its file.
        title: what it shows.
        caption: how to read it.
        figure: what is drawn.
    """

    name: str
    title: str
    caption: str
    figure: Figure
