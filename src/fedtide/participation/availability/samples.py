"""Rounds of samples: independent ones, and the blocks of a permutation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.client_values import Name, in_any_order, order_by_id, scale_to_finite_sum
from fedtide.errors import InvalidInputError, quantify
from fedtide.participation.availability.base import (
    Availability,
    AvailabilityStream,
    AvailableClients,
    Ids,
    IndependentStream,
)
from fedtide.participation.availability.presence import Presence
from fedtide.participation.availability.renewal import StepwiseStream
from fedtide.participation.inclusion import inclusion_probabilities
from fedtide.participation.log.client_ids import normalise_clients, number_clients
from fedtide.population import Population
from fedtide.randomness import generator, uniforms
from fedtide.spec import AtLeast, Unit, spec
from fedtide.validation import (
    require_cohort_size,
    require_nonnegative,
    require_one_per_client,
)


@spec
class Full(Availability):
    """Every client is available in every round.

    >>> Full().begin(Population(clients=3), seed=0).round(7).clients
    array([0, 1, 2])
    """

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        everyone = AvailableClients(np.arange(population.clients, dtype=np.int64))
        return IndependentStream(lambda t: everyone)

    def presence(self, population: Population, seed: int) -> Presence:
        """Return one session without an end for each client."""
        never = np.full(population.clients, np.inf)
        return Presence(np.zeros(population.clients), never, lambda ids: (never[ids], never[ids]))

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64]:
        """Return p_n = 1."""
        return np.ones(population.clients)


class _OneSize(Availability):
    """A process in which `size` of the clients, all alike, are available in every round."""

    size: int

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64]:
        """Return p_n = S/N."""
        require_cohort_size(self.size, population.clients)
        return np.full(population.clients, self.size / population.clients)


@spec
class Uniform(_OneSize):
    """In every round an independent uniform sample of S of the N clients, without replacement.

    Args:
        size: S.

    Raises:
        InvalidInputError: a size below 1; in `begin`, above N.

    >>> running = Uniform(size=2).begin(Population(clients=1000), seed=0)
    >>> len(running.round(3).clients)
    2
    """

    size: Annotated[int, AtLeast(1)]

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        clients = population.clients
        require_cohort_size(self.size, clients)

        def draw(t: int) -> AvailableClients:
            random = generator(seed, "uniform", t)
            return AvailableClients(
                np.sort(random.choice(clients, self.size, replace=False, shuffle=False))
            )

        return IndependentStream(draw)


_MAX_EXACT_WORK = 1_000_000
"""The largest N·S for which exact inclusion probabilities take seconds rather than minutes."""


@spec
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

    size: Annotated[int, AtLeast(1)]
    weights: Annotated[Sequence[float] | NDArray[np.float64] | Mapping[Name, float], AtLeast(0)]

    def __post_init__(self) -> None:
        positive = np.count_nonzero(np.asarray(in_any_order(self.weights)))
        if positive < self.size:
            raise InvalidInputError(
                f"weights: fewer are positive ({positive}) than size = {self.size}; give more"
            )

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        weights, size = self._weights_for(population), self.size
        total = np.cumsum(scale_to_finite_sum(weights))
        cumulative = total / total[-1]

        def draw(t: int) -> AvailableClients:
            # draws with replacement, of which the first occurrences are a successive sample
            random = generator(seed, "weighted", t)
            sample = np.searchsorted(cumulative, random.random(4 * size), side="right")
            _, first = np.unique(sample, return_index=True)
            ids = sample[np.sort(first)[:size]]
            if len(ids) < size:
                ids = np.concatenate([ids, _draw_rest(random, weights, ids, size - len(ids))])
            return AvailableClients(np.sort(ids))

        return IndependentStream(draw)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64] | None:
        """Return the exact inclusion probabilities; None if N·S is above a million."""
        weights = self._weights_for(population)
        if len(weights) * self.size > _MAX_EXACT_WORK:
            return None
        return inclusion_probabilities(weights, self.size)

    def _weights_for(self, population: Population) -> NDArray[np.float64]:
        given = order_by_id("weights", self.weights, population)
        weights = require_nonnegative("weights", given)
        require_one_per_client("weights", weights, population.clients)
        require_cohort_size(self.size, population.clients)
        return weights


def _draw_rest(
    random: np.random.Generator, weights: NDArray[np.float64], ids: Ids, missing: int
) -> Ids:
    """Draw the clients after `ids`: the smallest of exponential times with rates w_n."""
    with np.errstate(divide="ignore"):
        log_times = np.log(random.standard_exponential(len(weights))) - np.log(weights)
    log_times[ids] = np.inf
    return np.argpartition(log_times, missing - 1)[:missing]


@spec
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
            summing to 1; in `begin`, an unknown client.

    >>> law = SubsetLaw(subsets=[[2, 0], [1]], probabilities=[1.0, 0.0])
    >>> law.begin(Population(clients=3), seed=0).round(5).clients
    array([0, 2])
    """

    subsets: Sequence[Sequence[int | str]]
    probabilities: Annotated[Sequence[float] | NDArray[np.float64], Unit]

    def __post_init__(self) -> None:
        q = np.asarray(self.probabilities)
        if len(q) != len(self.subsets):
            raise InvalidInputError(
                f"probabilities: {len(q)} for {quantify(len(self.subsets), 'subset')}; "
                "give one for each"
            )
        if abs(q.sum() - 1) > 1e-9:
            raise InvalidInputError(
                f"probabilities: the sum is {q.sum():.10g}; divide them by their sum"
            )

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
        rates = np.zeros(population.clients)
        for subset, q in zip(self._sorted_sets(population), self.probabilities, strict=True):
            rates[subset] += q
        return rates

    def _sorted_sets(self, population: Population) -> list[Ids]:
        columns = [_to_column(subset) for subset in self.subsets]
        words = [column for column in columns if column.dtype == pl.String]
        if words and population.names is None:
            names = pl.concat(words).unique().sort()
            number_clients("subsets", names, population)  # as many as there are clients
            population = replace(population, names=names.to_numpy().astype(str))
        return [
            np.unique(number_clients(f"subsets[{number}]", column, population))
            for number, column in enumerate(columns)
        ]


