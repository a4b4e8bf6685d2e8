"""Contracts of selections: which of the available clients are asked to train."""

from __future__ import annotations

from abc import ABC, abstractmethod

from fedtide.participation.availability.base import AvailableClients, Ids
from fedtide.population import Population


class SelectionStream(ABC):
    """A started selection.

    Attributes:
        stateful: whether a round depends on earlier ones; if so, every round is asked for in order,
            and a resumed run replays the past rounds.
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
        """Return the largest number of clients selected in a round, for estimates of costs.

        By default `size` or, if that is larger or there is none, all `clients`.
        """
        return min(clients, getattr(self, "size", clients))
