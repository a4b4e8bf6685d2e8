"""Logs runs to Weights & Biases, online or offline."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtide.atomic_io import make_folder
from fedtide.errors import MissingExtraError
from fedtide.simulation.experiment_files import flatten
from fedtide.simulation.run_folder import RunFolder
from fedtide.tracking.base import Row, TrackedRun, Tracker, finite_metrics, is_logged, read_speed


class WandbTracker(Tracker):
    """Logs runs to a project of Weights & Biases.

    The settings of the library apply: WANDB_MODE=offline, for example, writes files that `wandb
    sync` uploads later.

    Args:
        project: the project.
        folder: where the library keeps its files; created if missing.

    Raises:
        MissingExtraError: the library is not installed.
    """

    def __init__(self, project: str, folder: str | Path = ".") -> None:
        try:
            import wandb
        except ImportError:
            raise MissingExtraError("track", "wandb") from None
        self.project, self.folder = project, Path(folder)
        self._wandb = wandb
        self._run: Any = None

    def open(self, run: TrackedRun) -> str:
        run_id = _id_of(run.folder) if run.folder else uuid.uuid4().hex[:12]
        make_folder(self.folder, field="track")
        self._run = self._wandb.init(
            project=self.project,
            name=run.title,
            id=run_id,
            resume="allow",
            config={**dict(flatten(run.experiment)), **run.fields},
            dir=str(self.folder),
            reinit="create_new",
            settings=self._wandb.Settings(console="off", silent=True),
        )
        return run_id

    def log(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._run.log(dict(finite_metrics(row)), step=row["round"])

    def close(self, folder: RunFolder | None, failure: str) -> None:
        if failure:
            self._run.summary["failure"] = failure
        elif folder is not None:
            self._run.summary["rounds_per_second"] = read_speed(folder)
        self._run.finish(exit_code=1 if failure else 0)

    def find_logged(self, folder: RunFolder) -> str | None:
        run_id = _id_of(folder)
        return (
            run_id if is_logged(folder, self.folder.glob(f"wandb/*/run-{run_id}.wandb")) else None
        )


def _id_of(folder: RunFolder) -> str:
    """Return the same id for the same folder, so that a resumed run continues its curves."""
    return hashlib.sha256(str(folder.path.resolve()).encode()).hexdigest()[:12]
