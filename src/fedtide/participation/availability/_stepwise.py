"""Processes whose rounds depend on those before."""

from __future__ import annotations

from abc import abstractmethod

from fedtide.participation.availability.base import AvailabilityStream, AvailableClients, Ids


class Stepwise(AvailabilityStream):
    """A started process that moves one round at a time and steps through the rounds not asked."""

    def __init__(self) -> None:
        self._next = 0

    def round(self, t: int) -> AvailableClients:
        """Return who is available in round t.

        Raises:
            ValueError: t does not come after every round asked before.
        """
        if t < self._next:
            raise ValueError(f"round {t} asked after round {self._next - 1}; ask in rising order")
        for skipped in range(self._next, t):
            self._step(skipped)
        self._next = t + 1
        return AvailableClients(self._step(t))

    @abstractmethod
    def _step(self, t: int) -> Ids:
        """Return who is available in round t and move on to t + 1; called once for every round."""
