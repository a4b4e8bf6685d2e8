"""The contract of a selection (who of the available takes part), and the two without memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from fedtide.participation.availability.base import AvailableClients, Ids
from fedtide.population import Population
from fedtide.randomness import generator
from fedtide.validation import cohort_fits, whole


class SelectionStream(ABC):
    """A started selection.

    Attributes:
        remembers: whether a round depends on the rounds before; then every round is asked for, in
            order, and a restarted run goes through the past rounds again.
    """

    stateful: bool = True

    @abstractmethod
    def select(self, t: int, available: AvailableClients) -> Ids:
        """Return who of the available takes part in round t, sorted."""


class Selection(ABC):
    """Who of the available takes part: a value (frozen dataclass), started for a population."""

    @abstractmethod
    def start(self, population: Population, seed: int) -> SelectionStream:
        """Return the running selection.

        Raises:
            InvalidInputError: a parameter that does not fit the population.
        """


@dataclass(frozen=True)
class All(Selection):
    """Every available client takes part."""

    def start(self, population: Population, seed: int) -> SelectionStream:
        """Return the running selection."""
        return _Everyone()


@dataclass(frozen=True)
class UniformOf(Selection):
    """S of the available clients, uniformly without replacement; all where there are fewer.

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
        whole("size", self.size)

    def start(self, population: Population, seed: int) -> SelectionStream:
        """Return the running selection."""
        cohort_fits(self.size, population.clients)
        return _Samples(self.size, seed)


class _Everyone(SelectionStream):
    stateful = False

    def select(self, t: int, available: AvailableClients) -> Ids:
        return available.clients


class _Samples(SelectionStream):
    stateful = False

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._seed = seed

    def select(self, t: int, available: AvailableClients) -> Ids:
        clients = available.clients
        if len(clients) <= self._size:
            return clients
        draws = generator(self._seed, "uniform-of", t)
        return np.sort(draws.choice(clients, self._size, replace=False, shuffle=False))
