"""What clients report, against the formulas of quadratics."""

import numpy as np
import pytest
import torch

from fedtide.algorithms import Instructions
from fedtide.problems import Quadratic
from fedtide.simulation.local_round import LocalRound
from fedtide.training import Ball, LocalTraining


@pytest.mark.parametrize("trainer", ["reference", "stacked", "threaded"])
@pytest.mark.parametrize(
    "local",
    [{}, {"momentum": 0.9}, {"projection": Ball(radius=0.1)}, {"weight_decay": 0.5}],
    ids=str,
)
def test_gradients_are_those_of_the_functions_whatever_the_local_steps_do(trainer, local):
    matrices = [np.diag([1.0, 2.0]), np.diag([3.0, 0.5]), np.eye(2)]
    centers = np.array([[0.0, 1.0], [1.0, 1.0], [-1.0, 2.0]])
    task = Quadratic(matrices, centers).prepare(0, torch.device("cpu"), torch.float64)
    work = LocalRound(task, LocalTraining(steps=3, lr=0.05, **local), 0, trainer, 1)
    x = np.array([0.7, -0.3])
    asked = Instructions(torch.from_numpy(x), gradients=True)
    reports = work.reports(asked, np.array([0, 2]), np.array([0.5, 0.5]), lr=0.05)
    expected = [matrices[n] @ (x - centers[n]) for n in (0, 2)]
    assert np.allclose(reports.gradients.numpy(), expected, rtol=1e-12)
    assert reports.steps.tolist() == [3, 3]
    assert reports.clients.tolist() == [0, 2]
