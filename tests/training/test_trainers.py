"""Trainers: the reference against literal local steps, the others against the reference."""

import sys

import numpy as np
import pytest
import torch

from fedtide.algorithms import Instructions
from fedtide.problems import (
    MODELS,
    Classification,
    Iid,
    LowerBound4D,
    Quadratic,
    Regression,
    Supervised,
)
from fedtide.problems.datasets.catalogue import load
from fedtide.problems.weighted_objective import weigh_objective
from fedtide.training import Ball, Box, LocalTraining
from fedtide.training.devices import can_compile
from fedtide.training.minibatches import MinibatchPlanner
from fedtide.training.trainers import stacked
from fedtide.training.trainers.block_runner import BlockRunner
from fedtide.training.trainers.reference import ReferenceTrainer
from fedtide.training.trainers.select import (
    choose_trainer,
)
from fedtide.training.trainers.stacked import StackedTrainer
from fedtide.training.trainers.threaded import ThreadedTrainer

CPU = torch.device("cpu")

TRAINERS = {
    "stacked": StackedTrainer,
    "compiled": lambda task, local: StackedTrainer(task, local, compiled=True),
    "threaded": ThreadedTrainer,
    "threaded-compiled": lambda task, local: ThreadedTrainer(task, local, compiled=True),
}
"""Every trainer that is held to the reference: a new one is one line here."""

HAS_COMPILER = can_compile(torch.zeros(0))
COMPILING = [
    pytest.mark.compile,
    pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler"),
]
ALL = [
    pytest.param(name, marks=COMPILING if name.endswith("compiled") else []) for name in TRAINERS
]
CAPTURED = [name for name in TRAINERS if not name.endswith("compiled")]
"""Compiling starts from the captured graph, so a few cases of it, which are slow, are enough."""

THREADED_LATER = ["stacked", pytest.param("threaded", marks=pytest.mark.compile)]
"""The threaded trainer captures the same blocks for one client; fast tests have it on networks of
all kinds, but not with every setting."""

NETWORKS = {network: name for name, network in MODELS.items()}.values()
"""A name for each different network: some models differ in the number of classes only."""

LARGE = set(NETWORKS) - {"logistic", "mlp", "cnn-003-cifar10"}

OPTIONS = {
    "momentum": {"momentum": 0.9, "steps": 3},
    "everything": {"momentum": 0.5, "weight_decay": 0.1, "projection": Ball(radius=2.0)},
    "box": {"projection": Box(low=-0.3, high=0.2)},
    "full batches": {"batch_size": None},
    "large batches": {"batch_size": 1000},
    "epochs": {"steps": None, "epochs": 1},
    "epochs with momentum": {"steps": None, "epochs": 2, "batch_size": 16, "momentum": 0.9},
    "epochs of full batches": {"steps": None, "epochs": 3, "batch_size": None},
}


def local_training(**options):
    return LocalTraining(**({"steps": 2, "lr": 0.05, "batch_size": 8} | options))


def nearby(task, seed=5):
    """Return a model that is not the initial one."""
    draw = torch.Generator().manual_seed(seed)
    return task.start + 0.1 * torch.randn(task.layout.size, generator=draw, dtype=torch.float64)


def corrections(task, clients, seed=6):
    draw = torch.Generator().manual_seed(seed)
    size = (clients, task.layout.size)
    return 0.1 * torch.randn(*size, generator=draw, dtype=torch.float64)


def trained(
    trainer,
    task,
    local,
    clients,
    correction=False,
    rounds=2,
    full_batch=False,
    weights=None,
    **shared,
):
    """Return the updates of a few rounds, (rounds, S, d), or their sums, (rounds, d).

    The first round captures the steps.
    """
    planner = MinibatchPlanner(task.population, local, seed=4)
    added = corrections(task, len(clients)) if correction else None
    return torch.stack(
        [
            trainer.train(
                Instructions(nearby(task, seed=t), added, full_batch=full_batch, **shared),
                planner.plan(np.asarray(clients), full_batch),
                0.05,
                weights=weights,
            ).deltas
            for t in range(rounds)
        ]
    )


