"""Regularized selection among whoever is there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtide.participation.availability.base import AvailableClients, Ids
from fedtide.participation.selection.base import Selection, SelectionStream
from fedtide.population import Population
from fedtide.randomness import random_words
from fedtide.validation import cohort_fits, whole


@dataclass(frozen=True)
class PermutationOf(Selection):
    """A random permutation of all N clients is gone through; the first S available take part.

    A round begins where the last one ended. Clients that are unavailable, or in the round already,
    are passed over and lose their place in this permutation, as in the program of Wang & Ji 2022
    (section 6); where the permutation ends, a new one begins, also within a round. (That program
    may take one client twice in a round; here nobody is, and where fewer than S are available all
    of them take part.) With all clients available and S a divisor of N, everyone takes part once
    in N/S rounds.

    The permutation is the order of random 63-bit words of (permutation, client), so nothing is
    stored for a client and a round costs O(A log A) for A available clients.

    Args:
        size: S.

    Raises:
        InvalidInputError: a size below 1; in `start`, above N.

    >>> running = PermutationOf(size=2).start(Population(clients=4), seed=0)
    >>> everyone = AvailableClients(np.arange(4))
    >>> sorted([*running.select(0, everyone).tolist(), *running.select(1, everyone).tolist()])
    [0, 1, 2, 3]
    """

    size: int

    def __post_init__(self) -> None:
        whole("size", self.size)

    def start(self, population: Population, seed: int) -> SelectionStream:
        """Return the running selection."""
        cohort_fits(self.size, population.clients)
        return _Permutations(self.size, seed)


class _Permutations(SelectionStream):
    """Gone through are all clients whose word in permutation `_number` is below `_place`."""

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._seed = seed
        self._number = 0
        self._place = 0

    def select(self, t: int, available: AvailableClients) -> Ids:
        lacking = min(self._size, len(available.clients))
        chosen = self._next_of(available.clients, lacking)
        if len(chosen) < lacking:
            self._number += 1
            self._place = 0
            others = np.setdiff1d(available.clients, chosen, assume_unique=True)
            chosen = np.concatenate([chosen, self._next_of(others, lacking - len(chosen))])
        return np.sort(chosen)

    def _next_of(self, clients: Ids, count: int) -> Ids:
        """Return the first `count` of the clients from the place on, and move beyond them."""
        # 63 bits, so that the place after the last word is a word too.
        words = random_words(self._seed, "permutation-of", self._number, clients) >> np.uint64(1)
        ahead = words >= np.uint64(self._place)
        clients, words = clients[ahead], words[ahead]
        order = np.argsort(words, kind="stable")[:count]
        if len(order):
            self._place = int(words[order[-1]]) + 1
        return clients[order]
