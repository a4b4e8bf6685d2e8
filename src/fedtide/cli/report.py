"""The command `fedtide report`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from itertools import chain, product
from pathlib import Path
from typing import Annotated

import typer

from fedtide.atomic_io import make_folder
from fedtide.cli.options import RunFolders
from fedtide.errors import Interrupted
from fedtide.plotting.console import new_console
from fedtide.plotting.saving import save_figure
from fedtide.report.comparison import print_warnings
from fedtide.report.loading import find_runs
from fedtide.report.page import Report, check_page, make_report, write_page
from fedtide.report.verdict import print_comparison
from fedtide.validation import expand_home


def report_command(
    folders: RunFolders,
    html: Annotated[
        Path | None,
        typer.Option(help="The HTML file to write.", show_default="report.html in the first DIR"),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Also save every figure here, as PNG and PDF.", show_default=False
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC=LEVEL",
            help="Report the rounds and updates needed to reach this: test_accuracy=0.9, mse=0.1. "
            "Losses and errors are reached from above, other metrics from below.",
            show_default="the level that all methods reach",
        ),
    ] = None,
    smooth: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Average curves over this share of the evaluations (the papers: 0.01).",
        ),
    ] = 0.0,
    watch: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=1.0,
            help="Write the page at this interval, and let browsers reload it, until all runs have "
            "ended; end it with Ctrl-C.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write an HTML report on runs: learning curves, participation, and influence of clients.

    The report is a single HTML file that needs no network. The seeds of a method are drawn as a
    mean with a band. A method without a finished run is shown up to the round that its runs have
    reached. Other unfinished and failed runs are listed. Each condition, such as a problem or a
    participation, has its own table, verdict and figures, and a figure has the curves of all.

    Example: fedtide report runs/digits --html digits.html
    """
    folders = [expand_home(folder) for folder in folders]
    html = expand_home(html or folders[0] / "report.html")
    check_page(html)
    if watch is not None:
        _watch(folders, target, smooth, html, watch)
    report = make_report(*find_runs(folders), target, smooth)
    write_page(html, report)
    if figures is not None:
        figures = expand_home(figures)
        _save_figures(report, figures)
    _print_summary(report)
    print(f"report: {html}" + (f"; figures: {figures}" if figures else ""))


def _watch(
    folders: Sequence[Path], target: str | None, smooth: float, html: Path, seconds: float
) -> None:
    """Write the page at this interval until no run is under way or Ctrl-C is pressed."""
    try:
        while True:
            shown, omitted = find_runs(folders)
            if shown:
                write_page(html, make_report(shown, omitted, target, smooth), seconds)
            ended = all(run.is_finished for run in shown)
            if ended and all(run.state != "unfinished" for run in omitted):
                return
            state = f"{sum(run.is_finished for run in shown)} of {len(shown) + len(omitted)}"
            print(f"report: {html}; {state} runs have finished", flush=True)
            time.sleep(seconds)
    except Interrupted:
        raise typer.Exit from None


def _save_figures(report: Report, folder: Path) -> None:
    """Save every figure as PNG and PDF; those of several conditions in numbered folders."""
    of_sections = [[*chain(*section.figures.values())] for section in report.sections]
    several = len(of_sections) > 1
    for number, figures in enumerate([report.overview, *of_sections]):
        below = folder / str(number) if several and number else folder
        make_folder(below, field="figures")
        for one, form in product(figures, ("png", "pdf")):
            save_figure(one.figure, below / f"{one.name}.{form}", dpi=200, field="figures")


def _print_summary(report: Report) -> None:
    console = new_console()
    print_comparison(report.conditions, console)
    print_warnings(report.conditions, console)
    if report.omitted:
        states = Counter(run.state for run in report.omitted)
        counts = " and ".join(f"{number} {state}" for state, number in sorted(states.items()))
        console.print(f"not in the figures: {counts}")
