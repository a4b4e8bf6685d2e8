"""Everyone, always."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtide.participation.process import Availability, Available, Process
from fedtide.population import Population


@dataclass(frozen=True)
class Full(Process):
    """Every client is available in every round.

    >>> Full().begin(Population(clients=3), seed=0).round(7).clients
    array([0, 1, 2])
    """

    def begin(self, population: Population, seed: int) -> Availability:
        """Return the running process."""
        return _Everyone(population.clients)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64]:
        """Return p_n = 1."""
        return np.ones(population.clients)


class _Everyone(Availability):
    def __init__(self, clients: int) -> None:
        self._everyone = Available(np.arange(clients, dtype=np.int64))

    def round(self, t: int) -> Available:
        return self._everyone
