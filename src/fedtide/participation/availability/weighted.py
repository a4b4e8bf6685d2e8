"""Successive sampling with unequal weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedtide.client_values import Name, in_any_order, order_by_id, scale_to_finite_sum
from fedtide.configurable import configurable
from fedtide.errors import InvalidInputError
from fedtide.participation.availability.base import (
    Availability,
    AvailabilityStream,
    AvailableClients,
    Ids,
)
from fedtide.participation.inclusion import inclusion_probabilities
from fedtide.population import Population
from fedtide.randomness import generator
from fedtide.validation import (
    require_cohort_size,
    require_nonnegative,
    require_one_per_client,
    require_whole_number,
)

_MAX_EXACT_WORK = 1_000_000
"""The largest N·S for which exact inclusion probabilities take seconds rather than minutes."""


@configurable
class Weighted(Availability):
    """In every round, S clients drawn one by one, each ∝ weight among those not yet drawn.

    Successive sampling without replacement, rounds independent (Rahimi & Kalogerias 2025 use
    N = 100, S = 10, w_i = exp(−i/10); their program calls NumPy's `choice`).

    A round costs O(S log N) unless the S largest weights make up nearly all of the sum; then O(N).

    Args:
        size: S.
        weights: w_n, any non-negative numbers, (N,) or by name; 0 means never.

    Raises:
        InvalidInputError: a size below 1, weights that are negative or not finite, fewer than S
            positive weights; in `begin`, not one weight for each client.

    >>> running = Weighted(size=2, weights=[1, 0, 5]).begin(Population(clients=3), seed=0)
    >>> running.round(0).clients
    array([0, 2])
    """

    size: int
    weights: Sequence[float] | NDArray[np.float64] | Mapping[Name, float]

    def __post_init__(self) -> None:
        require_whole_number("size", self.size)
        positive = np.count_nonzero(require_nonnegative("weights", in_any_order(self.weights)))
        if positive < self.size:
            raise InvalidInputError(
                f"weights: fewer are positive ({positive}) than size = {self.size}; give more"
            )

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        return _WeightedStream(self._weights_for(population), self.size, seed)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64] | None:
        """Return the exact inclusion probabilities.

        None if N·S is above a million, or the weights are too different for the integral.
        """
        weights = self._weights_for(population)
        if len(weights) * self.size > _MAX_EXACT_WORK:
            return None
        try:
            return inclusion_probabilities(weights, self.size)
        except InvalidInputError:
            return None

    def _weights_for(self, population: Population) -> NDArray[np.float64]:
        given = order_by_id("weights", self.weights, population)
        weights = require_nonnegative("weights", given)
        require_one_per_client("weights", weights, population.clients)
        require_cohort_size(self.size, population.clients)
        return weights


class _WeightedStream(AvailabilityStream):
    """Draws with replacement and keeps first occurrences, which is successive sampling."""

    def __init__(self, weights: NDArray[np.float64], size: int, seed: int) -> None:
        self._weights = weights
        total = np.cumsum(scale_to_finite_sum(weights))
        self._cumulative = total / total[-1]
        self._size = size
        self._seed = seed

    def round(self, t: int) -> AvailableClients:
        random = generator(self._seed, "weighted", t)
        sample = np.searchsorted(self._cumulative, random.random(4 * self._size), side="right")
        _, first = np.unique(sample, return_index=True)
        ids = sample[np.sort(first)[: self._size]]
        if len(ids) < self._size:
            ids = np.concatenate([ids, self._draw_rest(random, ids)])
        return AvailableClients(np.sort(ids))

    def _draw_rest(self, random: np.random.Generator, ids: Ids) -> Ids:
        """Draw the clients after `ids`: the smallest of exponential times with rates w_n."""
        with np.errstate(divide="ignore"):
            exponentials = random.standard_exponential(len(self._weights))
            log_times = np.log(exponentials) - np.log(self._weights)
        log_times[ids] = np.inf
        missing = self._size - len(ids)
        return np.argpartition(log_times, missing - 1)[:missing]