def assert_equal_updates(name, task, local, clients, **how):
    reference, trainer = ReferenceTrainer(task, local), TRAINERS[name](task, local)
    expected = trained(reference, task, local, clients, **how)
    found = trained(trainer, task, local, clients, **how)
    assert expected.isfinite().all()
    assert expected.abs().amax() > 1e-4
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9)
    weights = torch.linspace(1, -2, len(clients), dtype=torch.float64)
    total = trained(trainer, task, local, clients, weights=weights, **how)
    assert torch.allclose(total, weights @ expected, rtol=1e-9, atol=1e-8)


# The reference against the definition, on quadratics, with NumPy.


def quadratic(clients=4, d=3, seed=0):
    draw = np.random.default_rng(seed)
    root = draw.normal(size=(clients, d, d))
    problem = Quadratic(
        matrices=root @ root.transpose(0, 2, 1) / d, centers=draw.normal(size=(clients, d))
    )
    return problem, problem.prepare(0, CPU, torch.float64)


@pytest.mark.parametrize(
    ("gradients_at_start", "mu", "correction", "momentum", "radius"),
    [
        (False, 0.0, False, 0.0, None),
        (False, 0.7, True, 0.9, None),
        (False, 0.7, False, 0.9, 0.4),
        (True, 0.7, True, 0.0, 0.4),
        (True, 0.0, True, 0.9, 0.4),
    ],
)
def test_the_reference_is_the_definition(gradients_at_start, mu, correction, momentum, radius):
    problem, task = quadratic()
    ball = None if radius is None else Ball(radius=radius, center=[0.1, 0.0, -0.1])
    local = LocalTraining(steps=4, lr=1.0, momentum=momentum, weight_decay=0.2, projection=ball)
    x = np.array([0.3, -0.2, 0.1])
    correction = corrections(task, 4).numpy() if correction else np.zeros((4, 3))
    expected = []
    for n in range(4):
        y, m = x, np.zeros(3)
        for _ in range(4):
            at = x if gradients_at_start else y
            gradient = problem.matrices[n] @ (at - problem.centers[n])
            m = momentum * m + gradient + 0.2 * y + correction[n] + mu * (y - x)
            y = y - 0.11 * m
            if radius is not None:
                offset = y - [0.1, 0.0, -0.1]
                y = y - offset + offset * min(1, radius / np.linalg.norm(offset))
        expected.append(y - x)
    plan = MinibatchPlanner(task.population, local, seed=0).plan(np.arange(4))
    added = torch.from_numpy(correction) if correction is not None else None
    instructions = Instructions(
        torch.from_numpy(x), added, mu=mu, gradients_at_start=gradients_at_start
    )
    updates = ReferenceTrainer(task, local).train(instructions, plan, 0.11).deltas
    assert np.allclose(updates.numpy(), expected, rtol=1e-12, atol=1e-12)


# The others against the reference.


@pytest.mark.parametrize("name", CAPTURED)
@pytest.mark.parametrize(
    "model", [pytest.param(m, marks=[pytest.mark.compile] * (m in LARGE)) for m in NETWORKS]
)
def test_every_model(name, model, image_task):
    task = image_task(model)
    local = local_training(momentum=0.5, weight_decay=0.01)
    assert_equal_updates(name, task, local, [2, 5], correction=True, mu=0.5, rounds=1)


def flattening_by_view():
    """Return a network that needs images in the plain order, as many do."""

    class Network(torch.nn.Sequential):
        def forward(self, x):
            return self[2](self[1](self[0](x)).view(len(x), -1))

    layers = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Linear(1024, 3)
    return Network(*layers)


