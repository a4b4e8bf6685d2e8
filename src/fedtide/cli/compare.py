"""The command `fedtide compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedtide.cli.options import RunFolders
from fedtide.plotting.console import new_console
from fedtide.plotting.saving import FIGURE_SUFFIXES, save_figure
from fedtide.report.comparison import print_warnings
from fedtide.report.figures.run_comparison import comparison_figure
from fedtide.report.grouping import arrange
from fedtide.report.loading import find_repeats, load_runs
from fedtide.report.table_file import TABLE_SUFFIXES, write_table
from fedtide.report.target_table import print_targets
from fedtide.report.verdict import print_comparison
from fedtide.validation import expand_home, require_suffix


def compare_command(
    folders: RunFolders,
    figure: Annotated[
        Path | None, typer.Option(help="Also save the comparison figure (.png, .pdf or .svg).")
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            help="Also save the table: .md or .tex (LaTeX with booktabs) as printed, .csv with all "
            "digits."
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC=LEVEL",
            help="Also print what it takes to reach a level, such as test_accuracy=0.9: rounds, "
            "updates, bytes and, with timing, hours.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Compare finished runs: one row per method, mean ± standard deviation over its seeds.

    Methods appear in the order of the folders, those of a sweep in the order of its file. A method
    without a finished run is shown up to its last evaluation, and its name says so. If runs have
    the same experiment and seed, only the first is shown. Each condition, such as a problem or a
    participation, has its own table.

    Worst tenth: the mean over the tenth of the clients with the lowest test accuracy. Spread: the
    standard deviation over the clients. Class-weighted: the accuracies of the classes on the common
    test set, weighted by the client's shares of the classes. Weighted by participation: the loss
    that plain averaging minimises.

    Example: fedtide compare runs/digits --table digits.tex --figure digits.pdf
    """
    if figure is not None:
        figure = expand_home(figure)
        require_suffix("figure", figure, FIGURE_SUFFIXES)
    if table is not None:
        table = expand_home(table)
        require_suffix("table", table, TABLE_SUFFIXES)
    runs = load_runs(folders)
    conditions = arrange(runs)
    console = new_console()
    print_comparison(conditions, console)
    if to is not None:
        print_targets(conditions, to, console)
    print_warnings(conditions, console)
    if repeats := find_repeats(runs):
        first = f"{repeats[0].folder.path} {repeats[0].message}"
        more = f", and {len(repeats) - 1:,} more likewise" if len(repeats) > 1 else ""
        text = f"not in the table: {first}{more}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    if table is not None:
        write_table(conditions, table)
    if figure is not None:
        save_figure(comparison_figure(conditions), figure)
