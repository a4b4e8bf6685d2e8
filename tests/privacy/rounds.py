"""Rounds of updates that a test chooses, and methods written out step by step."""

from collections.abc import Callable

import numpy as np
import torch

from fedtide.algorithms import ClientUpdates, Cohort, RoundDriver
from fedtide.population import Population
from fedtide.privacy import make_private

Deltas = Callable[[int, np.ndarray], np.ndarray]
"""The updates (S, d) of these clients in a round."""


def drive(algorithm, mechanism, present, deltas: Deltas, d: int, seed=0, dtype=torch.float64):
    """Run the rounds of `present`, (T, N); return the driver, and what each round added."""
    private = make_private(algorithm, mechanism, seed)
    driver = RoundDriver(private, torch.zeros(d, dtype=dtype), Population(present.shape[1]))
    directions = []
    for t, row in enumerate(present):

        def train(_, cohort, t=t):
            ids = cohort.clients.numpy()
            rows = torch.as_tensor(deltas(t, ids)).to(dtype).reshape(len(ids), d)
            return ClientUpdates(cohort.clients, cohort.weights, rows, 0.1, torch.ones(len(ids)))

        info = driver.run(Cohort.uniform(torch.from_numpy(np.flatnonzero(row))), 0.1, train)
        directions.append(info.direction.numpy())
    return driver, np.array(directions)


def all_patterns(rounds: int) -> np.ndarray:
    """Return every participation pattern of one client, (2**rounds, rounds)."""
    return (np.arange(2**rounds)[:, None] >> np.arange(rounds)) & 1 == 1


def banded_root(bands: int, rounds: int) -> np.ndarray:
    """Return C: the square root of the lower triangle of ones, banded, columns of norm 1.

    The root is that of SciPy, and not its formula.
    """
    from scipy.linalg import sqrtm

    size = max(rounds, bands)
    root = np.real(sqrtm(np.tril(np.ones((size, size)))))
    column = root[:bands, 0] / np.linalg.norm(root[:bands, 0])
    C = np.zeros((rounds, rounds))
    for j in range(rounds):
        C[j : j + bands, j] = column[: rounds - j]
    return C