@pytest.mark.parametrize("name", CAPTURED)
def test_a_network_that_needs_the_plain_order_of_images(name, image_task, monkeypatch):
    monkeypatch.setitem(sys.modules, "own_networks", sys.modules[__name__])
    task = image_task({"type": "imported", "path": "own_networks:flattening_by_view"})
    assert_equal_updates(name, task, local_training(), [1, 4])
    assert 0 <= task.evaluate(task.start).metrics["test_accuracy"] <= 1


@pytest.mark.parametrize("name", [*THREADED_LATER, ALL[1]])  # compiling twice takes long
def test_dropout_without_minibatches_and_augmentation(name, image_task):
    model = {"type": "cnn", "channels": [4], "hidden": [6], "dropout": 0.5}
    task = image_task(model, augment=["pad-crop", "flip"])
    compiled = name.endswith("compiled")  # which takes long: one step of one client
    local, clients = local_training(steps=1 if compiled else 2), [2] if compiled else [1, 2]
    assert_equal_updates(name, task, local, clients, rounds=1)
    if name in CAPTURED and not compiled:
        full = local_training(batch_size=None)
        assert_equal_updates(name, task, full, [1, 2], rounds=1)


@pytest.mark.parametrize("name", THREADED_LATER)
def test_changes_of_colours(name, image_task):
    names = ["sharpen", "jitter", "posterize", "equalize", "pad-crop"]
    task = image_task({"type": "cnn", "channels": [4], "hidden": [6]}, augment=names)
    assert_equal_updates(name, task, local_training(), [1, 2], rounds=1)


@pytest.mark.parametrize("name", THREADED_LATER)
@pytest.mark.parametrize("options", OPTIONS)
def test_every_option(name, options, digits_task):
    local = local_training(**OPTIONS[options])
    assert_equal_updates(name, digits_task, local, [3, 8, 21], correction=True)


@pytest.mark.parametrize("name", THREADED_LATER)
@pytest.mark.parametrize(
    "shared",
    [
        {"gradients_at_start": True},
        {"mu": 0.8},
        {"mu": 0.8, "gradients_at_start": True},
        {"full_batch": True},
    ],
    ids=str,
)
def test_every_instruction(name, shared, digits_task):
    local = local_training(momentum=0.5)
    assert_equal_updates(name, digits_task, local, [0, 1, 2, 30], correction=True, **shared)


@pytest.mark.parametrize("name", ALL)
def test_every_cohort_size(name):
    """A cohort is cut into chunks, and those are padded: nobody must be lost or mixed up."""
    task = quadratic(clients=40)[1]
    for size in [1, 8, 9, 33] if name == "compiled" else [1, 2, 4, 5, 6, 9, 10, 11, 24, 25, 26, 40]:
        assert_equal_updates(
            name, task, LocalTraining(steps=1), range(size), correction=True, rounds=1
        )


@pytest.mark.parametrize("name", THREADED_LATER)
@pytest.mark.parametrize("problem", ["quadratic", "noise", "regression", "weighted"])
def test_problems_of_functions(name, problem):
    if problem == "quadratic":
        task, clients = quadratic()[1], [0, 1, 3]
    elif problem == "noise":
        task, clients = LowerBound4D().prepare(0, CPU, torch.float64), [0, 1]
    else:
        regression = Regression(clients=5, samples=50, features=7, informative=3)
        task, clients = regression.prepare(0, CPU, torch.float64), [0, 2, 4]
    if problem == "weighted":
        task = weigh_objective(task, [1, 2, 3, 4, 5])
    local = LocalTraining(
        steps=3, lr=0.05, batch_size=4 if task.population.samples is not None else None
    )
    assert_equal_updates(name, task, local, clients, correction=True)


def test_captured_blocks_of_different_settings_are_kept_apart():
    """Runs on one task share captured blocks, but never those of other settings."""
    task = quadratic()[1]
    settings = [{}, {"momentum": 0.9}, {"momentum": 0.5}, {"weight_decay": 0.3}]
    settings += [{"projection": Ball(radius=radius)} for radius in (0.1, 0.5)]
    settings += [{"projection": Ball(radius=0.1, center=[c, 0, 0])} for c in (0.2, 0.3)]
    settings += [{"projection": Box(low=-0.1, high=high)} for high in (0.1, 0.2)]
    # The second step is the first one that momentum and projections change for certain.
    for options in settings:
        local = LocalTraining(steps=2, **options)
        assert_equal_updates("stacked", task, local, [1, 3], rounds=1)
    assert_equal_updates("stacked", task, local, [1, 3], correction=True, rounds=1)


