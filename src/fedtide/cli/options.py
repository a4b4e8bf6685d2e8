"""Arguments and options that several commands share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedtide.errors import first_line
from fedtide.sweep import SweepRun
from fedtide.sweep.sweep_runner import OnRunEnd
from fedtide.tracking import make_tracker
from fedtide.validation import require_folder_name

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Values that replace those of the file: rounds=50 local.lr=0.1 'seeds=[1, 2]'",
        show_default=False,
    ),
]
"""Changes to the file, given on the command line."""

RunFolders = Annotated[
    list[Path],
    typer.Argument(metavar="DIR...", help="Folders of runs, or folders that contain them."),
]
"""What `compare` and `report` read."""

Workers = Annotated[
    int | None,
    typer.Option(
        min=1, help="Runs to execute at a time.", show_default="one per core, two on a GPU"
    ),
]
"""How many processes run at a time."""

Track = Annotated[
    str | None,
    typer.Option(
        metavar="mlflow[:URI]|tensorboard[:DIR]|wandb[:PROJECT]",
        help="Also log each run when it has ended. Default place: that of "
        "MLFLOW_TRACKING_URI or mlflow.db beside OUT; tensorboard beside OUT; a project named "
        "after the experiment.",
        show_default=False,
    ),
]
"""Where runs are tracked."""


ForceResume = Annotated[
    bool,
    typer.Option(
        "--force-resume",
        help="Continue even if data, files or imported code have changed since the run began.",
    ),
]
"""Whether a run continues although its inputs have changed."""


def runs_folder(name: str) -> Path:
    """Return the default output folder of a file with this name, runs/NAME.

    Raises:
        InvalidInputError: a name that cannot be the name of a folder.
    """
    require_folder_name("name", name)
    return Path("runs") / name


def split_names(text: str | None) -> list[str] | None:
    """Return the names in a comma-separated list; None for None."""
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def track_runs(wanted: str | None, out: Path, name: str) -> OnRunEnd | None:
    """Return a function that logs finished and failed runs to the store that `--track` names.

    Raises:
        InvalidInputError: a store that cannot be used.
    """
    if wanted is None:
        return None
    tracker = make_tracker(wanted, out, name)

    def track(run: SweepRun, folder: Path) -> None:
        try:
            tracker.log_run(folder, run.fields)
        except Exception as error:  # an unreachable store must not stop the runs
            reason = first_line(error)
            message = f"{folder} was not tracked ({reason}); repeat the command to retry"
            print(f"fedtide: {message}", file=sys.stderr)

    return track
