"""The progress of one or several runs, for progress bars: rounds, losses and activities."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fedtide.simulation.callbacks import Callback, RunView

RunState = Literal["waiting", "running", "done", "failed", "interrupted"]

_STATUS_SECONDS = 0.2  # every status costs time that grows with the number of runs


@dataclass
class RunProgress:
    """Progress of one run.

    Args:
        rounds: its total number of rounds.
        ended: how many rounds have ended.
        state: its state.
        loss: the last loss evaluated.
        activity: what it is busy with while no round ends; empty otherwise.
        observed: how many rounds ended since the run was started or resumed.
    """

    rounds: int
    ended: int = 0
    state: RunState = "waiting"
    loss: float | None = None
    activity: str = ""
    observed: int = 0
    _is_counting: bool = False

    @property
    def left(self) -> int:
        """How many rounds are left."""
        return 0 if self.state in ("done", "failed") else self.rounds - self.ended

    def start(self) -> None:
        """Mark the run as running; the first update says at which round it starts."""
        self.state, self._is_counting = "running", False

    def update(self, ended: int, loss: float | None) -> None:
        """Set how many rounds have ended, and the last loss."""
        if self._is_counting:
            self.observed += max(0, ended - self.ended)
        self.ended, self.loss, self._is_counting = ended, loss, True

    def finish(self, state: RunState) -> None:
        """Set the final state; for a run that is done, all rounds have ended."""
        if state == "done":
            self.observed += self.rounds - self.ended if self.state == "running" else 0
            self.ended = self.rounds
        self.state, self.activity = state, ""


@dataclass(frozen=True)
class RunStatus:
    """The status of a run: after a round, or in an activity in which no round ends.

    Args:
        activity: such as "compiling the local steps"; empty when it has ended.
        ended: how many rounds have ended; None before the run starts and in an activity.
        loss: the last loss evaluated.
    """

    activity: str = ""
    ended: int | None = None
    loss: float | None = None


class StatusReporter(Callback):
    """Reports the status of a run.

    Args:
        on_status: called when the run starts, after rounds, at most once per `_STATUS_SECONDS`, and
            when a long activity begins or ends.
    """

    def __init__(self, on_status: Callable[[RunStatus], None]) -> None:
        self._on_status = on_status
        self._last = 0.0

    def on_activity(self, activity: str) -> None:
        self._on_status(RunStatus(activity))

    def on_start(self, run: RunView) -> None:
        self._report(run)

    def on_round_end(self, run: RunView) -> None:
        if time.monotonic() - self._last > _STATUS_SECONDS:
            self._report(run)

    def _report(self, run: RunView) -> None:
        self._last = time.monotonic()
        loss = run.metrics[-1].get("loss") if run.metrics else None
        self._on_status(RunStatus(ended=run.round, loss=loss))


class Progress:
    """Progress of several runs.

    Args:
        on_change: called with this object after every change.

    Attributes:
        runs: the progress of each run, by its name or folder.
    """

    def __init__(self, on_change: Callable[[Progress], None] | None = None) -> None:
        self._on_change = on_change
        self.runs: dict[str, RunProgress] = {}

    def add(self, name: str, rounds: int) -> None:
        """Add a run unless it is known already."""
        self.runs.setdefault(name, RunProgress(rounds))

    def start(self, name: str) -> None:
        """Mark a run as running."""
        self.runs[name].start()
        self._notify()

    def set_status(self, name: str, status: RunStatus) -> None:
        """Set the status of a run."""
        run = self.runs[name]
        run.activity = status.activity
        if status.ended is not None:
            run.update(status.ended, status.loss)
        self._notify()

    def finish(self, name: str, state: RunState) -> None:
        """Set the final state of a run."""
        self.runs[name].finish(state)
        self._notify()

    def _notify(self) -> None:
        if self._on_change is not None:
            self._on_change(self)
