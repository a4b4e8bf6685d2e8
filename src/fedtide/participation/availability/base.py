"""The contract of an availability process: who could take part in round t."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtide.population import Population

Ids = NDArray[np.int64]
"""Client ids, sorted, each at most once."""


@dataclass(frozen=True)
class AvailableClients:
    """The clients that could take part in one round.

    Args:
        clients: their ids, sorted, shape (S,).
        weights: the weight q_t^n that the participation gives each of them, shape (S,); None where
            it gives none (whoever needs one then takes 1 / cohort size).
    """

    clients: Ids
    weights: NDArray[np.float64] | None = None


class AvailabilityStream(ABC):
    """A started process. Rounds are asked for in increasing order; gaps are allowed.

    Its draws are keyed by (seed, round or client), so that a second one, started from the same
    process, population and seed, gives the same clients in round t whichever rounds were asked
    before: a run that was killed in round t starts anew and asks for round t.

    Attributes:
        length: how many rounds its data cover, after which nobody is available; None: endless.
    """

    length: int | None = None

    @abstractmethod
    def round(self, t: int) -> AvailableClients:
        """Return who is available in round t (0-based, larger than any round asked before)."""


class Availability(ABC):
    """Who could take part, round by round: a value (frozen dataclass), started for a population."""

    @abstractmethod
    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        """Return the running process for these clients.

        (Not called `start` or `rates` like elsewhere: parameters of processes have those names.)

        Raises:
            InvalidInputError: a parameter that does not fit the population.
        """

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64] | None:
        """Return each client's long-run probability of being available, (N,); None: unknown."""
        return None
