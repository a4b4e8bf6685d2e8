"""Contracts of availability processes: which clients could take part in round t."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError
from fedtide.participation.availability.presence import Presence
from fedtide.population import Population

Ids = NDArray[np.int64]
"""Client ids, sorted, each at most once."""


@dataclass(frozen=True)
class AvailableClients:
    """The clients that could take part in one round.

    Args:
        clients: their ids, sorted, shape (S,).
        weights: the participation weight q_t^n of each of them, shape (S,); None if the process
            gives no weights.
    """

    clients: Ids
    weights: NDArray[np.float64] | None = None

    def weights_of(self, clients: Ids) -> NDArray[np.float64]:
        """Return q_t^n of some of the clients; 1 / their number if the process gives no weights."""
        if self.weights is None:
            return np.full(len(clients), 1 / max(1, len(clients)))
        return self.weights[np.searchsorted(self.clients, clients)]


class RoundOrder:
    """Keeps a stream's rounds in increasing order, and tells which of them were skipped."""

    def __init__(self) -> None:
        self._next = 0

    def advance(self, t: int) -> range:
        """Move on to round t and return the rounds skipped before it.

        Raises:
            ValueError: t is not larger than every round asked for before.
        """
        if t < self._next:
            raise ValueError(
                f"round {t} asked after round {self._next - 1}; ask in increasing order"
            )
        skipped = range(self._next, t)
        self._next = t + 1
        return skipped


class AvailabilityStream(ABC):
    """A started process, asked for rounds in increasing order; rounds may be skipped.

    Draws are keyed by (seed, round or client): a second stream, started from the same process,
    population and seed, gives the same clients in round t whichever rounds were asked for before.
    So a run that is resumed at round t starts a new stream and asks for round t.

    Attributes:
        length: the number of rounds that the data cover, after which nobody is available; None:
            unlimited.
    """

    length: int | None = None

    @abstractmethod
    def round(self, t: int) -> AvailableClients:
        """Return the clients available in round t (0-based, larger than any asked for before)."""


class IndependentStream(AvailabilityStream):
    """A stream whose rounds may be asked for in any order.

    Args:
        draw: returns the clients available in round t.
        length: as in `AvailabilityStream`.
    """

    def __init__(self, draw: Callable[[int], AvailableClients], length: int | None = None) -> None:
        self._draw, self.length = draw, length

    def round(self, t: int) -> AvailableClients:
        return self._draw(t)


class Availability(ABC):
    """An availability process: a value (a frozen dataclass), started for a population."""

    @abstractmethod
    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        """Start the process for these clients.

        The method is called `begin` because `start` is a parameter of `Cyclic`.

        Raises:
            InvalidInputError: a parameter does not fit the population.
        """

    def presence(self, population: Population, seed: int) -> Presence:
        """Return who is available at a time in seconds, for runs with `timing`.

        Raises:
            InvalidInputError: a parameter does not fit the population, or the process is a law per
                round.
        """
        raise InvalidInputError(
            f"type: {type(self).__name__} says who is available in a round, and timing asks who is "
            "at a time; give full, trace or sessions"
        )

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64] | None:
        """Return each client's long-run probability of being available, (N,); None: unknown."""
        return None
