"""The updates and gradients of clients, against the formulas of quadratics."""

import numpy as np
import pytest
import torch

from fedtide.algorithms import Cohort, Instructions
from fedtide.problems import Quadratic, Supervised
from fedtide.simulation.local_round import LocalRound
from fedtide.simulation.round_plan import RoundPlanner
from fedtide.training import Ball, LocalTraining


@pytest.mark.parametrize(
    ("trainer", "local"),
    [
        ("reference", {"momentum": 0.9}),
        ("stacked", {"projection": Ball(radius=0.1)}),
        ("threaded", {"weight_decay": 0.5}),
    ],
)
def test_reported_gradients_are_exact_whatever_the_local_steps_are(trainer, local):
    matrices = [np.diag([1.0, 2.0]), np.diag([3.0, 0.5]), np.eye(2)]
    centers = np.array([[0.0, 1.0], [1.0, 1.0], [-1.0, 2.0]])
    task = Quadratic(matrices, centers).prepare(0, torch.device("cpu"), torch.float64)
    local_round = LocalRound(task, LocalTraining(steps=3, lr=0.05, **local), 0, trainer, 1)
    x = np.array([0.7, -0.3])
    instructions = Instructions(torch.from_numpy(x), gradients=True)
    updates, _ = local_round.train(instructions, Cohort.uniform(torch.tensor([0, 2])), lr=0.05)
    expected = [matrices[n] @ (x - centers[n]) for n in (0, 2)]
    assert np.allclose(updates.gradients.numpy(), expected, rtol=1e-12)
    assert updates.steps.tolist() == [3, 3]
    assert updates.clients.tolist() == [0, 2]


@pytest.mark.compile
@pytest.mark.parametrize(("trainer", "inside"), [("compiled", 1), ("stacked", 2), ("threaded", 1)])
def test_rounds_leave_all_cores_to_the_threads_that_train(trainer, inside, set_threads):
    """PyTorch's own threads would wait busily after every operation that uses them."""
    matrices = [np.eye(2), np.diag([3.0, 0.5])]
    task = Quadratic(matrices, np.eye(2)).prepare(0, torch.device("cpu"), torch.float64)
    set_threads(2)
    local_round = LocalRound(task, LocalTraining(steps=3, lr=0.05), 0, trainer, 1)
    with local_round.limit_threads():
        assert torch.get_num_threads() == inside
    assert torch.get_num_threads() == 2


def test_plans_padded_to_the_largest_client_bound_a_chunk():
    """Four epochs of the client with 1,000 samples take 32,000 bytes in the plan of any other."""
    owners = np.repeat(np.arange(300), [1000] + [2] * 299)
    table = {"x": np.ones((len(owners), 1)), "y": owners % 2, "who": owners}
    problem = Supervised(table, inputs="x", target="y", clients="who", model="logistic")
    task = problem.prepare(0, torch.device("cpu"), torch.float64)

    def plan_size(trainer, clients, max_bytes=32_000 * 50, **local):
        local = LocalTraining(batch_size=10, lr=0.1, **local)
        cohort = Cohort.uniform(torch.as_tensor(clients))
        found = LocalRound(task, local, 0, trainer, 1)
        planner = RoundPlanner(
            task, found.planner, found.trainer, max_bytes, 1000, False, None, adds_up=False
        )
        return planner.plan(cohort, lr=0.1).size

    assert plan_size("reference", range(300), epochs=4) == 50
    assert plan_size("stacked", range(300), epochs=4) == 100  # as many as it trains at once
    assert plan_size("reference", range(1, 300), epochs=4) == 1000  # without the largest
    assert plan_size("reference", range(300), steps=4) == 1000
    assert (
        plan_size("threaded", range(300), max_bytes=3200, epochs=4) == 2 * torch.get_num_threads()
    )
