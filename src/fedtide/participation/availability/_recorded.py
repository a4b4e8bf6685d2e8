"""Availability recorded in advance, round by round."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtide.participation.availability.base import AvailabilityStream, AvailableClients, Ids


class RecordedStream(AvailabilityStream):
    """A stream of recorded rounds, which may be asked for in any order.

    Args:
        rounds: the round of each entry, shape (E,).
        clients: its client, (E,); a client at most once in a round.
        weights: its weight, (E,), or None.
        length: the number of recorded rounds; nobody is available afterwards.
    """

    def __init__(
        self,
        rounds: NDArray[np.int64],
        clients: Ids,
        weights: NDArray[np.float64] | None,
        length: int,
    ) -> None:
        order = np.lexsort((clients, rounds))
        self._rounds = rounds[order]
        self._clients = clients[order]
        self._weights = None if weights is None else weights[order]
        self.length = length

    def round(self, t: int) -> AvailableClients:
        """Return the clients available in round t, with their weights."""
        low, high = np.searchsorted(self._rounds, np.array([t, t + 1]))
        weights = None if self._weights is None else self._weights[low:high]
        return AvailableClients(self._clients[low:high], weights)


def recorded_rates(clients: Ids, population: int, rounds: int) -> NDArray[np.float64]:
    """Return the share of the recorded rounds in which each client is available, shape (N,)."""
    return np.bincount(clients, minlength=population) / max(1, rounds)
