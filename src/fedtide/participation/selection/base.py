"""Contracts of selections: which of the available clients are asked to train."""

from __future__ import annotations

from abc import ABC, abstractmethod

from fedtide.participation.availability.base import AvailableClients, Ids
from fedtide.population import Population


class SelectionStream(ABC):
    """A started selection.

    Attributes:
        stateful: whether a round depends on earlier ones; if so, every round is asked for in order,
            and a resumed run repeats the past rounds.
    """

    stateful: bool = True

    @abstractmethod
    def select(self, t: int, available: AvailableClients) -> Ids:
        """Return which of the available clients are selected in round t, sorted.

        The arrays of `available` cannot be written to: copy them to shuffle or sort in place.
        """


class Selection(ABC):
    """A selection: a value (a frozen dataclass), started for a population."""

    @abstractmethod
    def start(self, population: Population, seed: int) -> SelectionStream:
        """Start the selection for these clients.

        Raises:
            InvalidInputError: a parameter does not fit the population.
        """

    def most(self, clients: int) -> int:
        """Return how many of so many clients are selected at most, by which costs are estimated.

        By default `size` if the selection has one, otherwise all.
        """
        return min(clients, getattr(self, "size", clients))
