"""Callbacks that a run reports its progress to."""

from __future__ import annotations

from abc import ABC, abstractmethod


class ProgressCallback(ABC):
    """Is called after every round; what it does cannot affect the run."""

    @abstractmethod
    def update(self, ended: int, rounds: int, loss: float | None) -> None:
        """Receive that `ended` of `rounds` rounds are completed, and the last evaluated loss."""
