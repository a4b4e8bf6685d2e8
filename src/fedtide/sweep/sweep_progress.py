"""How far a sweep is: kept by whoever runs it, shown by whoever looks on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["waiting", "running", "done", "failed", "interrupted"]


@dataclass
class RunProgress:
    """How far one run is.

    Args:
        rounds: how many it has.
        ended: how many of them are over.
        state: what became of it.
        loss: the last that was evaluated.
    """

    rounds: int
    ended: int = 0
    state: State = "waiting"
    loss: float | None = None


class SweepProgress:
    """How far every run of a sweep is.

    Args:
        look: called with the board whenever something has changed.

    Attributes:
        runs: the standing of each run, by its folder.
    """

    def __init__(self, look: Callable[[SweepProgress], None] | None = None) -> None:
        self._look = look
        self.runs: dict[str, RunProgress] = {}

    def add(self, path: str, rounds: int) -> None:
        """Put a run on the board; one that is there already stays as it is."""
        self.runs.setdefault(path, RunProgress(rounds))

    def begun(self, path: str) -> None:
        """A run has begun, or goes on."""
        self.runs[path].state = "running"
        self._show()

    def moved(self, path: str, ended: int, loss: float | None) -> None:
        """A run has come to the end of a round."""
        standing = self.runs[path]
        standing.ended, standing.loss = ended, loss
        self._show()

    def over(self, path: str, state: State) -> None:
        """A run has ended, in some way; the rounds that it leaves out will not come."""
        standing = self.runs[path]
        standing.state = state
        if state in ("done", "failed"):
            standing.ended = standing.rounds
        self._show()

    def count(self, *states: State) -> int:
        """Return how many runs are in one of these states."""
        return sum(standing.state in states for standing in self.runs.values())

    def running(self) -> Iterable[tuple[str, RunProgress]]:
        """Return the runs under way."""
        return [(path, one) for path, one in self.runs.items() if one.state == "running"]

    @property
    def ended(self) -> int:
        """The rounds that are over, of all runs."""
        return sum(standing.ended for standing in self.runs.values())

    @property
    def rounds(self) -> int:
        """The rounds of all runs."""
        return sum(standing.rounds for standing in self.runs.values())

    def _show(self) -> None:
        if self._look is not None:
            self._look(self)
