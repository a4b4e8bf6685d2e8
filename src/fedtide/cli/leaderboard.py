"""The command `fedtide leaderboard`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedtide.errors import InvalidInputError
from fedtide.leaderboard.cell_record import load_results
from fedtide.leaderboard.cell_runner import estimate_seconds, run_cells
from fedtide.leaderboard.leaderboard_page import format_hours, regret_text, write_page
from fedtide.leaderboard.search import CellResult
from fedtide.leaderboard.spec import CellPlan, load_leaderboard
from fedtide.leaderboard.standings import Standings, load_standings
from fedtide.plotting.console import new_console
from fedtide.plotting.wide_table import WideTable
from fedtide.sweep.local_workers import available_cores
from fedtide.validation import require_suffix


def leaderboard_command(
    problems: Annotated[
        str | None, typer.Option(help="Only these problems: quadratic,digits.", show_default=False)
    ] = None,
    patterns: Annotated[
        str | None,
        typer.Option(
            help="Only these patterns of participation: bursts,phones.", show_default=False
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Only these methods: fedavg,fedau.", show_default=False)
    ] = None,
    add: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A YAML file with further `patterns` and `methods`, written as in fedtide's "
            "leaderboard.yaml; can be repeated. Use --records to keep them apart.",
            show_default=False,
        ),
    ] = None,
    records: Annotated[Path, typer.Option(help="Folder of the records.")] = Path(
        "results/leaderboard"
    ),
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="How many cells at a time.", show_default="one per core"),
    ] = None,
    show: Annotated[
        bool,
        typer.Option("--show", help="Show the recorded regrets and what is missing; run nothing."),
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option(help="Write all records as Markdown, with a heat map; run nothing."),
    ] = None,
) -> None:
    """Compare all methods under many patterns of participation, each tuned with the same budget.

    A cell is a method under a pattern on a problem: 12 trials tune its local learning rate and one
    more hyper-parameter, then five seeds are judged. The regret is the excess over FedAvg under
    full participation. Recorded cells are not run again, so the same command continues after an
    interruption.

    Example: fedtide leaderboard --problems quadratic --methods fedavg,fedau

    A file for --add, with a method of your own by its import path:

    \b
    methods:
      mine:
        algorithm: {type: "my_module:Mine"}
        tune: {beta: [0.1, 0.2, 0.4, 0.6, 0.8]}
        memory: d
    """
    if records.exists() and not records.is_dir():
        raise InvalidInputError(f"records: {records} is a file; give the folder of the records")
    if write is not None:
        require_suffix("write", write, [".md"])
    board = load_leaderboard(add or ())
    cells = board.cells(_split(problems), _split(patterns), _split(methods))
    if write is not None:
        write_page(write, load_standings(board, records))
        print(f"leaderboard: {write}")
        return
    if not show:
        run_cells(cells, records, workers or available_cores(), _Progress(cells, records))
    _show(load_standings(board, records), cells)


class _Progress:
    """Prints a line for each cell that has ended."""

    def __init__(self, cells: list[CellPlan], records: Path) -> None:
        results = load_results(cells, records)
        self._ended, self._all = len(results), len(cells)
        missing = [cell for cell in cells if cell.place not in results]
        if missing:
            left = format_hours(estimate_seconds(missing, results))
            print(f"leaderboard: {len(missing)} cells, {left} of one core", file=sys.stderr)

    def __call__(self, cell: CellPlan, result: CellResult, left: float) -> None:
        self._ended += 1
        print(
            f"[{self._ended}/{self._all}] {'/'.join(cell.place)}: {result.seconds:.0f} s; "
            f"{format_hours(left)} of one core left",
            file=sys.stderr,
            flush=True,
        )


def _show(standings: Standings, cells: list[CellPlan]) -> None:
    """Print the regrets of these cells, and what is missing."""
    console = new_console()
    for problem in dict.fromkeys(cell.problem for cell in cells):
        console.print(_regrets(standings, [cell for cell in cells if cell.problem == problem]))
    missing = [cell for cell in cells if cell.place not in standings.results]
    if missing:
        left = format_hours(estimate_seconds(missing, standings.results))
        print(f"not run: {len(missing)} of {len(cells)} cells, {left} of one core")


def _regrets(standings: Standings, cells: list[CellPlan]) -> WideTable:
    """Return the regrets on one problem: a row per method, a column per pattern."""
    board, problem = standings.board, cells[0].problem
    table = WideTable(
        title=f"{board.problems[problem].title}; regret: {board.problems[problem].figure}"
    )
    patterns = [name for name in board.patterns if any(cell.pattern == name for cell in cells)]
    for head in ("method", *patterns):
        table.add_column(head)
    for method in board.methods:
        if any(cell.method == method and cell.pattern in patterns for cell in cells):
            table.add_row(method, *(regret_text(standings, problem, p, method) for p in patterns))
    return table


def _split(text: str | None) -> list[str] | None:
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]
