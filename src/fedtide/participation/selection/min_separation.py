"""Selection in which clients rest between two of their rounds."""

from __future__ import annotations

import numpy as np

from fedtide.configurable import configurable
from fedtide.errors import InvalidInputError, quantify
from fedtide.participation.availability.base import AvailableClients, Ids
from fedtide.participation.selection.base import Selection, SelectionStream
from fedtide.population import Population
from fedtide.randomness import generator
from fedtide.validation import require_cohort_size, require_whole_number


@configurable
class MinSeparation(Selection):
    """S of the available clients that have rested, uniformly without replacement.

    A client that is selected in round t is not selected in rounds t + 1, ..., t + b. All rested
    clients are selected if fewer than S are available. This is the participation that matrix
    mechanisms of differential privacy assume (Choquette-Choo et al. 2023, "Amplified Banded Matrix
    Factorization", with minimum separation b + 1). Stores 4 bytes per client.

    Args:
        size: S.
        rounds: b, how many rounds a client rests; 0: none.

    Raises:
        InvalidInputError: a size below 1, rounds below 0; in `start`, S (b + 1) > N, in which case
            even N clients that are always available would not fill every round.

    >>> running = MinSeparation(size=2, rounds=1).start(Population(clients=4), seed=0)
    >>> everyone = AvailableClients(np.arange(4))
    >>> first, second, third = (running.select(t, everyone).tolist() for t in range(3))
    >>> sorted(first + second), third == first
    ([0, 1, 2, 3], True)
    """

    size: int
    rounds: int

    def __post_init__(self) -> None:
        require_whole_number("size", self.size)
        require_whole_number("rounds", self.rounds, low=0)

    def start(self, population: Population, seed: int) -> SelectionStream:
        clients = population.clients
        require_cohort_size(self.size, clients)
        if self.size * (self.rounds + 1) > clients:
            raise InvalidInputError(
                f"rounds: {quantify(clients, 'client')} cannot fill cohorts of {self.size} if each "
                f"rests {quantify(self.rounds, 'round')}; {_feasible(clients, self)}"
            )
        return _MinSeparationStream(clients, self.size, self.rounds, seed)


def _feasible(clients: int, wanted: MinSeparation) -> str:
    """Return the settings closest to the wanted ones that N clients allow."""
    rest = f"rest at most {quantify(clients // wanted.size - 1, 'round')}"
    fitting = clients // (wanted.rounds + 1)
    return f"{rest}, or select {fitting}" if fitting else rest


class _MinSeparationStream(SelectionStream):
    def __init__(self, clients: int, size: int, rounds: int, seed: int) -> None:
        self._free_from = np.zeros(clients, dtype=np.int32)
        self._size, self._rounds, self._seed = size, rounds, seed

    def select(self, t: int, available: AvailableClients) -> Ids:
        selected = available.clients[self._free_from[available.clients] <= t]
        if len(selected) > self._size:
            random = generator(self._seed, "min-separation", t)
            selected = np.sort(random.choice(selected, self._size, replace=False, shuffle=False))
        self._free_from[selected] = t + self._rounds + 1
        return selected
