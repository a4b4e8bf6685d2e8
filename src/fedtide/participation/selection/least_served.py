"""Selection of the clients with the least accumulated weight in the current window."""

from __future__ import annotations

import numpy as np

from fedtide.configurable import configurable
from fedtide.participation.availability.base import AvailableClients, Ids
from fedtide.participation.selection.base import Selection, SelectionStream
from fedtide.population import Population
from fedtide.validation import require_cohort_size, require_whole_number


@configurable
class LeastServed(Selection):
    """The S available clients with the least accumulated weight Σ q in the current window.

    Windows of P rounds begin in rounds 0, P, 2P, ...; the weight of a selected client is that of
    the availability process, or else 1 / number selected. Ties go to the client not selected for
    longest, then to the lower id. The window means q̄_n approach each other, which makes equation
    (15) of Wang & Ji 2022 small (their section 5). All available clients are selected if there are
    fewer than S. Stores 16 bytes per client.

    Args:
        size: S.
        period: P, in rounds.

    Raises:
        InvalidInputError: a size or period below 1; in `start`, a size above N.

    >>> running = LeastServed(size=1, period=2).start(Population(clients=2), seed=0)
    >>> [running.select(t, AvailableClients(np.arange(2))).tolist() for t in range(4)]
    [[0], [1], [0], [1]]
    """

    size: int
    period: int

    def __post_init__(self) -> None:
        require_whole_number("size", self.size)
        require_whole_number("period", self.period)

    def start(self, population: Population, seed: int) -> SelectionStream:
        require_cohort_size(self.size, population.clients)
        return _LeastServedStream(population.clients, self.size, self.period)


class _LeastServedStream(SelectionStream):
    """Each sum is stored with its window, so that a new window need not reset N sums."""

    def __init__(self, clients: int, size: int, period: int) -> None:
        self._sum = np.zeros(clients)
        self._window = np.full(clients, -1, dtype=np.int32)
        self._last = np.full(clients, -1, dtype=np.int32)
        self._size = size
        self._period = period

    def select(self, t: int, available: AvailableClients) -> Ids:
        clients = available.clients
        window = t // self._period
        served = np.where(self._window[clients] == window, self._sum[clients], 0.0)
        order = np.lexsort((self._last[clients], served))
        positions = np.sort(order[: self._size])
        selected = clients[positions]
        self._sum[selected] = served[positions] + available.weights_of(selected)
        self._window[selected] = window
        self._last[selected] = t
        return selected
