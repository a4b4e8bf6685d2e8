"""Whoever has not been selected for longest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtide.participation.availability.base import AvailableClients, Ids
from fedtide.participation.selection.base import Selection, SelectionStream
from fedtide.population import Population
from fedtide.validation import cohort_fits, whole


@dataclass(frozen=True)
class LongestAbsent(Selection):
    """The S available clients whose last selection lies furthest back (Yan et al., FedLaAvg).

    Never selected comes before any selected; ties go to the lower id. All take part where fewer
    than S are available. Remembers 4 bytes a client.

    Args:
        size: S.

    Raises:
        InvalidInputError: a size below 1; in `start`, above N.

    >>> running = LongestAbsent(size=2).start(Population(clients=3), seed=0)
    >>> [running.select(t, AvailableClients(np.arange(3))).tolist() for t in range(3)]
    [[0, 1], [0, 2], [0, 1]]
    """

    size: int

    def __post_init__(self) -> None:
        whole("size", self.size)

    def start(self, population: Population, seed: int) -> SelectionStream:
        """Return the running selection."""
        cohort_fits(self.size, population.clients)
        return _Waiting(population.clients, self.size)


class _Waiting(SelectionStream):
    def __init__(self, clients: int, size: int) -> None:
        self._last = np.full(clients, -1, dtype=np.int32)
        self._size = size

    def select(self, t: int, available: AvailableClients) -> Ids:
        clients = available.clients
        order = np.argsort(self._last[clients], kind="stable")
        chosen = np.sort(clients[order[: self._size]])
        self._last[chosen] = t
        return chosen
