"""One style and one way to save a figure, for reports, audits and papers."""

from fedtide.plotting.saving import figure_bytes, figure_svg, save_figure
from fedtide.plotting.style import (
    COLOURS,
    DASHES,
    GREY,
    STYLE,
    Floats,
    label_rounds,
    method_styles,
    new_figure,
    place_legend,
    plain_logarithms,
    thin_out,
)

__all__ = [
    "COLOURS",
    "DASHES",
    "GREY",
    "STYLE",
    "Floats",
    "figure_bytes",
    "figure_svg",
    "label_rounds",
    "method_styles",
    "new_figure",
    "place_legend",
    "plain_logarithms",
    "save_figure",
    "thin_out",
]