@pytest.mark.parametrize(
    ("name", "clients"), [("reference", [4]), ("stacked", [1, 2, 3]), ("threaded", [4])]
)
def test_a_trainer_leaves_its_arguments_alone(name, clients, digits_task):
    local = local_training(momentum=0.9)
    trainer, _ = choose_trainer(name, digits_task, local, clients=1)
    start, added = nearby(digits_task), corrections(digits_task, len(clients))
    before = start.clone(), added.clone()
    plan = MinibatchPlanner(digits_task.population, local, seed=1).plan(np.array(clients))
    once = trainer.train(Instructions(start, added), plan, 0.1).deltas
    assert torch.equal(start, before[0])
    assert torch.equal(added, before[1])
    assert torch.equal(trainer.train(Instructions(start, added), plan, 0.1).deltas, once)


@pytest.mark.parametrize("name", ["reference", "stacked", "compiled"])
def test_a_trainer_asked_for_by_name_is_given(name, digits_task):
    trainer, why = choose_trainer(name, digits_task, local_training(), clients=1)
    assert trainer.name == name
    assert why.startswith(name)


def test_auto_takes_another_trainer_where_stacking_fails(digits_task, monkeypatch):
    def fail(*_):
        raise RuntimeError("no batching rule for this operation")

    monkeypatch.setattr(StackedTrainer, "train", fail)
    trainer, why = choose_trainer("auto", digits_task, local_training(), clients=10)
    assert trainer.name in ("reference", "threaded")
    assert why.startswith(trainer.name)
    assert "no batching rule" in why


