"""Saving a figure: as a PNG, PDF or SVG file, or as SVG inside an HTML page."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from fedtide.atomic_io import write_atomically
from fedtide.plotting.style import STYLE
from fedtide.validation import require_suffix

FIGURE_SUFFIXES = (".png", ".pdf", ".svg")
"""The formats in which a figure can be saved."""

_NO_DATE = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # same figure, same bytes


def figure_bytes(figure: Figure, form: str, dpi: int = 200, background: str = "auto") -> bytes:
    """Return the contents of a png, pdf or svg file; equal figures give equal bytes."""
    file = io.BytesIO()
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        if form == "svg":  # text stays text, which the reader's fonts draw
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
        metadata = _NO_DATE.get(form, {})
        figure.savefig(file, format=form, dpi=dpi, metadata=metadata, facecolor=background)
    return file.getvalue()


def save_figure(figure: Figure, path: Path, dpi: int = 150, field: str = "figure") -> None:
    """Write a figure atomically as PNG, PDF or SVG, chosen by the suffix of `path`.

    Args:
        figure: the figure.
        path: the file; its folder is created if only that is missing.
        dpi: the resolution of a PNG.
        field: the field that an error names.

    Raises:
        InvalidInputError: another suffix, or the file cannot be written.
    """
    require_suffix(field, path, FIGURE_SUFFIXES)
    content = figure_bytes(figure, path.suffix.lower().removeprefix("."), dpi)
    hint = "choose another place"
    write_atomically(path, lambda draft: draft.write_bytes(content), field, hint)


def figure_svg(figure: Figure, title: str, prefix: str) -> str:
    """Return an SVG element for an HTML page, transparent and as wide as its column.

    Args:
        figure: the figure.
        title: its text alternative, escaped for an HTML attribute.
        prefix: put before every id of the SVG; must be unique on the page.
    """
    text = figure_bytes(figure, "svg", background="none").decode()
    text = text[text.index("<svg") :]
    text = re.sub(
        r'width="[\d.]+pt" height="[\d.]+pt"', f'role="img" aria-label="{title}"', text, count=1
    )
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    return text.replace("DejaVu Sans", "inherit")
