"""Markov availability: each client is a two-state chain."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtide.configurable import configurable
from fedtide.errors import InvalidInputError
from fedtide.participation.availability._renewal import RenewalStream, draw_geometric
from fedtide.participation.availability.base import Availability, AvailabilityStream, Ids
from fedtide.participation.rates import Rates, check_rates, resolve_rates
from fedtide.population import Population
from fedtide.randomness import generator
from fedtide.validation import require_probabilities


@configurable
class Markov(Availability):
    """Each client is a two-state chain: off → on with probability a_n, on → off with b_n.

    For a rate p (Wang & Ji 2024, FedAU, section 6):

        a = max_on, b = a (1/p − 1);   where that b exceeds 1:  b = 1, a = p / (1 − p).

    The chains start stationary, so P(available) = a / (a + b) = p in every round, and the
    correlation of rounds t and t + k is (1 − a − b)^k. For each available client, the process draws
    whether it switches off (b) and for how long (geometric in a), so a round costs O(S) for S
    available clients.

    Args:
        rates: p_n: one number, one for each client, or a law; 0 means never (the authors'
            program divides by it), 1 always.
        max_on: the largest off → on probability, in (0, 1]; smaller means longer bursts.

    Raises:
        InvalidInputError: rates outside [0, 1], max_on not within (0, 1]; in `begin`, not one rate
            for each client.

    >>> running = Markov(rates=[1.0, 0.0, 1.0]).begin(Population(clients=3), seed=0)
    >>> running.round(0).clients
    array([0, 2])
    """

    rates: Rates
    max_on: float = 0.05

    def __post_init__(self) -> None:
        check_rates(self.rates)
        if require_probabilities("max_on", self.max_on)[0] == 0:
            raise InvalidInputError(
                "max_on: 0 keeps absent clients off; give a probability above 0"
            )

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        p = resolve_rates(self.rates, population, seed)
        random = generator(seed, "markov-first")
        first = draw_geometric(random, _on_probabilities(p, self.max_on))
        first[random.random(len(p)) < p] = 0

        def draw_gaps(t: int, ids: Ids) -> NDArray[np.int64]:
            random = generator(seed, "markov", t)
            on, off = transition_probabilities(p[ids], self.max_on)
            absence = draw_geometric(random, on)
            return np.where(random.random(len(ids)) < off, 1 + absence, 1)

        return RenewalStream(first, draw_gaps)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64]:
        return resolve_rates(self.rates, population, seed)


def transition_probabilities(
    p: NDArray[np.float64], max_on: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the probabilities a (off → on) and b (on → off) for rates p, each of shape (S,).

    >>> transition_probabilities(np.array([0.5, 0.02]), max_on=0.05)
    (array([0.05      , 0.02040816]), array([0.05, 1.  ]))
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.minimum(max_on * (1 / p - 1), 1.0)
    return _on_probabilities(p, max_on), off


def _on_probabilities(p: NDArray[np.float64], max_on: float) -> NDArray[np.float64]:
    """Return a = min(max_on, p / (1 − p)): b exceeds 1 exactly where the second is the smaller."""
    with np.errstate(divide="ignore"):
        return np.minimum(max_on, p / (1 - p))
