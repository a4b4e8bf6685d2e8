"""Trainers on networks of all kinds and with all optimizers, against a plain PyTorch loop."""

from functools import cache

import numpy as np
import pytest
import torch

from fedtide.algorithms import Instructions
from fedtide.errors import InvalidInputError
from fedtide.training import LocalTraining
from fedtide.training.minibatches import MinibatchPlanner
from fedtide.training.trainers.base import UnsuitableTrainerError
from fedtide.training.trainers.reference import ReferenceTrainer
from fedtide.training.trainers.select import choose_trainer

from .networks import KINDS, SIZES, network_task, plain_loop
from .test_trainers import COMPILING, HAS_COMPILER, THREADED_LATER, TRAINERS

EVERY = {"reference": ReferenceTrainer, **TRAINERS}
CAPTURED = ["reference", *THREADED_LATER]
TRAINED = [kind for kind in KINDS if kind not in ("linear", "branching", "reversing")]
EVERYONE = np.arange(len(SIZES))

OPTIONS = {
    "momentum and decay": {"momentum": 0.6, "weight_decay": 0.1},
    "epochs": {"steps": None, "epochs": 2, "batch_size": 4, "momentum": 0.5},
    "adam": {"optimizer": "adam", "weight_decay": 0.1},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.3, "betas": (0.8, 0.9), "eps": 1e-4},
    "adam in epochs": {"steps": None, "epochs": 2, "batch_size": 4, "optimizer": "adam"},
}


