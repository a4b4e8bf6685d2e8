"""AvailabilityStream, selection and report, composed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import error_prefix
from fedtide.participation.availability.base import (
    Availability,
    AvailabilityStream,
    AvailableClients,
    Ids,
)
from fedtide.participation.dropout import Dropout, NoDropout
from fedtide.participation.participants import Participants
from fedtide.participation.selection.base import All, Selection, SelectionStream
from fedtide.population import Population


@dataclass(frozen=True)
class Schedule:
    """Who takes part in each round: the available, of them the selected, of them the reporting.

    Args:
        process: who is available.
        selection: who of them is asked.
        dropout: who of those reports back.

    >>> from fedtide.participation import Full
    >>> running = Schedule(Full()).start(Population(clients=2), seed=0)
    >>> running.round(5).weights
    array([0.5, 0.5])
    """

    process: Availability
    selection: Selection = field(default_factory=All)
    dropout: Dropout = field(default_factory=NoDropout)

    def start(self, population: Population, seed: int) -> RunningSchedule:
        """Return the running schedule.

        Raises:
            InvalidInputError: a parameter that does not fit the population.
        """
        with error_prefix("participation"):
            availability = self.process.begin(population, seed)
        with error_prefix("selection"):
            selecting = self.selection.start(population, seed)
        return RunningSchedule(availability, selecting, self.dropout, seed)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64] | None:
        """Return each client's long-run probability of reporting, (N,); None: unknown.

        It is known where the process knows its own and everyone available is selected.
        """
        rates = self.process.known_rates(population, seed)
        if rates is None or not isinstance(self.selection, All):
            return None
        return rates * self.dropout.rate


class RunningSchedule:
    """A started schedule. Rounds are asked for in increasing order; gaps are allowed.

    Two that were started alike give the same round t, whatever was asked of them before: where the
    selection remembers, the rounds not asked for are gone through as well.

    Attributes:
        length: how many rounds the process covers; None: endless.
    """

    def __init__(
        self,
        availability: AvailabilityStream,
        selecting: SelectionStream,
        dropout: Dropout,
        seed: int,
    ) -> None:
        self.length = availability.length
        self._availability = availability
        self._selecting = selecting
        self._dropout = dropout
        self._seed = seed
        self._next = 0

    def round(self, t: int) -> Participants:
        """Return who takes part in round t.

        Raises:
            ValueError: t does not come after every round asked before.
        """
        if t < self._next:
            raise ValueError(f"round {t} asked after round {self._next - 1}; ask in rising order")
        if self._selecting.stateful:
            for skipped in range(self._next, t):
                self._selecting.select(skipped, self._availability.round(skipped))
        self._next = t + 1
        available = self._availability.round(t)
        selected = self._selecting.select(t, available)
        reported = selected[self._dropout.mask(self._seed, t, selected)]
        weights = _weights(available, reported)
        return Participants(t, available.clients, selected, reported, weights)


def _weights(available: AvailableClients, reported: Ids) -> NDArray[np.float64]:
    if available.weights is not None:
        return available.weights[np.searchsorted(available.clients, reported)]
    return np.full(len(reported), 1 / max(1, len(reported)))
