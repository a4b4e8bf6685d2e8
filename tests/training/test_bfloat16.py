"""Gradients in bfloat16: against a literal step, float64 updates, and accuracies in float32."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import fedtide as ft
from fedtide.algorithms import Instructions
from fedtide.problems.models import resolve_model
from fedtide.training import LocalTraining
from fedtide.training.minibatches import MinibatchPlanner
from fedtide.training.trainers.reference import ReferenceTrainer
from fedtide.training.trainers.stacked import StackedTrainer
from fedtide.training.trainers.threaded import ThreadedTrainer

CNN = {"type": "cnn", "channels": [8, 8], "hidden": [16]}
ONE_STEP = LocalTraining(steps=1, lr=0.1, batch_size=8)


def test_a_step_is_that_of_a_network_in_bfloat16_on_a_float32_model(image_task):
    task = image_task(CNN, dtype=torch.bfloat16)
    assert task.start.dtype == torch.float32
    plan = MinibatchPlanner(task.population, ONE_STEP, seed=4).plan(np.array([4]))
    found = ReferenceTrainer(task, ONE_STEP).train(Instructions(task.start), plan, 0.1).deltas

    network = resolve_model(CNN).build((3, 16, 16), 3)
    torch.nn.utils.vector_to_parameters(task.start, network.parameters())
    images, labels, real = (part[0] for part in next(task.batches(plan)))
    logits = network.to(torch.bfloat16)(images.to(torch.bfloat16)).float()
    functional.cross_entropy(logits[real], labels[real]).backward()
    gradient = torch.cat([p.grad.flatten() for p in network.parameters()]).float()
    assert found.dtype == torch.float32
    assert torch.allclose(found[0], -0.1 * gradient, rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize(
    "trainer",
    [ReferenceTrainer, StackedTrainer, pytest.param(ThreadedTrainer, marks=pytest.mark.compile)],
)
def test_a_step_is_that_of_float64_to_a_tenth(trainer, image_task):
    """Over further steps a unit may switch on a little sooner or later, which is no error."""
    updates = []
    for dtype in (torch.bfloat16, torch.float64):
        task = image_task(CNN, dtype=dtype)
        plan = MinibatchPlanner(task.population, ONE_STEP, seed=4).plan(np.array([1, 4]))
        updates.append(
            trainer(task, ONE_STEP).train(Instructions(task.start), plan, 0.1).deltas.double()
        )
    found, exact = updates
    assert (found - exact).norm() < 0.1 * exact.norm()


@pytest.mark.statistical
def test_the_model_learns_as_well():
    """The two runs differ in nothing but the rounding; 10 of 360 test samples are three points."""
    runs = [
        ft.simulate(
            problem=ft.problems.Classification(
                "digits", ft.problems.Dirichlet(0.3), clients=40, model={"type": "mlp"}
            ),
            participation=ft.participation.Uniform(size=10),
            algorithm=ft.algorithms.FedAvg(),
            local=LocalTraining(steps=5, lr=0.1, batch_size=16),
            rounds=100,
            seed=1,
            dtype=dtype,
            trainer="stacked",
        ).metrics.row(-1, named=True)
        for dtype in ("float32", "bfloat16")
    ]
    exact, rounded = runs
    assert exact["test_accuracy"] > 0.9
    assert abs(rounded["test_accuracy"] - exact["test_accuracy"]) < 0.03
    assert abs(rounded["train_loss"] - exact["train_loss"]) < 0.05


def test_only_networks_round_their_gradients():
    with pytest.raises(ft.InvalidInputError, match="dtype: bfloat16 is for networks; use float32"):
        ft.simulate(
            problem=ft.problems.LowerBound4D(),
            participation=ft.participation.Full(),
            algorithm=ft.algorithms.FedAvg(),
            local=LocalTraining(steps=1),
            rounds=1,
            dtype="bfloat16",
        )
