"""Regularized participation: every client once before any client returns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtide.configurable import configurable
from fedtide.participation.availability._renewal import StepwiseStream
from fedtide.participation.availability.base import Availability, AvailabilityStream, Ids
from fedtide.population import Population
from fedtide.randomness import generator
from fedtide.validation import require_cohort_size, require_whole_number


@configurable
class Permutation(Availability):
    """S clients per round, taken in order from successive random permutations of all N clients.

    Round t fills the places tS, ..., tS + S − 1, and every client appears exactly once among the
    places kN, ..., (k+1)N − 1 for each k; if S divides N, that is once every N/S rounds
    (regularized participation: Wang & Ji 2022, proposition 4.2). If it does not, the round in which
    a permutation ends is filled from the next one; clients that are already in the round are
    skipped and stay at the front of the rest. The authors' program lets such a client take part
    twice in the round.

    A new permutation costs O(N) once in N/S rounds, which is O(S) per round.

    Args:
        size: S.

    Raises:
        InvalidInputError: a size below 1; in `begin`, above N.

    >>> running = Permutation(size=2).begin(Population(clients=4), seed=0)
    >>> sorted(running.round(0).clients.tolist() + running.round(1).clients.tolist())
    [0, 1, 2, 3]
    """

    size: int

    def __post_init__(self) -> None:
        require_whole_number("size", self.size)

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        require_cohort_size(self.size, population.clients)
        return _PermutationStream(population.clients, self.size, seed)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64]:
        """Return p_n = S/N."""
        require_cohort_size(self.size, population.clients)
        return np.full(population.clients, self.size / population.clients)


class _PermutationStream(StepwiseStream):
    def __init__(self, clients: int, size: int, seed: int) -> None:
        super().__init__()
        self._clients = clients
        self._size = size
        self._seed = seed
        self._cycle = 0
        self._queue = np.empty(0, dtype=np.int32)

    def _step(self, t: int) -> Ids:
        ids = self._queue[: self._size]
        self._queue = self._queue[self._size :]
        if len(ids) < self._size:
            ids = np.concatenate([ids, self._take_from_next(ids)])
        return np.sort(ids).astype(np.int64)

    def _take_from_next(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """Start the next permutation and take the clients missing from a round with `ids`."""
        random = generator(self._seed, "permutation", self._cycle)
        fresh = random.permutation(np.arange(self._clients, dtype=np.int32))
        self._cycle += 1
        free = ~np.isin(fresh, ids)
        missing = self._size - len(ids)
        cut = int(np.flatnonzero(free)[missing - 1]) + 1
        front, free = fresh[:cut], free[:cut]
        self._queue = np.concatenate([front[~free], fresh[cut:]])
        return front[free]
