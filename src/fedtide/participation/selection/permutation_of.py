"""Regularized selection among the available clients."""

from __future__ import annotations

import numpy as np

from fedtide.configurable import configurable
from fedtide.participation.availability.base import AvailableClients, Ids
from fedtide.participation.selection.base import Selection, SelectionStream
from fedtide.population import Population
from fedtide.randomness import random_words
from fedtide.validation import require_cohort_size, require_whole_number


@configurable
class PermutationOf(Selection):
    """The next S available clients of a random permutation of all N clients.

    A round continues where the last one ended. Clients that are unavailable, or already in the
    round, are skipped and lose their place in this permutation, as in the program of Wang & Ji 2022
    (section 6); when the permutation ends, a new one begins, even within a round. (That program may
    select one client twice in a round; this class never does, and selects all available clients if
    fewer than S are available.) If all clients are available and S divides N, every client takes
    part once in N/S rounds.

    The permutation is the order of random 63-bit words of (permutation, client), so nothing is
    stored per client and a round costs O(A log A) for A available clients.

    Args:
        size: S.

    Raises:
        InvalidInputError: a size below 1; in `start`, above N.

    >>> running = PermutationOf(size=2).start(Population(clients=4), seed=0)
    >>> all_clients = AvailableClients(np.arange(4))
    >>> sorted(np.concatenate([running.select(t, all_clients) for t in range(2)]).tolist())
    [0, 1, 2, 3]
    """

    size: int

    def __post_init__(self) -> None:
        require_whole_number("size", self.size)

    def start(self, population: Population, seed: int) -> SelectionStream:
        require_cohort_size(self.size, population.clients)
        return _PermutationOfStream(self.size, seed)


class _PermutationOfStream(SelectionStream):
    """Clients whose word in the current permutation is below `_position` are used up."""

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._seed = seed
        self._permutation = 0
        self._position = 0

    def select(self, t: int, available: AvailableClients) -> Ids:
        size = min(self._size, len(available.clients))
        selected = self._take(available.clients, size)
        if len(selected) < size:
            self._permutation += 1
            self._position = 0
            others = np.setdiff1d(available.clients, selected, assume_unique=True)
            selected = np.concatenate([selected, self._take(others, size - len(selected))])
        return np.sort(selected)

    def _take(self, clients: Ids, count: int) -> Ids:
        """Return the next `count` of the clients and advance beyond them."""
        # 63 bits, so that the position after the last word is a word, too.
        words = random_words(self._seed, "permutation-of", self._permutation, clients)
        words >>= np.uint64(1)
        ahead = words >= np.uint64(self._position)
        clients, words = clients[ahead], words[ahead]
        order = np.argsort(words, kind="stable")[:count]
        if len(order):
            self._position = int(words[order[-1]]) + 1
        return clients[order]
