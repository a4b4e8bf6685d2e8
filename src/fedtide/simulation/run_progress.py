"""The progress of one run, for progress bars and sweeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RunState = Literal["waiting", "running", "done", "failed", "interrupted"]


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
