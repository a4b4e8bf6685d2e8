"""The clients' weights in the objective that plain averaging minimises, and their L1 skew.

Source: Rahimi & Kalogerias 2025 (agnostic FedAvg), sections 2 and 5.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtide.errors import InvalidInputError
from fedtide.participation.availability.base import Availability
from fedtide.participation.availability.group_cycle import GroupCycle
from fedtide.participation.availability.samples import (
    Full,
    Permutation,
    SubsetLaw,
    Uniform,
    Weighted,
)
from fedtide.participation.schedule import Schedule
from fedtide.population import Population
from fedtide.validation import require_nonnegative, require_whole_number


def participation_weights(
    process: Availability, population: Population, seed: int = 0, rounds: int = 20_000
) -> NDArray[np.float64]:
    """Return p_n = E[ 1[n ∈ S] / |S| ], shape (N,), summing to 1.

    Averaging over the participants S minimises Σ p_n F_n. The result is exact for `SubsetLaw`, for
    `GroupCycle` whose groups are available as a whole (on = 1, off = 0), and for `Full`, `Uniform`,
    `Permutation` and `Weighted`, whose sets have a fixed size M, so that p_n = P(n ∈ S)/M.
    Otherwise it is the mean over the first `rounds` rounds, without those that have no
    participants.

    Args:
        process: the availability process.
        population: the clients.
        seed: of the process.
        rounds: the number of rounds to simulate if no exact result is known.

    Raises:
        InvalidInputError: parameters that do not fit the population, `rounds` that is not a whole
            number of at least 1, or no participants at all.

    >>> participation_weights(SubsetLaw([[0, 1], [0]], [0.5, 0.5]), Population(clients=2))
    array([0.75, 0.25])
    """
    require_whole_number("rounds", rounds)
    weights = _compute_exactly(process, population, seed)
    if weights is None:
        weights = _simulate(process, population, seed, rounds)
    if weights.sum() == 0:
        raise InvalidInputError(
            "participation: no client ever takes part; raise the rates or the rounds"
        )
    return np.asarray(weights / weights.sum())


def l1_skew(weights: ArrayLike) -> float:
    """Return the L1 skew Σ |p_n − 1/N|, between 0 (uniform) and 2.

    Args:
        weights: p_n >= 0, shape (N,), summing to 1.

    Raises:
        InvalidInputError: none, negative ones, or another sum.

    >>> l1_skew([0.75, 0.25])
    0.5
    """
    p = require_nonnegative("weights", weights)
    if p.size == 0:
        raise InvalidInputError("weights: none; give one for each client")
    if abs(p.sum() - 1) > 1e-6:  # the sum of many in float32
        raise InvalidInputError(f"weights: the sum is {p.sum():.10g}; divide them by their sum")
    return float(np.abs(p - 1 / len(p)).sum())


def _compute_exactly(
    process: Availability, population: Population, seed: int
) -> NDArray[np.float64] | None:
    if isinstance(process, SubsetLaw | GroupCycle):
        return process.shares(population)
    if isinstance(process, Full | Uniform | Permutation | Weighted):
        return process.known_rates(population, seed)
    return None


def _simulate(
    process: Availability, population: Population, seed: int, rounds: int
) -> NDArray[np.float64]:
    running = Schedule(process).start(population, seed)
    sums = np.zeros(population.clients)
    for t in range(rounds):
        clients = running.round(t).available
        sums[clients] += 1 / max(1, len(clients))
    return sums