def _to_column(subset: Sequence[int | str]) -> pl.Series:
    names = np.asarray(subset, dtype=None if len(subset) else np.int64)
    return normalise_clients("subsets", pl.Series(names))


@spec
class Permutation(_OneSize):
    """S clients per round, taken in order from successive random permutations of all N clients.

    Round t fills the places tS, ..., tS + S − 1, and every client appears exactly once among the
    places kN, ..., (k+1)N − 1 for each k; if S divides N, that is once every N/S rounds
    (regularized participation: Wang & Ji 2022, proposition 4.2). If it does not, the round in which
    a permutation ends is filled from the next one; clients that are already in the round are
    skipped and stay at the front of the rest. The authors' program lets such a client take part
    twice in the round.

    A new permutation costs O(N) once in N/S rounds, which is O(S) per round.

    Args:
        size: S.

    Raises:
        InvalidInputError: a size below 1; in `begin`, above N.

    >>> running = Permutation(size=2).begin(Population(clients=4), seed=0)
    >>> sorted(running.round(0).clients.tolist() + running.round(1).clients.tolist())
    [0, 1, 2, 3]
    """

    size: Annotated[int, AtLeast(1)]

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        require_cohort_size(self.size, population.clients)
        return _PermutationStream(population.clients, self.size, seed)


class _PermutationStream(StepwiseStream):
    def __init__(self, clients: int, size: int, seed: int) -> None:
        super().__init__()
        self._clients = clients
        self._size = size
        self._seed = seed
        self._cycle = 0
        self._queue = np.empty(0, dtype=np.int32)

    def _step(self, t: int) -> Ids:
        ids = self._queue[: self._size]
        self._queue = self._queue[self._size :]
        if len(ids) < self._size:
            ids = np.concatenate([ids, self._take_from_next(ids)])
        return np.sort(ids).astype(np.int64)

    def _take_from_next(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """Start the next permutation and take the clients missing from a round with `ids`."""
        random = generator(self._seed, "permutation", self._cycle)
        fresh = random.permutation(np.arange(self._clients, dtype=np.int32))
        self._cycle += 1
        free = ~np.isin(fresh, ids)
        missing = self._size - len(ids)
        cut = int(np.flatnonzero(free)[missing - 1]) + 1
        front, free = fresh[:cut], free[:cut]
        self._queue = np.concatenate([front[~free], fresh[cut:]])
        return front[free]
