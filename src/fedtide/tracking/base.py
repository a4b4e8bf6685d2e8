"""The contract of a tracker: it logs runs while they run, or afterwards from their folders."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtide.errors import first_line
from fedtide.simulation.callbacks import Callback, RunView
from fedtide.simulation.experiment_files import read_yaml
from fedtide.simulation.run_folder import RunFolder

_logger = logging.getLogger("fedtide")

Row = Mapping[str, Any]
"""The metrics of an evaluation: `round`, and numbers by name."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told about a run when it opens it.

    Args:
        experiment: the resolved experiment, as plain data.
        folder: the run folder; None in memory.
        fields: what distinguishes the run in a sweep.
    """

    experiment: Mapping[str, Any]
    folder: RunFolder | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name of the experiment, with its seed."""
        return f"{self.experiment['name']} seed {self.experiment['seed']}"


class Tracker(Callback):
    """Logs runs to a store: live as a callback of `ft.simulate`, or from their folders.

    A derived class opens a run in its store, logs rows of metrics, and closes the run. If the store
    cannot open a run, the run ends before its first round. If the store fails later, the run goes
    on with a warning, and the next evaluation logs what is missing.
    """

    _logged: int | None = None  # how many evaluations the store has; None: no run is open
    _has_failed = False  # at the last attempt

    @abstractmethod
    def open(self, run: TrackedRun) -> str:
        """Begin a run in the store and return its id; replaces a run of the same folder."""

    @abstractmethod
    def log(self, rows: Sequence[Row]) -> None:
        """Log rows of metrics for the open run; the round is the step."""

    @abstractmethod
    def close(self, folder: RunFolder | None, failure: str) -> None:
        """End the open run.

        Args:
            folder: the folder with the results; None in memory.
            failure: why the run failed; empty if it has finished.
        """

    @abstractmethod
    def find_logged(self, folder: RunFolder) -> str | None:
        """Return the id under which the store has a folder's run, which has finished, or None."""

    def on_start(self, run: RunView) -> None:
        folder, self._logged = None if run.out is None else RunFolder(run.out), None
        self.open(TrackedRun(run.experiment.to_dict(in_memory=True), folder))
        self._logged, self._has_failed = 0, False
        self._log_missing(run)

    def on_evaluation(self, run: RunView) -> None:
        self._log_missing(run)

    def on_end(self, run: RunView) -> None:
        self._log_missing(run)
        self._close_open_run(run, None if run.out is None else RunFolder(run.out), "")

    def on_error(self, run: RunView, error: BaseException) -> None:
        if self._logged is not None:  # another callback, or this store, may have failed before
            self._close_open_run(run, None, " ".join(str(error).split()) or type(error).__name__)

    def _log_missing(self, run: RunView) -> None:
        """Log the evaluations that the store does not have yet."""
        if rows := run.metrics[self._logged or 0 :]:
            with self._surviving(run):
                self.log(rows)
                self._logged = len(run.metrics)

    def _close_open_run(self, run: RunView, folder: RunFolder | None, failure: str) -> None:
        self._logged = None
        with self._surviving(run):
            self.close(folder, failure)

    @contextmanager
    def _surviving(self, run: RunView) -> Iterator[None]:
        """Turn errors of the store into a warning, given once until it works again."""
        try:
            yield
        except Exception as error:  # of any type: each store has libraries of its own
            if not self._has_failed:
                later = "" if run.out is None else f"; log_run({str(run.out)!r}) logs it afterwards"
                reason = first_line(error, with_type=True)
                _logger.warning("track: the store fails (%s), the run goes on%s", reason, later)
            self._has_failed = True
        else:
            self._has_failed = False

    def log_run(self, path: str | Path, fields: Mapping[str, Any] | None = None) -> str:
        """Log the finished or failed run in a folder, unless it is logged; return its id.

        Args:
            path: the run folder.
            fields: what distinguishes the run in a sweep.
        """
        folder = RunFolder(path)
        if folder.finished and (known := self.find_logged(folder)):
            return known
        run_id = self.open(TrackedRun(read_yaml(folder.experiment), folder, fields or {}))
        if folder.finished:
            self.log(folder.read_metrics().rows(named=True))
            self.close(folder, "")
        else:
            failure = folder.read_failure()
            self.close(folder, "not finished" if failure is None else failure.sentence)
        return run_id


def finite_metrics(row: Row) -> Iterator[tuple[str, float]]:
    """Yield the name and value of every metric of a row that is a finite number.

    >>> dict(finite_metrics({"round": 3, "loss": 0.5, "error": float("nan")}))
    {'loss': 0.5}
    """
    for name, value in row.items():
        if name != "round" and value is not None and math.isfinite(value):
            yield name, float(value)


def read_speed(folder: RunFolder) -> float:
    """Return the rounds per second of a finished run."""
    timings = folder.read_json(folder.timings, ["rounds_per_second"])
    return float(timings["rounds_per_second"])


def is_logged(folder: RunFolder, files: Iterable[Path]) -> bool:
    """Return whether one of these files of a store was written after the run had finished."""
    finished = folder.summary.stat().st_mtime
    return any(file.stat().st_mtime >= finished for file in files)
