"""The command `fedtide run`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedtide.cli.options import ForceResume, Overrides, Track, Workers, runs_folder, track_runs
from fedtide.examples import find_example
from fedtide.plotting.console import new_console
from fedtide.plotting.saving import save_figure
from fedtide.report.figures.run_comparison import comparison_figure
from fedtide.report.grouping import arrange
from fedtide.report.loading import load_runs
from fedtide.report.verdict import print_comparison
from fedtide.simulation.progress import ProgressBars
from fedtide.sweep import Sweep, run_sweep
from fedtide.validation import expand_home


def run_command(
    file: Annotated[
        Path,
        typer.Argument(
            help="An experiment file (YAML), or the name of an example.", show_default=False
        ),
    ],
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Output folder.", show_default="runs/NAME, or the next free one"),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the run in the folder after an interruption, or a finished one with a "
            "larger number of rounds.",
        ),
    ] = False,
    force_resume: ForceResume = False,
    workers: Workers = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Train the clients on the Ray cluster at this address (HOST:PORT, or auto), one "
            "run after another; --workers is then the number of its workers.",
            show_default=False,
        ),
    ] = None,
    track: Track = None,
) -> None:
    """Run an experiment, or several methods and seeds of one, and compare the results.

    The output folder receives the resolved experiment, metrics, the participation log, a table of
    the clients, the model and a figure. A run that was interrupted, even by a power cut, continues
    with --resume and gives the same results as an uninterrupted one.

    Example: fedtide run digits rounds=100 --out runs/short
    """
    sweep = Sweep.load(find_example(file), overrides or ())
    out = expand_home(out or _default_out(sweep.name, resume or force_resume))
    if (resume or force_resume) and not os.path.exists(out):  # a path may be too long
        print(
            f"fedtide: {out} does not exist, so the run starts from the beginning", file=sys.stderr
        )
    with ProgressBars(sweep.name) as bars:
        frame = run_sweep(
            sweep,
            out,
            workers=workers,
            cluster=ray,
            strict=True,
            resume="force" if force_resume else resume,
            progress=bars,
            done=track_runs(track, out, sweep.name),
        )
    conditions = arrange(load_runs(frame["folder"]))
    print_comparison(conditions, new_console())
    figure = out / "comparison.png"
    save_figure(comparison_figure(conditions), figure)
    print(f"runs and figure: {out}, {figure}")


def _default_out(name: str, resume: bool) -> Path:
    """Return the first free folder of runs/NAME, runs/NAME-2, ...; to resume, the last in use."""
    used, free = None, runs_folder(name)
    number = 1
    while free.exists():
        number += 1
        used, free = free, runs_folder(f"{name}-{number}")
    return used if resume and used is not None else free
