"""`fedtide report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedtide.atomic_io import make_folder, write_text
from fedtide.errors import InvalidInputError
from fedtide.plotting.style import write_figure
from fedtide.report.comparison import comparison, comparison_table
from fedtide.report.loading import OtherRun, survey
from fedtide.report.page import Part, parts, render


def report_command(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Folders of runs, or folders of such folders."),
    ],
    html: Annotated[
        Path | None,
        typer.Option(help="Write the page there.", show_default="report.html in the first DIR"),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Also write every figure there, as PNG and PDF.", show_default=False
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC=LEVEL",
            help="Say how many rounds and updates it takes to get there.",
            show_default="what all methods reach in the end",
        ),
    ] = None,
    smooth: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Average curves over this share of the evaluations (papers: 0.01).",
        ),
    ] = 0.0,
) -> None:
    """Write a page on runs: how methods learn, who takes part, whose objective is minimised.

    One HTML file that needs no network. Runs of one method under several seeds are drawn as a mean
    with a band. Runs that are under way or have failed are listed. Runs of different problems are
    shown one after another: their losses and accuracies cannot be compared.

    Example: fedtide report runs/digits --html digits.html
    """
    finished, others = survey(folders)
    found = parts(finished, target, smooth)
    html = html or folders[0] / "report.html"
    make_folder(html.parent)
    if html.is_dir():
        raise InvalidInputError(f"out: {html} is a folder; give a file, such as report.html")
    write_text(html, render(found, others, _title(found)))
    if figures is not None:
        write_figures(found, figures)
    _show(found, others)
    print(f"report: {html}" + (f"; figures: {figures}" if figures else ""))


def _title(found: Sequence[Part]) -> str:
    names = ", ".join(dict.fromkeys(part.name for part in found))
    methods = dict.fromkeys(method for part in found for method in part.groups)
    listed = ", ".join(methods)
    return f"{names}: {listed if len(listed) <= 60 else f'{len(methods)} methods'}"


def write_figures(found: Sequence[Part], folder: Path) -> None:
    """Write every figure as PNG and PDF, fit for a paper.

    Raises:
        InvalidInputError: a folder that cannot be written.
    """
    for number, part in enumerate(found, 1):
        below = folder / str(number) if len(found) > 1 else folder
        make_folder(below)
        for one in (picture for group in part.pictures.values() for picture in group):
            for form in ("png", "pdf"):
                write_figure(one.figure, below / f"{one.name}.{form}", dpi=200)


def _show(found: Sequence[Part], others: Sequence[OtherRun]) -> None:
    console = Console()
    for part in found:
        if len(found) > 1:
            console.print(part.name, markup=False)
        console.print(
            comparison_table(comparison(run for group in part.groups.values() for run in group))
        )
    if others:
        states = [f"{sum(o.state == s for o in others)} {s}" for s in ("failed", "unfinished")]
        console.print(f"not in the figures: {' and '.join(states)}")
