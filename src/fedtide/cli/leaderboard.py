"""The command `fedtide leaderboard`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from joblib.externals.loky import cpu_count

from fedtide.cli.options import split_names
from fedtide.errors import InvalidInputError
from fedtide.leaderboard.cells import (
    CellRecord,
    Results,
    estimate_seconds,
    load_results,
    run_cells,
    tried_settings,
)
from fedtide.leaderboard.leaderboard_page import (
    format_hours,
    regret_text,
    value_text,
    write_page,
)
from fedtide.leaderboard.spec import Cell, load_leaderboard
from fedtide.leaderboard.standings import Standings
from fedtide.plotting.console import new_console
from fedtide.plotting.wide_table import WideTable
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
            help="A YAML file with further `problems`, `patterns` and `methods`, written as in "
            "fedtide's leaderboard.yaml; can be repeated. Use --records to keep their results "
            "apart.",
            show_default=False,
        ),
    ] = None,
    records: Annotated[Path, typer.Option(help="The Parquet file of the records.")] = Path(
        "results/leaderboard.parquet"
    ),
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="How many cells to run at a time.", show_default="one per core"),
    ] = None,
    show: Annotated[
        bool,
        typer.Option("--show", help="Show the recorded regrets and what is missing; run nothing."),
    ] = False,
    trials: Annotated[
        bool,
        typer.Option(
            "--trials",
            help="Show the tuning trials of the recorded cells and the value with each seed; run "
            "nothing.",
        ),
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option(
            help="Write the records of these problems, patterns and methods as Markdown, with a "
            "heat map; run nothing."
        ),
    ] = None,
) -> None:
    """Compare all methods under many patterns of participation, each tuned with the same budget.

    A cell is a method under a pattern on a problem: 12 trials tune its local learning rate and one
    more hyper-parameter, then it is judged on five seeds. The regret is the excess over FedAvg
    under full participation. Recorded cells are not run again, so the same command continues after
    an interruption.

    Example: fedtide leaderboard --problems quadratic --methods fedavg,fedau

    A file for --add with your own method, named by its import path:

    ```yaml
    methods:
      mine:
        algorithm: {type: "my_module:Mine"}
        tune: {beta: [0.1, 0.2, 0.4, 0.6, 0.8]}
        memory: d
    ```
    """
    if records.is_dir():
        raise InvalidInputError(f"records: {records} is a folder; give a file, such as my.parquet")
    board = load_leaderboard(add or ())
    chosen = split_names(problems), split_names(patterns), split_names(methods)
    if write is not None:
        require_suffix("write", write, [".md"])
        part = board.restrict(*chosen)
        write_page(write, Standings(part, load_results(part.cells(), records)))
        print(f"leaderboard: {write}")
        return
    cells = board.cells(*chosen)
    if not show and not trials:
        run_cells(cells, records, workers or cpu_count(), _print_progress)
    results = load_results(cells, records)
    if trials:
        _show_trials(cells, results)
    else:
        _show_regrets(Standings(board, results), cells)
    missing = [cell for cell in cells if cell.place not in results]
    if missing:
        left = format_hours(estimate_seconds(missing, results))
        print(f"not run: {len(missing)} of {len(cells)} cells, {left} of one core")


def _print_progress(cell: Cell, record: CellRecord, left: float) -> None:
    """Print a line for a cell that has ended."""
    text = f"{'/'.join(cell.place)}: {record.seconds:.0f} s; {format_hours(left)} of one core left"
    print(text, file=sys.stderr, flush=True)


def _show_trials(cells: list[Cell], results: Results) -> None:
    """Print the trials of the recorded cells, and the value with each judged seed."""
    console = new_console()
    for cell in cells:
        if (result := results.get(cell.place)) is None:
            continue
        table = WideTable()
        for head in ("γ", cell.tuned[0], f"value, seed {result.tuning_seed}", ""):
            table.add_column(head)
        for setting, trial in zip(tried_settings(cell, result), result.trials, strict=True):
            chosen = "chosen" if setting == result.best else ""
            table.add_row(*(f"{one:g}" for one in setting), value_text(trial), chosen)
        console.print(table)
        values = zip(result.seeds, result.figures, strict=True)
        judged = ", ".join(f"{value_text(value)} (seed {seed})" for seed, value in values)
        console.print(f"{'/'.join(cell.place)}: {judged}\n", highlight=False)


def _show_regrets(standings: Standings, cells: list[Cell]) -> None:
    """Print the regrets of these cells: a row per method, a column per pattern."""
    console, board = new_console(), standings.board
    for name in dict.fromkeys(cell.problem for cell in cells):
        places = {cell.place[1:] for cell in cells if cell.problem == name}
        patterns = [one for one in board.patterns if any(one == p for p, _ in places)]
        table = WideTable()
        for head in ("method", *patterns):
            table.add_column(head)
        for method in board.methods:
            if any((pattern, method) in places for pattern in patterns):
                texts = (regret_text(standings, name, pattern, method) for pattern in patterns)
                table.add_row(method, *texts)
        task = board.problems[name]
        console.print(f"{task.title}; regret: {task.measure}", highlight=False)
        console.print(table)
