"""Whoever has had the least weight in the current window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtide.participation.availability.base import AvailableClients, Ids
from fedtide.participation.selection.base import Selection, SelectionStream
from fedtide.population import Population
from fedtide.validation import cohort_fits, whole


@dataclass(frozen=True)
class LeastServed(Selection):
    """The S available clients with the least accumulated weight Σ q in the current window.

    Windows of P rounds begin in rounds 0, P, 2P, ...; the weight of a selected client is the one
    that the process gives, else one over the number selected. Ties go to the client not selected
    for longest, then to the lower id. This drives the window means q̄_n towards each other, which is
    what makes equation (15) of Wang & Ji 2022 small (their section 5). All take part where fewer
    than S are available. Remembers 16 bytes a client.

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
        whole("size", self.size)
        whole("period", self.period)

    def start(self, population: Population, seed: int) -> SelectionStream:
        """Return the running selection."""
        cohort_fits(self.size, population.clients)
        return _Serving(population.clients, self.size, self.period)


class _Serving(SelectionStream):
    """A client's sum counts only if it is of the current window, so no window clears N sums."""

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
        places = np.sort(order[: self._size])
        chosen = clients[places]
        self._sum[chosen] = served[places] + _weights(available, places)
        self._window[chosen] = window
        self._last[chosen] = t
        return chosen


def _weights(available: AvailableClients, places: Ids) -> NDArray[np.float64]:
    if available.weights is not None:
        return available.weights[places]
    return np.full(len(places), 1 / max(1, len(places)))
