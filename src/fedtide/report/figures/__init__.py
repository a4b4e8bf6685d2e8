"""The figures of a report."""

from dataclasses import dataclass

from matplotlib.figure import Figure


@dataclass(frozen=True)
class ReportFigure:
    """A figure with its title and caption.

    Args:
        name: its file name without suffix.
        title: what it shows.
        caption: how to read it.
        figure: the drawing.
    """

    name: str
    title: str
    caption: str
    figure: Figure
