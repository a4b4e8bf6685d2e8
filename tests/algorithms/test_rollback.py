"""Undoing a round, of every method and at every stage of its periods."""

import numpy as np
import pytest
import torch

from fedtide import algorithms as a
from fedtide.algorithms import ClientUpdates, Cohort, RoundDriver
from fedtide.algorithms.serialization import to_tensors
from fedtide.flower.server.state_changes import remember
from fedtide.population import Population

from .methods import BOUNDED, METHODS

N = 4
RATES = np.full(N, 0.5)
PERIODIC = a.AmplifiedScaffold(period=2, factor=1.5)
COHORTS = [[0, 1], [2], [], [1, 3], [0], [3]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [N, N + 1])
@pytest.mark.parametrize(
    "method",
    [*METHODS, *BOUNDED, PERIODIC, a.FedAdam(inner=PERIODIC)],
    ids=repr,
)
def test_any_round_can_be_undone(method, size, dtype):
    """Also the last one of a window, which writes rows of clients that do not report in it."""
    driver = RoundDriver(method, torch.ones(size, dtype=dtype), Population(N, rates=RATES))
    draws = torch.Generator().manual_seed(3)

    def run(clients):
        cohort = driver.choose_cohort(Cohort.uniform(torch.tensor(clients, dtype=torch.int64)))
        for _, part in driver.chunks(cohort):
            rows = torch.randn(2, len(part), size, generator=draws, dtype=dtype)
            steps = torch.ones(len(part), dtype=torch.int64)
            weights = part.weights.to(dtype)
            driver.absorb(
                ClientUpdates(part.clients, weights, rows[0], 0.1, steps, gradients=rows[1])
            )
        driver.step(0.1)

    for clients in COHORTS:
        before = {name: tensor.clone() for name, tensor in to_tensors(driver.state).items()}
        came = driver.choose_cohort(Cohort.uniform(torch.tensor(clients, dtype=torch.int64)))
        restore = remember(driver.state, came.clients, N)
        for _ in range(2):
            run(clients)
            driver.state = restore()
            after = to_tensors(driver.state)
            assert after.keys() == before.keys()
            for name, tensor in before.items():
                assert torch.equal(after[name], tensor), name
        run(clients)
