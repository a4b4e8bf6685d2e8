"""Full availability."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtide.configurable import configurable
from fedtide.participation.availability.base import (
    Availability,
    AvailabilityStream,
    AvailableClients,
    IndependentStream,
)
from fedtide.population import Population


@configurable
class Full(Availability):
    """Every client is available in every round.

    >>> Full().begin(Population(clients=3), seed=0).round(7).clients
    array([0, 1, 2])
    """

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        everyone = AvailableClients(np.arange(population.clients, dtype=np.int64))
        return IndependentStream(lambda t: everyone)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64]:
        """Return p_n = 1."""
        return np.ones(population.clients)
