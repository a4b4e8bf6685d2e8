"""Successive sampling: some clients are picked sooner than others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
from fedtide.validation import cohort_fits, nonnegative, one_each, whole

_EXACT_WORK = 1_000_000
"""The largest N·S for which exact inclusion probabilities take seconds rather than minutes."""


@dataclass(frozen=True)
class Weighted(Availability):
    """In every round S clients, one after another, each ∝ its weight among those not yet picked.

    Successive sampling without replacement, rounds independent (Agnostic FedAvg 2025 uses
    N = 100, S = 10, w_i = exp(−i/10); its program leaves it to NumPy's `choice`).

    A round costs O(S log N) unless the S largest weights hold nearly all of the sum: then O(N).

    Args:
        size: S.
        weights: w_n, any non-negative numbers, shape (N,); 0 is never.

    Raises:
        InvalidInputError: a size below 1, negative or non-finite weights, fewer than S positive ones; in
            `begin`, not one weight for each client.

    >>> running = Weighted(size=2, weights=[1, 0, 5]).begin(Population(clients=3), seed=0)
    >>> running.round(0).clients
    array([0, 2])
    """

    size: int
    weights: Sequence[float] | NDArray[np.float64]

    def __post_init__(self) -> None:
        whole("size", self.size)
        positive = np.count_nonzero(nonnegative("weights", self.weights))
        if positive < self.size:
            raise InvalidInputError(
                f"weights: {positive} are positive; give at least size = {self.size} of them"
            )

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        """Return the running process."""
        return _Successive(self._weights(population.clients), self.size, seed)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64] | None:
        """Return the exact inclusion probabilities where N·S is at most a million, else None."""
        weights = self._weights(population.clients)
        if len(weights) * self.size > _EXACT_WORK:
            return None
        return inclusion_probabilities(weights, self.size)

    def _weights(self, clients: int) -> NDArray[np.float64]:
        weights = nonnegative("weights", self.weights)
        one_each("weights", weights, clients)
        cohort_fits(self.size, clients)
        return weights


class _Successive(AvailabilityStream):
    """Draws with replacement and keeps first occurrences: given those, the rest is ∝ weight."""

    def __init__(self, weights: NDArray[np.float64], size: int, seed: int) -> None:
        self._weights = weights
        total = np.cumsum(weights)
        self._cumulative = total / total[-1]
        self._size = size
        self._seed = seed

    def round(self, t: int) -> AvailableClients:
        draws = generator(self._seed, "weighted", t)
        drawn = np.searchsorted(self._cumulative, draws.random(4 * self._size), side="right")
        _, first = np.unique(drawn, return_index=True)
        ids = drawn[np.sort(first)[: self._size]]
        if len(ids) < self._size:
            ids = np.concatenate([ids, self._continued(draws, ids)])
        return AvailableClients(np.sort(ids))

    def _continued(self, draws: np.random.Generator, ids: Ids) -> Ids:
        """Return who comes after `ids`: of exponential clocks with rates w_n, the first to ring."""
        with np.errstate(divide="ignore"):
            clocks = np.log(draws.standard_exponential(len(self._weights))) - np.log(self._weights)
        clocks[ids] = np.inf
        lacking = self._size - len(ids)
        return np.argpartition(clocks, lacking - 1)[:lacking]
