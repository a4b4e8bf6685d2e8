"""`fedtide sweep`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fedtide.cli.progress_bars import View
from fedtide.sweep.configurations import SweepRun
from fedtide.sweep.result_table import RESULTS
from fedtide.sweep.sweep_runner import Done, run_sweep
from fedtide.sweep.sweep_spec import BEST, Sweep
from fedtide.tracking import tracker

Track = Annotated[
    str | None,
    typer.Option(
        metavar="mlflow[:URI]",
        help="Write runs that have ended into an MLflow store; by default mlflow.db beside OUT.",
        show_default=False,
    ),
]
"""The option of all commands that run something."""

_ROWS = 40  # settings that are printed; the file has all


def sweep_command(
    file: Annotated[Path, typer.Argument(help="A sweep file (YAML).", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Values put over those of the file: rounds=50 'seeds=[1, 2]'",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write.", show_default="runs/NAME")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="How many runs at a time.", show_default="one for each core"),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run on the Ray cluster at this address (HOST:PORT, or auto).",
            show_default=False,
        ),
    ] = None,
    track: Track = None,
) -> None:
    """Run an experiment under grids and lists of values, methods and seeds.

    Each run has a folder of its own below the sweep's; results.parquet has one row for each. What
    is finished is left alone: the same command goes on after any interruption, and runs what is new
    after the file has grown. A run that fails is noted, and the others go on.

    Example: fedtide sweep examples/digits-sweep.yaml --out runs/sweep
    """
    sweep = Sweep.load(file, overrides or ())
    out = out or Path("runs") / sweep.name
    with View(sweep.name) as view:
        done = tracked(track, out, sweep.name)
        frame = run_sweep(
            sweep,
            out,
            workers=workers,
            ray=ray,
            progress=view,
            done=done,
        )
    show(frame, Console())
    print(f"results: {out / RESULTS}")
    if sweep.strategy is not None:
        print(f"chosen: {out / BEST}; fedtide run {out / BEST} 'seeds=[1, 2, 3]' runs it")


def tracked(wanted: str | None, out: Path, name: str) -> Done | None:
    """Return what writes runs into the store that `--track` names.

    Raises:
        InvalidInputError: a store that cannot be used.
    """
    if wanted is None:
        return None
    tracks = tracker(wanted, out, name)

    def done(member: SweepRun, folder: Path) -> None:
        try:
            tracks.track(folder, member.fields)
        except Exception as error:  # a store that is away must not end the runs
            said = " ".join(str(error).split())
            said = f"{folder} is not in the store ({said:.120}); the same command tries again"
            print(f"fedtide: {said}", file=sys.stderr)

    return done


def show(frame: pl.DataFrame, console: Console) -> None:
    """Print one line for each setting: its fields, its runs, and the mean of its metrics."""
    fields = frame.columns[1 : frame.columns.index("seed")]
    shown = [name for name in ("loss", "test_accuracy") if name in frame.columns]
    grouped = frame.group_by(fields or [pl.lit("all").alias("runs")], maintain_order=True).agg(
        (pl.col("status") == "done").sum().alias("done"),
        (pl.col("status") == "failed").sum().alias("failed"),
        *(pl.col(name).mean() for name in shown),
    )
    if "best" in fields:
        grouped = grouped.sort("best", descending=True, maintain_order=True)
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, collapse_padding=True)
    for name in grouped.columns:
        table.add_column(name, justify="left" if name in fields else "right")
    for row in grouped.head(_ROWS).iter_rows():
        table.add_row(*map(_cell, row))
    console.print(table)
    if len(grouped) > _ROWS:
        console.print(f"and {len(grouped) - _ROWS} more")
    for run, error in (
        frame.filter(pl.col("status") == "failed").select("run", "error").head(5).rows()
    ):
        console.print(f"failed: {run}: {error}", markup=False, highlight=False, soft_wrap=True)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "✓" if value else ""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
