"""Participation that is known in advance, round by round."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtide.participation.availability.base import AvailabilityStream, AvailableClients, Ids


class Recorded(AvailabilityStream):
    """A started process that looks its rounds up; any order of rounds is fine.

    Args:
        rounds: the round of each entry, shape (E,).
        clients: its client, (E,); a client at most once in a round.
        weights: its weight, (E,), or None.
        length: how many rounds are known; nobody is available afterwards.
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
        """Return who is available in round t, with their weights."""
        low, high = np.searchsorted(self._rounds, np.array([t, t + 1]))
        weights = None if self._weights is None else self._weights[low:high]
        return AvailableClients(self._clients[low:high], weights)


def frequencies(clients: Ids, population: int, rounds: int) -> NDArray[np.float64]:
    """Return in which share of the rounds each client has an entry, shape (N,)."""
    return np.bincount(clients, minlength=population) / max(1, rounds)
