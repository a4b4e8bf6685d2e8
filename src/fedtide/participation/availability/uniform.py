"""Independent uniform samples of clients."""

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
from fedtide.randomness import generator
from fedtide.validation import require_cohort_size, require_whole_number


@configurable
class Uniform(Availability):
    """In every round an independent uniform sample of S of the N clients, without replacement.

    Args:
        size: S.

    Raises:
        InvalidInputError: a size below 1; in `begin`, above N.

    >>> running = Uniform(size=2).begin(Population(clients=1000), seed=0)
    >>> len(running.round(3).clients)
    2
    """

    size: int

    def __post_init__(self) -> None:
        require_whole_number("size", self.size)

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        clients = population.clients
        require_cohort_size(self.size, clients)

        def draw(t: int) -> AvailableClients:
            random = generator(seed, "uniform", t)
            return AvailableClients(
                np.sort(random.choice(clients, self.size, replace=False, shuffle=False))
            )

        return IndependentStream(draw)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64]:
        """Return p_n = S/N."""
        require_cohort_size(self.size, population.clients)
        return np.full(population.clients, self.size / population.clients)
