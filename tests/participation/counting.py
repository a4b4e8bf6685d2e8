"""Shared by the tests of availability: who is there, and whether it has a given probability."""

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedtide.participation import Availability
from fedtide.population import Population


def simulate(process: Availability, rounds: int, clients: int) -> NDArray:
    """Return whether each client is available in each round, shape (T, N)."""
    running = process.begin(Population(clients=clients), seed=0)
    available = np.zeros((rounds, clients), dtype=bool)
    for t in range(rounds):
        available[t, running.round(t).clients] = True
    return available


def is_plausible(successes: float, trials: int, probability: float) -> bool:
    """Two-sided binomial test that fails with probability at most 1e-6."""
    return stats.binomtest(int(successes), int(trials), min(probability, 1.0)).pvalue > 1e-6
