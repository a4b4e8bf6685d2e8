"""An explicit distribution over sets of clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.configurable import configurable
from fedtide.errors import InvalidInputError, quantify
from fedtide.participation.availability.base import (
    Availability,
    AvailabilityStream,
    AvailableClients,
    Ids,
    IndependentStream,
)
from fedtide.participation.log.client_ids import normalise_clients, number_clients
from fedtide.population import Population
from fedtide.randomness import uniforms
from fedtide.validation import require_probabilities


@configurable
class SubsetLaw(Availability):
    """Independent rounds in which the set A is available with probability q(A).

    Source: Rahimi & Kalogerias 2025 (agnostic FedAvg).

    Args:
        subsets: the sets A, each a list of client ids, or of names if the data name the clients,
            or of N different strings in all, which are numbered in sorted order; an empty list is a
            round without clients.
        probabilities: q(A), summing to 1.

    Raises:
        InvalidInputError: not one probability for each subset, probabilities outside [0, 1] or not
            summing to 1, a client twice in a subset; in `begin`, an unknown client.

    >>> law = SubsetLaw(subsets=[[2, 0], [1]], probabilities=[1.0, 0.0])
    >>> law.begin(Population(clients=3), seed=0).round(5).clients
    array([0, 2])
    """

    subsets: Sequence[Sequence[int | str]]
    probabilities: Sequence[float] | NDArray[np.float64]

    def __post_init__(self) -> None:
        q = require_probabilities("probabilities", self.probabilities)
        if len(q) != len(self.subsets):
            raise InvalidInputError(
                f"probabilities: {len(q)} for {quantify(len(self.subsets), 'subset')}; "
                "give one for each"
            )
        if abs(q.sum() - 1) > 1e-9:
            raise InvalidInputError(
                f"probabilities: the sum is {q.sum():.10g}; divide them by their sum"
            )
        for number, subset in enumerate(self.subsets):
            _check_subset(number, subset)

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        sets = [AvailableClients(clients) for clients in self._sorted_sets(population)]
        total = np.cumsum(self.probabilities)
        cumulative = total / total[-1]

        def draw(t: int) -> AvailableClients:
            u = uniforms(seed, "subset-law", t)
            return sets[int(np.searchsorted(cumulative, u, side="right"))]

        return IndependentStream(draw)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64]:
        """Return P(n ∈ A) = Σ_A q(A) 1[n ∈ A]."""
        return self._sum_terms(population, np.asarray(self.probabilities))

    def shares(self, population: Population) -> NDArray[np.float64]:
        """Return E[1[n ∈ A] / |A|] = Σ_A q(A) / |A| 1[n ∈ A] (its equation 3)."""
        sizes = np.array([max(1, len(subset)) for subset in self.subsets])
        return self._sum_terms(population, np.asarray(self.probabilities) / sizes)

    def _sum_terms(self, population: Population, terms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, for each client, the sum of the terms of the subsets that contain it."""
        sums = np.zeros(population.clients)
        for subset, term in zip(self._sorted_sets(population), terms, strict=True):
            sums[subset] += term
        return sums

    def _sorted_sets(self, population: Population) -> list[Ids]:
        columns = [_to_column(subset) for subset in self.subsets]
        words = [column for column in columns if column.dtype == pl.String]
        if words and population.names is None:
            names = pl.concat(words).unique().sort()
            number_clients("subsets", names, population)  # as many as there are clients
            population = replace(population, names=names.to_numpy().astype(str))
        return [
            np.sort(number_clients(f"subsets[{number}]", column, population))
            for number, column in enumerate(columns)
        ]


def _to_column(subset: Sequence[int | str]) -> pl.Series:
    names = np.asarray(subset, dtype=None if len(subset) else np.int64)
    return normalise_clients("subsets", pl.Series(names))


def _check_subset(number: int, subset: Sequence[int | str]) -> None:
    array = np.asarray(subset)
    if not array.size:
        return
    ids = array.dtype.kind in "iu" and int(array.min()) >= 0
    if array.ndim != 1 or not (ids or all(isinstance(client, str) for client in subset)):
        raise InvalidInputError(
            f"subsets: subset {number} is not a list of clients; give ids from 0, or names"
        )
    if len(np.unique(array)) < len(array):
        raise InvalidInputError(f"subsets: subset {number} repeats a client; list each client once")