def draw(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return 0.1 * torch.randn(*shape, generator=generator, dtype=torch.float64)


def start_of(task):
    """Return a model and buffers for every client that are not the initial ones."""
    if task.start_buffers is None:
        return task.start + draw(task.layout.size), None
    positive = draw(len(SIZES), len(task.start_buffers)).abs()
    named = task.buffer_layout.unflatten(task.start_buffers + positive)
    named = {n: b.round() if n.endswith("tracked") else b for n, b in named.items()}
    return task.start + draw(task.layout.size), task.buffer_layout.flatten(named, leading=1)


@cache
def plain_rounds(kind, local, mu):
    """Return a network's task, and two rounds of all clients by plain PyTorch: the start of the
    buffers, the plan, the instructions, and each client's result. All trainers share them."""
    task = network_task(kind)
    planner = MinibatchPlanner(task.population, local, seed=2)
    correction, rounds = draw(len(SIZES), task.layout.size), []
    for _ in range(2):
        x, buffers = start_of(task)
        plan = planner.plan(EVERYONE)
        expected = plain_loop(task, local, plan, x, buffers, correction, mu)
        rounds.append((buffers, plan, Instructions(x, correction, mu), expected))
    return task, rounds


def assert_follows_the_plain_loop(trainer, kind, local, mu=0.0):
    """Train all clients for two rounds; the first one captures the steps."""
    task, rounds = plain_rounds(kind, local, mu)
    made = EVERY[trainer](task, local)
    for buffers, plan, instructions, expected in rounds:
        found = made.train(instructions, plan, 0.05, buffers)
        for s, (delta, state) in enumerate(expected):
            assert delta.abs().max() > 1e-3
            assert torch.allclose(found.deltas[s], delta, rtol=1e-9, atol=1e-9)
            if buffers is None:
                assert found.buffers is None
                continue
            for name, value in task.buffer_layout.unflatten(found.buffers[s]).items():
                assert torch.allclose(value, state[name].double(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("trainer", CAPTURED)
@pytest.mark.parametrize("kind", TRAINED)
def test_every_network_trains_as_in_a_plain_loop(trainer, kind):
    """Minibatches of 6 are padded for the client with 3 samples."""
    size = 3 if kind == "convolutional" else 6
    steps = 1 if kind == "tokens" else 2  # it takes long to capture
    local = LocalTraining(steps=steps, batch_size=size, momentum=0.5, weight_decay=0.1)
    assert_follows_the_plain_loop(trainer, kind, local, mu=0.3)


@pytest.mark.parametrize("trainer", CAPTURED)
@pytest.mark.parametrize("options", OPTIONS)
def test_every_optimizer_is_that_of_torch(trainer, options):
    """Clients with few samples stop early in epochs."""
    local = LocalTraining(**({"steps": 3, "batch_size": 6} | OPTIONS[options]))
    assert_follows_the_plain_loop(trainer, "linear", local, mu=0.2)


@pytest.mark.parametrize("trainer", CAPTURED)
def test_buffers_and_optimizers_in_epochs(trainer):
    """Clients that have finished their epochs keep their buffers and their model."""
    local = LocalTraining(epochs=1, batch_size=4, optimizer="adamw", weight_decay=0.2)
    assert_follows_the_plain_loop(trainer, "frozen", local)


@pytest.mark.parametrize(
    ("trainer", "kind"),
    [
        pytest.param("compiled", "frozen", marks=COMPILING),
        pytest.param("threaded-compiled", "convolutional", marks=COMPILING),
    ],
)
def test_compiled_networks_train_as_in_a_plain_loop(trainer, kind):
    local = LocalTraining(steps=2, batch_size=6, optimizer="adamw", weight_decay=0.1)
    assert_follows_the_plain_loop(trainer, kind, local, mu=0.3)


@pytest.mark.parametrize("trainer", ["stacked", pytest.param("compiled", marks=COMPILING)])
def test_a_network_that_cannot_be_stacked_is_refused_in_a_sentence(trainer):
    local = LocalTraining(steps=2, batch_size=4)
    with pytest.raises(
        UnsuitableTrainerError, match=r"^trainer: .* cannot be stacked .*; use trainer: thr"
    ):
        assert_follows_the_plain_loop(trainer, "branching", local)


def test_auto_trains_a_gradient_of_ones_own_as_the_reference_does():
    task, local = network_task("reversing"), LocalTraining(steps=2, batch_size=4)
    trainer, why = choose_trainer("auto", task, local, clients=1e9)
    assert trainer.name == "reference"
    assert "stacked fails on this model" in why
    assert "threaded fails on this model" in why


@pytest.mark.parametrize("trainer", ["reference", "threaded"])
@pytest.mark.filterwarnings("ignore:local steps are not captured")
def test_a_network_that_cannot_be_stacked_trains_without_stacking(trainer):
    local = LocalTraining(steps=2, batch_size=4)
    assert_follows_the_plain_loop(trainer, "branching", local)


@pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler")
@pytest.mark.parametrize(
    ("kind", "measured", "clients", "chosen"),
    [
        ("convolutional", {"reference": 1.0, "stacked": 0.9, "threaded": 1.1}, 1e3, "threaded-c"),
        ("convolutional", {"reference": 2.0, "stacked": 0.5, "threaded": 1.0}, 2e3, "stacked"),
        ("convolutional", {"reference": 2.0, "stacked": 1.5, "threaded": 1.0}, 100, "threaded"),
        ("linear", {"reference": 1.0, "stacked": 0.9}, 1e3, "compiled"),
        ("linear", {"reference": 0.9, "stacked": 1.0}, 1e9, "reference"),
        ("gru", {"reference": 1.0, "stacked": 0.5, "threaded": 0.6}, 1e9, "stacked"),
        ("gru", {"reference": 1.0, "threaded": 0.6}, 90, "threaded"),  # stacking takes long to try
    ],
)
def test_auto_compiles_what_is_the_fastest_compiled(kind, measured, clients, chosen, monkeypatch):
    """By what compiling gains, a factor of 1.6, and for stacked convolutions next to nothing.

    Stacked steps are compiled for chunks of 1, 5, 10 and 25 clients.
    """
    seconds = lambda trainer, task, local: measured[trainer.name]  # noqa: E731
    monkeypatch.setattr("fedtide.training.trainers.select._seconds_per_client", seconds)
    task, local = network_task(kind), LocalTraining(steps=2, batch_size=4)
    trainer, why = choose_trainer("auto", task, local, clients)
    assert trainer.name.startswith(chosen)
    assert why.startswith(f"{trainer.name}: ")
    assert ("compiling pays" in why) == trainer.name.endswith("compiled")


@pytest.mark.parametrize(
    ("kind", "trainer"), [("tokens", "stacked"), ("lstm", "threaded"), ("functions", "stacked")]
)
def test_dropout_within_layers_is_the_same_in_every_trainer(kind, trainer):
    task, local = network_task(f"{kind} with dropout"), LocalTraining(steps=1, batch_size=6)
    plan = MinibatchPlanner(task.population, local, seed=2).plan(EVERYONE)
    found, expected = (
        EVERY[name](task, local).train(Instructions(task.start), plan, 0.05).deltas
        for name in (trainer, "reference")
    )
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9)
    without = network_task(kind)
    plain = ReferenceTrainer(without, local).train(Instructions(task.start), plan, 0.05).deltas
    assert not torch.allclose(plain, expected, atol=1e-3)


@pytest.mark.parametrize("name", CAPTURED)
def test_a_loss_that_is_not_a_single_number_is_refused(name):
    task = network_task("linear")
    task.loss_and_buffers = lambda params, buffers, *batch: (params["bias"].expand(3) ** 2, buffers)
    local = LocalTraining(steps=1, lr=0.1, batch_size=2)
    plan = MinibatchPlanner(task.population, local, seed=2).plan(EVERYONE)
    with pytest.raises(InvalidInputError, match=r"problem: .* shape \(3,\)"):
        EVERY[name](task, local).train(Instructions(task.start), plan, 0.1)
