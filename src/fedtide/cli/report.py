"""The command `fedtide report`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedtide.atomic_io import make_folder
from fedtide.cli.options import RunFolders, print_warnings
from fedtide.errors import Interrupted
from fedtide.plotting.console import new_console
from fedtide.plotting.saving import save_figure
from fedtide.report.comparison import comparison_table
from fedtide.report.loading import OmittedRun, find_repeats, find_runs
from fedtide.report.page import Section, check_page, make_sections, read_sections, write_page
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
    reached. Other unfinished and failed runs are listed. Each problem has its own section, because
    losses and accuracies of different problems are not comparable.

    Example: fedtide report runs/digits --html digits.html
    """
    folders = [expand_home(folder) for folder in folders]
    html = expand_home(html or folders[0] / "report.html")
    check_page(html)
    if watch is not None:
        _watch(folders, target, smooth, html, watch)
    sections, omitted = read_sections(folders, target, smooth)
    write_page(html, sections, omitted)
    if figures is not None:
        figures = expand_home(figures)
        _save_figures(sections, figures)
    _print_summary(sections, omitted)
    print(f"report: {html}" + (f"; figures: {figures}" if figures else ""))


def _watch(
    folders: Sequence[Path], target: str | None, smooth: float, html: Path, seconds: float
) -> None:
    """Write the page at this interval until no run is under way or Ctrl-C is pressed."""
    try:
        while True:
            shown, omitted = find_runs(folders)
            if shown:
                listed = omitted + find_repeats(shown)
                write_page(html, make_sections(shown, target, smooth), listed, seconds)
            ended = all(run.is_finished for run in shown)
            if ended and all(run.state != "unfinished" for run in omitted):
                return
            state = f"{sum(run.is_finished for run in shown)} of {len(shown) + len(omitted)}"
            print(f"report: {html}; {state} runs have finished", flush=True)
            time.sleep(seconds)
    except Interrupted:
        raise typer.Exit from None


def _save_figures(sections: Sequence[Section], folder: Path) -> None:
    """Save every figure as PNG and PDF; several sections get numbered folders."""
    for number, section in enumerate(sections, 1):
        below = folder / str(number) if len(sections) > 1 else folder
        make_folder(below, field="figures")
        for one in (figure for group in section.figures.values() for figure in group):
            for form in ("png", "pdf"):
                save_figure(one.figure, below / f"{one.name}.{form}", dpi=200, field="figures")


def _print_summary(sections: Sequence[Section], omitted: Sequence[OmittedRun]) -> None:
    console = new_console()
    for section in sections:
        if len(sections) > 1:
            console.print(section.name, markup=False)
        runs = [run for group in section.groups.values() for run in group]
        console.print(comparison_table(runs))
        print_warnings(runs, console)
    if omitted:
        states = Counter(run.state for run in omitted)
        counts = " and ".join(f"{number} {state}" for state, number in sorted(states.items()))
        console.print(f"not in the figures: {counts}")
