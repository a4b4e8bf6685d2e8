"""`fedtide run` and `fedtide compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedtide.cli.progress_bars import View
from fedtide.cli.sweep import Track, tracked
from fedtide.report.comparison import comparison, comparison_table
from fedtide.report.figures.run_comparison import draw_comparison
from fedtide.report.loading import load_runs
from fedtide.sweep import Sweep, run_sweep


def run(
    file: Annotated[Path, typer.Argument(help="An experiment file (YAML).", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Values put over those of the file: rounds=50 algorithm.cutoff=20",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder to write.", show_default="runs/NAME, or the next free one"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what was interrupted in the folder.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many runs at a time, where the file asks for several.",
            show_default="one for each core",
        ),
    ] = None,
    track: Track = None,
) -> None:
    """Run an experiment, or several methods and seeds of one, and compare what comes out.

    The folder then holds the resolved experiment, metrics, the participation log, a table of the
    clients, the model, and a figure. A run that is interrupted, even by a power cut, goes on with
    --resume and ends as if nothing had happened.

    Example: fedtide run examples/digits.yaml rounds=100 --out runs/short
    """
    sweep = Sweep.load(file, overrides or ())
    out = out or _default_out(sweep.name, resume)
    with View(sweep.name) as view:
        frame = run_sweep(
            sweep,
            out,
            workers=workers,
            strict=True,
            resume=resume,
            progress=view,
            done=tracked(track, out, sweep.name),
        )
    folders = [Path(folder) for folder in frame["folder"]]
    _show(folders, out)


def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Folders of runs, or folders of such folders."),
    ],
    figure: Annotated[
        Path | None, typer.Option(help="Also draw the comparison there (.png or .pdf).")
    ] = None,
) -> None:
    """Compare finished runs: one row per method, mean ± standard deviation over its seeds."""
    runs = load_runs(folders)
    Console().print(comparison_table(comparison(runs)))
    if figure is not None:
        draw_comparison(runs, figure)


def _show(folders: list[Path], out: Path) -> None:
    runs = load_runs(folders)
    Console().print(comparison_table(comparison(runs)))
    draw_comparison(runs, out / "comparison.png")
    print(f"runs and figure: {out}, {out / 'comparison.png'}")


def _default_out(name: str, resume: bool) -> Path:
    """Return runs/NAME or the first free runs/NAME-2, ...; the last one taken to resume."""
    taken, free = None, Path("runs") / name
    number = 1
    while free.exists():
        number += 1
        taken, free = free, Path("runs") / f"{name}-{number}"
    return taken if resume and taken is not None else free
