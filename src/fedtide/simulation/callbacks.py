"""Who is told of a run under way."""

from __future__ import annotations

from abc import ABC, abstractmethod


class ProgressCallback(ABC):
    """Is told of every round; the loop does not care what it does with it."""

    @abstractmethod
    def update(self, ended: int, rounds: int, loss: float | None) -> None:
        """Take note that `ended` of `rounds` rounds are over, with the last loss evaluated."""


class Silent(ProgressCallback):
    """Shows nothing."""

    def update(self, ended: int, rounds: int, loss: float | None) -> None:
        """Show nothing."""
