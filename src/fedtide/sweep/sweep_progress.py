"""Progress of a sweep: the state of every run and how many rounds it has completed."""

from __future__ import annotations

from collections.abc import Callable

from fedtide.simulation.run_progress import RunProgress, RunState
from fedtide.sweep.job import RunStatus


class SweepProgress:
    """Progress of every run of a sweep.

    Args:
        on_change: called with this object after every change.

    Attributes:
        runs: the progress of each run, by its folder.
    """

    def __init__(self, on_change: Callable[[SweepProgress], None] | None = None) -> None:
        self._on_change = on_change
        self.runs: dict[str, RunProgress] = {}

    def add(self, path: str, rounds: int) -> None:
        """Add a run unless it is known already."""
        self.runs.setdefault(path, RunProgress(rounds))

    def start(self, path: str) -> None:
        """Mark a run as running."""
        self.runs[path].start()
        self._notify()

    def set_status(self, path: str, status: RunStatus) -> None:
        """Set the status of a run."""
        run = self.runs[path]
        run.activity = status.activity
        if status.ended is not None:
            run.update(status.ended, status.loss)
        self._notify()

    def finish(self, path: str, state: RunState) -> None:
        """Set the final state of a run."""
        self.runs[path].finish(state)
        self._notify()

    def _notify(self) -> None:
        if self._on_change is not None:
            self._on_change(self)