@pytest.mark.parametrize("name", ["compiled", "threaded-compiled"])
def test_without_a_compiler_nothing_is_compiled(name, digits_task, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    trainer, why = choose_trainer(name, digits_task, local_training(), clients=1)
    assert trainer.name == {"compiled": "stacked", "threaded-compiled": "threaded"}[name]
    assert "compiler" in why


@pytest.mark.compile
@pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler")
def test_a_varying_cohort_compiles_no_more_than_there_are_chunk_sizes(monkeypatch):
    task = Classification("digits", Iid(), clients=80).prepare(2, CPU, torch.float32)
    local = LocalTraining(steps=2, lr=0.05, batch_size=4)
    compile, compiled = torch._inductor.compile, []

    def counted(graph, *rest):
        compiled.append(graph)
        return compile(graph, *rest) if len(compiled) == 1 else graph  # one shows how it goes

    monkeypatch.setattr("torch._inductor.compile", counted)
    trainer, planner = (
        StackedTrainer(task, local, compiled=True),
        MinibatchPlanner(task.population, local, 0),
    )
    draw = np.random.default_rng(3)
    for size in [41, *draw.integers(1, 80, size=60)]:  # 41 = 25 + 10 + 5 + 1
        cohort = np.sort(draw.choice(80, size, replace=False))
        updates = trainer.train(Instructions(task.start), planner.plan(cohort), 0.05).deltas
        assert updates.shape == (size, task.layout.size)
    assert len(compiled) == 4
    assert torch._dynamo.utils.counters["frames"]["total"] == 0  # nothing is compiled elsewhere


@pytest.mark.compile
@pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler")
@pytest.mark.parametrize("scale", [1, 2], ids=["first", "cached"])
def test_compiled_chunks_of_two_threaded_cores(scale):
    """The second task finds the first one's block in the cache, and must use its own pixels."""
    digits = load("digits").train
    table = {"x": scale * digits.features, "y": digits.labels}
    problem = Supervised(table, clients=80, partition=Iid())
    task = problem.prepare(2, CPU, torch.float64)
    local, cohort = local_training(), range(3, 13)
    assert torch.get_num_threads() == 2
    assert_equal_updates("compiled", task, local, cohort)
    again = [
        trained(StackedTrainer(task, local, compiled=True), task, local, cohort) for _ in range(2)
    ]
    assert torch.equal(*again)


@pytest.mark.compile
@pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler")
def test_rounds_of_several_compiled_blocks_of_the_same_length(monkeypatch):
    """The first block's models are views of a flat tensor; those of the second have memory of their
    own, with other strides."""
    monkeypatch.setattr(stacked, "_BLOCK_STEPS", 2)  # eight take minutes to compile
    digits = load("digits").train
    table = {"x": digits.features[:120], "y": digits.labels[:120]}
    task = Supervised(table, clients=6, partition=Iid()).prepare(2, CPU, torch.float64)
    local = LocalTraining(steps=4, lr=0.05, batch_size=4)
    assert_equal_updates("compiled", task, local, range(6))


UNEVEN = [150, 1, 2, 1, 9, 40, 3, 1, 70, 5, 2, 4, 1, 30, 6]
"""Samples of clients, most of which have few, as in data of real users."""


def uneven_task(sizes=UNEVEN):
    draw, owners = np.random.default_rng(0), np.repeat(np.arange(len(sizes)), sizes)
    inputs, target = draw.normal(size=(len(owners), 3)), draw.integers(0, 4, len(owners))
    problem = Supervised(
        {"x": inputs, "y": target, "who": owners},
        inputs="x",
        target="y",
        clients="who",
        model="mlp",
    )
    return problem.prepare(seed=0, device=CPU, dtype=torch.float64)


@pytest.mark.parametrize("name", ["stacked", pytest.param("compiled", marks=COMPILING)])
def test_clients_of_very_different_sizes_in_epochs(name, monkeypatch):
    """In chunks that shrink; where clients end is the literal number of their steps."""
    local = LocalTraining(epochs=1, batch_size=2, lr=0.05, momentum=0.5)
    clients = [3, 0, 5, 6, 9, 1, 14, 13, 2, 8, 4, 7]
    if name == "compiled":  # every size of a chunk takes long, and eight steps longer than two
        monkeypatch.setattr(stacked, "_BLOCK_STEPS", 2)
        clients = clients[:5]
    assert_equal_updates(name, uneven_task(), local, clients, correction=True)


@pytest.mark.parametrize("clients", [1, 2, 40], ids=str)
def test_a_client_with_many_samples_does_not_pad_the_full_batches_of_others(monkeypatch, clients):
    """And no block is captured twice for one shape, whatever the strides of a single row."""
    sizes = [700] + [3] * 20 + [40] * 19
    task, local = uneven_task(sizes), LocalTraining(steps=3, lr=0.05)
    used, captured = [], []
    prepare, capture = BlockRunner._prepare_block, BlockRunner._capture

    def count(runner, steps, part):
        used.append(steps.inputs.batch_inputs[0][0].numel())
        return prepare(runner, steps, part)

    def record(runner, key, inputs, steps, at_start):
        captured.append((steps, *(tensor.shape for tensor in inputs.flat)))
        return capture(runner, key, inputs, steps, at_start)

    monkeypatch.setattr(BlockRunner, "_prepare_block", count)
    monkeypatch.setattr(BlockRunner, "_capture", record)
    monkeypatch.setattr(
        "fedtide.training.trainers.stacked._OVERHEAD", 0
    )  # as for models of millions of parameters
    trainer = StackedTrainer(task, local)
    trained(trainer, task, local, np.arange(clients), rounds=1)
    needed = sum(max(size, 32) for size in sizes[:clients])
    assert needed <= sum(used) < 2 * needed
    trained(trainer, task, local, np.arange(clients)[::-1], rounds=2)
    assert len(captured) == len(set(captured))
