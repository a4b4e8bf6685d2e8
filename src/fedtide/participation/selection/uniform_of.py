"""Selections without state: all available clients, or a uniform sample of them."""

from __future__ import annotations

import numpy as np

from fedtide.configurable import configurable
from fedtide.participation.availability.base import AvailableClients, Ids
from fedtide.participation.selection.base import Selection, SelectionStream
from fedtide.population import Population
from fedtide.randomness import generator
from fedtide.validation import require_cohort_size, require_whole_number


@configurable
class All(Selection):
    """All available clients."""

    def start(self, population: Population, seed: int) -> SelectionStream:
        return _AllStream()


@configurable
class UniformOf(Selection):
    """S of the available clients, uniformly without replacement; all if fewer are available.

    Args:
        size: S.

    Raises:
        InvalidInputError: a size below 1; in `start`, above N.

    >>> running = UniformOf(size=1).start(Population(clients=9), seed=0)
    >>> running.select(0, AvailableClients(np.array([4])))
    array([4])
    """

    size: int

    def __post_init__(self) -> None:
        require_whole_number("size", self.size)

    def start(self, population: Population, seed: int) -> SelectionStream:
        require_cohort_size(self.size, population.clients)
        return _UniformOfStream(self.size, seed)


class _AllStream(SelectionStream):
    stateful = False

    def select(self, t: int, available: AvailableClients) -> Ids:
        return available.clients


class _UniformOfStream(SelectionStream):
    stateful = False

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._seed = seed

    def select(self, t: int, available: AvailableClients) -> Ids:
        clients = available.clients
        if len(clients) <= self._size:
            return clients
        random = generator(self._seed, "uniform-of", t)
        return np.sort(random.choice(clients, self._size, replace=False, shuffle=False))
