"""Captured steps serve the runs of all seeds of a problem, but never a task that differs."""

import gc
import weakref
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from fedtide.algorithms import Instructions
from fedtide.problems import Classification, Iid, Regression, Supervised
from fedtide.problems.synthetic import RegressionTask
from fedtide.simulation.inputs import prepare_cached
from fedtide.spec import PROCESS
from fedtide.training import LocalTraining
from fedtide.training.minibatches import MinibatchPlanner
from fedtide.training.projection import Projection
from fedtide.training.trainers import block_runner
from fedtide.training.trainers.reference import ReferenceTrainer
from fedtide.training.trainers.stacked import StackedTrainer
from fedtide.training.trainers.threaded import ThreadedTrainer

LOCAL = LocalTraining(steps=2, lr=0.05, batch_size=4)
CLIENTS = np.arange(3)
REGRESSION = Regression(clients=3, samples=30, features=5, informative=3)
DIGITS = Classification("digits", Iid(), clients=3)


@pytest.fixture
def captured(monkeypatch):
    """Return a list that grows with every capture; earlier ones are forgotten."""
    calls, capture = [], block_runner.capture

    def counting(*args):
        calls.append(args)
        return capture(*args)

    monkeypatch.setattr(block_runner, "capture", counting)
    block_runner._SHARED.clear()
    PROCESS.prepared.clear()
    return calls


def assert_equal_to_the_reference(trainer, task):
    plan = MinibatchPlanner(task.population, LOCAL, seed=1).plan(CLIENTS)
    found, expected = (
        made(task, LOCAL).train(Instructions(task.start + 0.1), plan, 0.05).deltas
        for made in (trainer, ReferenceTrainer)
    )
    assert expected.abs().amax() > 1e-4
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9)


def prepare(problem, seed):
    return prepare_cached(problem, seed, "cpu", "float64")


@pytest.mark.parametrize(
    ("problem", "trainer"),
    [(REGRESSION, StackedTrainer), (REGRESSION, ThreadedTrainer), (DIGITS, StackedTrainer)],
    ids=["regression", "regression-threaded", "digits"],
)
def test_the_seeds_of_a_problem_share_their_captured_steps(problem, trainer, captured):
    """Every seed has other data, partitions and initial models."""
    once = None
    for seed in (1, 2):
        assert_equal_to_the_reference(trainer, prepare(problem, seed))
        once = once or len(captured)
    assert len(captured) == once > 0


@pytest.mark.parametrize("other", [{"model": {"type": "mlp", "hidden": [4]}}, {"samples": 900}])
def test_another_model_or_number_of_samples_is_captured_on_its_own(other, captured):
    assert_equal_to_the_reference(StackedTrainer, prepare(DIGITS, 1))
    once = len(captured)
    problem = Classification("digits", Iid(), clients=3, **other)
    assert_equal_to_the_reference(StackedTrainer, prepare(problem, 1))
    assert len(captured) == 2 * once


class Scaled(nn.Module):
    """A network with a number of its own, drawn when it is made."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(2, 1), 1 + float(torch.rand(()))

    def forward(self, x):
        return self.scale * self.layer(x).squeeze(-1)


def test_the_users_own_networks_are_captured_for_every_seed():
    """Their code may depend on the seed in any way."""
    draw = np.random.default_rng(0)
    table = {"x": draw.normal(size=(12, 2)), "y": draw.normal(size=12)}
    problem = Supervised(
        train=table, inputs="x", target="y", clients=3, partition=Iid(), model=Scaled, loss="mse"
    )
    scales = set()
    for seed in (1, 2):
        task = prepare(problem, seed)
        assert_equal_to_the_reference(StackedTrainer, task)
        scales.add(task.module(task.start).scale)
    assert len(scales) == 2


class HiddenData(RegressionTask):
    """A task that does not say which tensors its batches are read from."""

    def __init__(self, task):
        super().__init__(*task.batch_data)
        self.batch_data, self.seed_family = (), "all alike"

    def with_batch_data(self, data):
        return self


def test_steps_that_hold_tensors_of_their_task_serve_no_other():
    """Even if the tasks are said to belong together."""
    for seed in (1, 2):
        assert_equal_to_the_reference(StackedTrainer, HiddenData(prepare(REGRESSION, seed)))


class Branch(nn.Module):
    """Cannot be captured: what it does depends on the values."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(5, 1)

    def forward(self, x):
        return self.out(x * 2 if float(x.detach().sum()) > 0 else x)


def test_steps_that_cannot_be_captured_do_not_keep_a_task_in_memory():
    table = {"x": np.random.default_rng(0).normal(size=(12, 5)), "y": np.arange(12.0)}
    table["who"] = np.arange(12) % 3
    columns = {"inputs": "x", "target": "y", "clients": "who"}
    problem = Supervised(table, **columns, model=Branch, loss="mse", metrics={})
    task = problem.prepare(0, torch.device("cpu"), torch.float64)
    assert_equal_to_the_reference(ThreadedTrainer, task)
    watched = weakref.ref(task)
    del task
    gc.collect()
    assert watched() is None


@dataclass(frozen=True)
class HalfSpace(Projection):
    """Onto {y : n·y <= 0}; a list has no hash."""

    normal: list

    def __call__(self, y):
        n = torch.tensor(self.normal, dtype=y.dtype)
        return y - ((y @ n).clamp(min=0) / (n @ n))[..., None] * n

    def check(self, size):
        pass


@pytest.mark.parametrize("trainer", [StackedTrainer, ThreadedTrainer])
def test_a_projection_without_hash_is_captured_for_each_object(trainer):
    task = prepare(REGRESSION, 1)
    size = len(task.start)
    for sign in (1.0, -1.0):
        local = replace(LOCAL, projection=HalfSpace([sign] * size))
        plan = MinibatchPlanner(task.population, local, seed=1).plan(CLIENTS)
        found, expected = (
            made(task, local).train(Instructions(task.start + 0.1), plan, 0.05).deltas
            for made in (trainer, ReferenceTrainer)
        )
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9)
