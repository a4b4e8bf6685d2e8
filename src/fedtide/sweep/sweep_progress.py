"""Progress of a sweep: the state of every run and how many rounds it has completed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

State = Literal["waiting", "running", "done", "failed", "interrupted"]


@dataclass
class RunProgress:
    """Progress of one run.

    Args:
        rounds: its total number of rounds.
        ended: how many rounds have ended.
        state: its state.
        loss: the last loss evaluated.
    """

    rounds: int
    ended: int = 0
    state: State = "waiting"
    loss: float | None = None


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
        self.runs[path].state = "running"
        self._notify()

    def update(self, path: str, ended: int, loss: float | None) -> None:
        """Set how many rounds of a run have ended, and its last loss."""
        run = self.runs[path]
        run.ended, run.loss = ended, loss
        self._notify()

    def finish(self, path: str, state: State) -> None:
        """Set the final state of a run; the rounds that a failed run leaves out count as ended."""
        run = self.runs[path]
        run.state = state
        if state in ("done", "failed"):
            run.ended = run.rounds
        self._notify()

    def count(self, state: State) -> int:
        """Return the number of runs in a state."""
        return sum(run.state == state for run in self.runs.values())

    def running(self) -> dict[str, RunProgress]:
        """Return the active runs, by their folders."""
        return {path: run for path, run in self.runs.items() if run.state == "running"}

    @property
    def ended(self) -> int:
        """The number of rounds that have ended, over all runs."""
        return sum(run.ended for run in self.runs.values())

    @property
    def rounds(self) -> int:
        """The total number of rounds, over all runs."""
        return sum(run.rounds for run in self.runs.values())

    def _notify(self) -> None:
        if self._on_change is not None:
            self._on_change(self)
