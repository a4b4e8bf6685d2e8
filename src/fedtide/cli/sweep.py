"""The command `fedtide sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from rich.console import Console
from rich.markup import escape

from fedtide.cli.options import ForceResume, Overrides, Track, Workers, runs_folder, track_runs
from fedtide.examples import find_example
from fedtide.plotting.console import new_console
from fedtide.plotting.wide_table import WideTable
from fedtide.simulation.progress import ProgressBars
from fedtide.sweep import Sweep, run_sweep
from fedtide.sweep.result_table import RESULTS_FILE
from fedtide.sweep.sweep_spec import BEST_FILE
from fedtide.validation import expand_home

_MAX_ROWS = 40  # configurations printed; the file has all


def sweep_command(
    file: Annotated[
        Path,
        typer.Argument(help="A sweep file (YAML), or the name of an example.", show_default=False),
    ],
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="Output folder.", show_default="runs/NAME")
    ] = None,
    workers: Workers = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run on the Ray cluster at this address (HOST:PORT, or auto).",
            show_default=False,
        ),
    ] = None,
    force_resume: ForceResume = False,
    track: Track = None,
) -> None:
    """Run an experiment under grids and lists of values, methods and seeds.

    Each run has its own folder below the sweep's; results.parquet has one row per run. Repeat the
    command to continue after an interruption, or after adding to the file: finished runs are kept,
    and only missing ones are executed. A failed run is recorded, and the others continue.

    Example: fedtide sweep digits-sweep --out runs/sweep
    """
    sweep = Sweep.load(find_example(file), overrides or ())
    out = expand_home(out or runs_folder(sweep.name))
    with ProgressBars(sweep.name) as bars:
        done = track_runs(track, out, sweep.name)
        frame = run_sweep(
            sweep,
            out,
            workers=workers,
            ray=ray,
            resume="force" if force_resume else True,
            progress=bars,
            done=done,
        )
    _print_results(frame, new_console())
    print(f"results: {out / RESULTS_FILE}")
    if sweep.strategy is not None:
        best = out / BEST_FILE
        command = f'{best}; run it with: fedtide run "{best}" "seeds=[1, 2, 3]"'
        print(f"best: {command if frame['best'].any() else 'none, as all runs failed'}")


def _print_results(frame: pl.DataFrame, console: Console) -> None:
    """Print a numbered row per configuration: its fields, the number of runs, and mean metrics."""
    fields = frame.columns[1 : frame.columns.index("seed")]
    metrics = [name for name in ("loss", "test_accuracy") if name in frame.columns]
    grouped = frame.group_by(fields or [pl.lit("all").alias("runs")], maintain_order=True).agg(
        (pl.col("status") == "done").sum().alias("done"),
        (pl.col("status") == "failed").sum().alias("failed"),
        *(pl.col(name).mean() for name in metrics),
    )
    if "best" in fields:
        grouped = grouped.sort("best", descending=True, maintain_order=True)
    table = WideTable()
    table.add_column("#", justify="right")
    for name in grouped.columns:
        table.add_column(escape(name), justify="left" if name in fields else "right")
    for number, row in enumerate(grouped.head(_MAX_ROWS).rows(), start=1):
        table.add_row(str(number), *(escape(_format_cell(value)) for value in row))
    console.print(table)
    if len(grouped) > _MAX_ROWS:
        console.print(f"and {len(grouped) - _MAX_ROWS} more")
    failed = frame.filter(pl.col("status") == "failed").select("run", "error").head(5)
    for run, error in failed.rows():
        console.print(f"failed: {run}: {error}", markup=False, highlight=False, soft_wrap=True)


def _format_cell(value: object) -> str:
    if isinstance(value, bool):
        return "✓" if value else ""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
