"""Independent Bernoulli availability."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtide.configurable import configurable
from fedtide.participation.availability._renewal import RenewalStream, draw_geometric
from fedtide.participation.availability.base import Availability, AvailabilityStream, Ids
from fedtide.participation.rates import Rates, check_rates, resolve_rates
from fedtide.population import Population
from fedtide.randomness import generator


@configurable
class Bernoulli(Availability):
    """Client n is available with probability p_n, independently over rounds and clients.

    The gaps between a client's available rounds are drawn, P(gap = g) = p (1 − p)^(g−1), so a
    round costs O(S) for S available clients. (Wang & Ji 2024, FedAU, section 6.)

    Args:
        rates: p_n: one number, one for each client, or a law; 0 means never, 1 always.

    Raises:
        InvalidInputError: rates outside [0, 1]; in `begin`, not one for each client.

    >>> running = Bernoulli(rates=[1.0, 0.0, 1.0]).begin(Population(clients=3), seed=0)
    >>> running.round(0).clients
    array([0, 2])
    """

    rates: Rates

    def __post_init__(self) -> None:
        check_rates(self.rates)

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        p = resolve_rates(self.rates, population, seed)

        def draw_gaps(t: int, ids: Ids) -> NDArray[np.int64]:
            return draw_geometric(generator(seed, "bernoulli", t), p[ids])

        return RenewalStream(draw_geometric(generator(seed, "bernoulli-first"), p) - 1, draw_gaps)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64]:
        return resolve_rates(self.rates, population, seed)
