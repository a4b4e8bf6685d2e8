"""Undoing a round, of every method and at every stage of its periods."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from fedtide import algorithms as a
from fedtide.algorithms import ClientUpdates, Cohort, RoundDriver, State
from fedtide.algorithms.rollback import remember
from fedtide.algorithms.serialization import to_tensors
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


@dataclass(frozen=True)
class OwnState(State):
    total: torch.Tensor


def test_sums_that_a_method_of_the_users_own_adds_to_in_place_are_restored():
    """The contract allows that of the sums of a round, also where one is as long as the model."""
    state = OwnState(torch.zeros(3), 0, torch.zeros(3))
    wrapped = a.Averaged().init(torch.zeros(3), Population(N))
    for before in (state, replace(wrapped, inner=state)):
        restore = remember(before, torch.tensor([0]), N)
        state.total.add_(torch.inf)
        restored = to_tensors(restore())
        assert torch.equal(restored["total" if before is state else "inner.total"], torch.zeros(3))
        state.total.zero_()
