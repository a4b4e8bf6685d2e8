"""The command `fedtide sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from rich.console import Console

from fedtide.cli.options import ForceResume, Overrides, Track, Workers, runs_folder, track_runs
from fedtide.examples import find_example
from fedtide.plotting.console import new_console
from fedtide.report.grouping import arrange
from fedtide.report.loading import load_runs
from fedtide.report.verdict import print_comparison
from fedtide.simulation.progress import ProgressBars
from fedtide.sweep import Sweep, run_sweep
from fedtide.sweep.result_table import RESULTS_FILE
from fedtide.sweep.sweep_spec import BEST_FILE
from fedtide.validation import expand_home

_MOST = 5  # failures printed; the file has all


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
    """Print the comparison of the finished runs, or of the best ones of a search, and failures."""
    done = frame.filter(pl.col("status") == "done")
    if len(done):
        best = done.filter("best") if "best" in done.columns else done
        shown = {Path(folder).resolve() for folder in best["folder"]}
        conditions = {
            condition: {
                method: group
                for method, group in groups.items()
                if group[0].folder.path.resolve() in shown
            }
            for condition, groups in arrange(load_runs(done["folder"])).items()
        }
        print_comparison({name: kept for name, kept in conditions.items() if kept}, console)
    failed = frame.filter(pl.col("status") == "failed")
    for run, error in failed.select("run", "error").head(_MOST).rows():
        console.print(f"failed: {run}: {error}", markup=False, highlight=False, soft_wrap=True)
    if len(failed) > _MOST:
        console.print(f"and {len(failed) - _MOST:,} more")
