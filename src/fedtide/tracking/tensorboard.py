"""Logs runs to a TensorBoard folder: one folder of events for each run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtide.errors import MissingExtraError
from fedtide.simulation.run_folder import RunFolder
from fedtide.tracking.base import Row, TrackedRun, Tracker, finite_metrics, is_logged
from fedtide.yaml_text import dump

_EVENTS = "events.out.tfevents.*"


class TensorBoardTracker(Tracker):
    """Logs runs to a folder that `tensorboard --logdir` shows.

    A run with a folder is named by its path from the parent of the TensorBoard folder, or else from
    the nearest folder above both; a run in memory is named by its name and seed.

    Args:
        folder: of all runs; created if missing.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("track", "tensorboard") from None
        self.folder = Path(folder)
        self._make_writer = SummaryWriter
        self._writer: Any = None

    def open(self, run: TrackedRun) -> str:
        path = self._path(run.folder) if run.folder else self._free_path(run)
        for old in path.glob(_EVENTS):
            old.unlink()
        self._writer = self._make_writer(str(path))
        self._writer.add_text("experiment", f"```yaml\n{dump({**run.experiment})}```")
        return str(path)

    def log(self, rows: Sequence[Row]) -> None:
        for row in rows:
            for name, value in finite_metrics(row):
                self._writer.add_scalar(name, value, row["round"])
        self._writer.flush()

    def close(self, folder: RunFolder | None, failure: str) -> None:
        if failure:
            self._writer.add_text("failure", failure)
        self._writer.close()

    def find_logged(self, folder: RunFolder) -> str | None:
        path = self._path(folder)
        return str(path) if is_logged(folder, path.glob(_EVENTS)) else None

    def _path(self, folder: RunFolder) -> Path:
        """Return where a run folder is logged: at its path from the nearest folder above both."""
        run = folder.path.resolve()
        above = (one for one in self.folder.resolve().parents if run.is_relative_to(one))
        return self.folder / run.relative_to(next(above, run.anchor))

    def _free_path(self, run: TrackedRun) -> Path:
        path, number = self.folder / run.title, 1
        while path.exists():
            number += 1
            path = self.folder / f"{run.title} ({number})"
        return path
