"""Selection of the clients that were not selected for longest."""

from __future__ import annotations

import numpy as np

from fedtide.configurable import configurable
from fedtide.participation.availability.base import AvailableClients, Ids
from fedtide.participation.selection.base import Selection, SelectionStream
from fedtide.population import Population
from fedtide.validation import require_cohort_size, require_whole_number


@configurable
class LongestAbsent(Selection):
    """The S available clients whose last selection was longest ago (Yan et al. 2020, FedLaAvg).

    Clients that were never selected come first; ties go to the lower id. All available clients are
    selected if there are fewer than S. Stores 4 bytes per client.

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
        require_whole_number("size", self.size)

    def start(self, population: Population, seed: int) -> SelectionStream:
        require_cohort_size(self.size, population.clients)
        return _LongestAbsentStream(population.clients, self.size)


class _LongestAbsentStream(SelectionStream):
    def __init__(self, clients: int, size: int) -> None:
        self._last = np.full(clients, -1, dtype=np.int32)
        self._size = size

    def select(self, t: int, available: AvailableClients) -> Ids:
        clients = available.clients
        order = np.argsort(self._last[clients], kind="stable")
        selected = np.sort(clients[order[: self._size]])
        self._last[selected] = t
        return selected
