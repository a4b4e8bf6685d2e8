"""The problems of functions against their formulas."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import make_regression
from torch import nn

import fedtide as ft
from fedtide.population import Population
from fedtide.problems import LowerBound4D, Quadratic, Regression
from fedtide.problems.supervised_evaluation import EvaluatedTask
from fedtide.problems.weighted_objective import weigh_objective
from fedtide.training import LocalTraining
from fedtide.training.minibatches import MinibatchPlanner

CPU = torch.device("cpu")
POINT = st.lists(st.floats(-10, 10), min_size=4, max_size=4)


def gradient(task, x, clients, local=None, rounds=1):
    """Return the gradients of all clients in every step of a round, shape (I, S, d)."""
    feed = MinibatchPlanner(task.population, local or LocalTraining(steps=1), seed=5)
    plan = [feed.plan(np.array(clients)) for _ in range(rounds)][-1]
    found = []
    for batches in task.batches(plan):
        row = []
        for s in range(len(clients)):
            batch = [tensor[s] for tensor in batches]
            y = torch.tensor(x, dtype=torch.float64, requires_grad=True)
            task.loss(task.layout.unflatten(y), *batch).backward()
            row.append(y.grad.numpy())
        found.append(row)
    return np.array(found)


# Paper 002, synthetic


def lower_bound_gradients(x):
    """The authors' gradients: μ = c = λ = 1, H = ζ = 16, L = 2, b = 1/4."""
    x1, x2, x3, x4 = x
    shared = [x1 - 1, 16 * (x2 - 0.25), 4 * (x3 + max(0, x3))]
    return np.array([[*shared, x4 + 16], [*shared, x4 / 2 - 16]])


@given(POINT)
def test_lower_bound_gradients(x):
    task = LowerBound4D(noise=0).prepare(0, CPU, torch.float64)
    assert np.allclose(gradient(task, x, [0, 1])[0], lower_bound_gradients(x), atol=1e-9)


@given(POINT)
def test_lower_bound_objectives(x):
    """The logged one doubles the fourth term of the clients' mean."""
    x1, x2, x3, x4 = x
    shared = (x1 - 1) ** 2 / 2 + 8 * (x2 - 0.25) ** 2 + 2 * (x3**2 + max(0, x3) ** 2)
    at = torch.tensor(x, dtype=torch.float64)
    for logged, fourth in (("consistent", 3 / 8), ("published", 3 / 4)):
        task = LowerBound4D(logged=logged).prepare(0, CPU, torch.float64)
        evaluation = task.evaluate(at)
        assert evaluation.metrics["loss"] == pytest.approx(shared + fourth * x4**2)
        own = [x4**2 / 2 + 16 * x4, x4**2 / 4 - 16 * x4]
        assert evaluation.clients["loss"].tolist() == pytest.approx([shared + o for o in own])


def test_lower_bound_starts_at_one_and_ends_at_zero():
    task = LowerBound4D().prepare(0, CPU, torch.float64)
    assert task.evaluate(task.start).metrics["loss"] == 1.0
    optimum = torch.tensor([1, 0.25, 0, 0], dtype=torch.float64)
    assert task.evaluate(optimum).metrics["loss"] == 0.0


def noises(noise, steps=20_000):
    """Return ξ of both clients in every step: their third gradients at 0, where all else is 0."""
    task = LowerBound4D(noise=noise).prepare(0, CPU, torch.float64)
    plan = MinibatchPlanner(Population(2), LocalTraining(steps=steps), seed=1).plan(
        np.array([0, 1])
    )
    batch = [torch.stack(part) for part in zip(*task.batches(plan), strict=True)]
    dims = (None, *[0] * len(batch))
    stacked = torch.func.vmap(torch.func.vmap(torch.func.grad(task.loss), dims), dims)
    return stacked(task.layout.unflatten(task.start), *batch)["x"][..., 2].numpy()


def test_lower_bound_noise_is_normal():
    """Moments of 40,000 draws, each within five standard errors: P(fail) < 1e-5 in all."""
    xi = noises(2.0).flatten() / 2
    count = len(xi)
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((xi**power).mean() - moment) < 5 * (variance / count) ** 0.5


def test_lower_bound_noise_is_independent_over_steps_and_clients():
    """Correlations of 20,000 pairs lie within five standard errors."""
    xi = noises(1.0)
    pairs = [(xi[:, 0], xi[:, 1]), (xi[1:, 0], xi[:-1, 0]), (xi[1:, 1], xi[:-1, 0])]
    for one, other in pairs:
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / len(one) ** 0.5
    assert len(np.unique(xi)) == xi.size


def test_lower_bound_noise_enters_the_third_coordinate_alone():
    exact = LowerBound4D(noise=0).prepare(0, CPU, torch.float64)
    noisy = LowerBound4D(noise=3).prepare(0, CPU, torch.float64)
    x, local = [1.0, 2.0, -1.0, 0.5], LocalTraining(steps=4)
    difference = gradient(noisy, x, [0, 1], local) - gradient(exact, x, [0, 1], local)
    assert np.abs(difference[..., [0, 1, 3]]).max() == 0
    assert np.abs(difference[..., 2]).min() > 0
    assert np.all(noises(0) == 0)


# Paper 004, regression


def test_regression_is_that_of_scikit_learn():
    task = Regression(clients=4, samples=42, features=5, informative=3, noise=0.2).prepare(
        7, CPU, torch.float64
    )
    features, targets = make_regression(42, 5, n_informative=3, noise=0.2, random_state=7)
    features = (features - features.mean(0)) / features.std(0)
    rows = {tuple(row): y for row, y in zip(features.round(9).tolist(), targets, strict=True)}
    assert task.population.samples.tolist() == [10] * 4
    plan = MinibatchPlanner(task.population, LocalTraining(steps=1), seed=0).plan(np.arange(4))
    x, y = (tensor.numpy() for tensor in next(iter(task.batches(plan))))
    dealt = [tuple(row) for row in x.reshape(-1, 5).round(9).tolist()]
    assert len(set(dealt)) == 40  # everybody's own, two left out
    assert [rows[row] for row in dealt] == pytest.approx(y.flatten().tolist())
    assert dealt != list(rows)[:40]  # dealt out at random
    w = np.array([1.0, -2.0, 0.5, 3.0, 0.0])
    for n in range(4):
        own, target = x[n], y[n]
        expected = own.T @ (own @ w - target) / 10
        assert np.allclose(gradient(task, w, [n])[0, 0], expected, rtol=1e-12)
    errors = (x @ w - y) ** 2
    evaluation = task.evaluate(torch.from_numpy(w))
    assert evaluation.metrics["mse"] == pytest.approx(errors.mean())
    assert evaluation.metrics["loss"] == pytest.approx(errors.mean() / 2)
    assert evaluation.clients["loss"].tolist() == pytest.approx((errors.mean(1) / 2).tolist())


def test_regression_minibatches_are_the_clients_own():
    task = Regression(clients=3, samples=30, features=2, informative=1).prepare(
        0, CPU, torch.float64
    )
    everything = MinibatchPlanner(task.population, LocalTraining(steps=1), seed=0).plan(
        np.arange(3)
    )
    own = [set(map(tuple, client.tolist())) for client in next(iter(task.batches(everything)))[0]]
    plan = MinibatchPlanner(task.population, LocalTraining(steps=4, batch_size=3), seed=0).plan(
        np.array([0, 2])
    )
    x = torch.stack([batch[0] for batch in task.batches(plan)])
    assert x.shape == (4, 2, 3, 2)
    for s, client in enumerate((0, 2)):
        assert set(map(tuple, x[:, s].reshape(-1, 2).tolist())) <= own[client]


def test_seeds_give_other_data():
    tasks = [Regression(samples=200).prepare(seed, CPU, torch.float64) for seed in (0, 1, 0, 2**40)]
    losses = [task.evaluate(task.start).metrics["loss"] for task in tasks]
    assert losses[0] == losses[2]
    assert len(set(losses)) == 3


# Weighted objectives


def test_a_weighted_task_has_weighted_gradients_and_loss():
    rng = np.random.default_rng(0)
    problem = Quadratic(
        matrices=[np.eye(2) * (n + 1) for n in range(3)], centers=rng.normal(size=(3, 2))
    )
    task = problem.prepare(0, CPU, torch.float64)
    weights = np.array([1.0, 0.0, 3.0])
    weighed = weigh_objective(task, weights.tolist())
    x = [0.3, -0.7]
    factors = 3 * weights / 4
    expected = factors[:, None] * gradient(task, x, [0, 1, 2])[0]
    assert np.allclose(gradient(weighed, x, [0, 1, 2])[0], expected, rtol=1e-12)
    at = torch.tensor(x, dtype=torch.float64)
    losses = task.evaluate(at).clients["loss"]
    assert weighed.evaluate(at).metrics["loss"] == pytest.approx(weights @ losses / 4)
    assert np.array_equal(weighed.evaluate(at).clients["loss"], losses)
    assert weigh_objective(task, "uniform") is task


def test_an_objective_does_not_depend_on_the_size_of_its_weights():
    """The sum of three weights of 2¹⁰²³ is not finite."""
    problem = Quadratic(matrices=[np.eye(2)] * 4, centers=[[n, 1.0] for n in range(4)])
    task = problem.prepare(0, CPU, torch.float64)
    weights = np.array([1.0, 1.0, 0.5, 0.0])
    small, large = (weigh_objective(task, w.tolist()) for w in (weights, 2.0**1023 * weights))
    assert np.array_equal(*(gradient(one, [0.3, 0.7], [0, 1, 2, 3])[0] for one in (small, large)))
    at = torch.zeros(2, dtype=torch.float64)
    assert small.evaluate(at).metrics["loss"] == large.evaluate(at).metrics["loss"] > 0


SAMPLES = {"x": np.arange(6.0)[:, None], "y": np.arange(6.0), "client": [0, 0, 0, 0, 1, 1]}


SAMPLES_TO_TEST = {"x": np.arange(9.0)[:, None], "y": np.arange(9) % 2}


def supervised(**fields):
    problem = ft.problems.Supervised(SAMPLES, model=nn.Linear(1, 1), loss="mse", **fields)
    return problem.prepare(0, CPU, torch.float64)


@pytest.mark.parametrize("objective", ["samples", [0.2, 0.8]])
def test_clients_are_not_evaluated_in_vain(objective):
    """Whether they were depended on the objective; with millions of clients they must not be."""
    weighed = weigh_objective(supervised(), objective)
    found = weighed.evaluate(weighed.start, clients=False)
    assert not found.clients
    assert found.metrics["loss"] == found.metrics["train_loss"]


def test_pooled_data_minimise_the_objective_in_which_samples_count_alike():
    task = supervised()
    pooled = weigh_objective(task, "samples").pooled()
    at = task.start
    found = pooled.evaluate(at).metrics["loss"]
    assert found == pytest.approx(weigh_objective(task, "samples").evaluate(at).metrics["loss"])
    with pytest.raises(ft.InvalidInputError, match=r"^objective: .*; give 'samples', or choose"):
        weigh_objective(task, [0.2, 0.8]).pooled()
    fields = {"participation": "full", "algorithm": "central-sgd", "rounds": 3}
    problem = ft.problems.Supervised(SAMPLES, model=nn.Linear(1, 1), loss="mse")
    local = {"steps": 1, "lr": 0.1}
    runs = [
        ft.simulate(**fields, problem=problem, local=local, trainer="reference", objective=one)
        for one in ("uniform", "samples")
    ]
    np.testing.assert_array_equal(runs[0].model, runs[1].model)


@pytest.mark.parametrize("buffers", ["local", "average"])
def test_a_common_test_set_is_not_evaluated_for_each_client(buffers, monkeypatch):
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))
    rows = SAMPLES | {"y": np.arange(6) % 2}
    task = ft.problems.Supervised(rows, test=SAMPLES_TO_TEST, model=model, buffers=buffers).prepare(
        0, CPU, torch.float64
    )
    seen = []
    measure = EvaluatedTask._measure

    def count(self, x, samples, *rest):
        seen.append(len(samples))
        return measure(self, x, samples, *rest)

    monkeypatch.setattr(EvaluatedTask, "_measure", count)
    found = task.evaluate(task.start, buffers=task.start_buffers.expand(2, -1))
    task.evaluate_clients(task.start.expand(2, -1), np.arange(2))
    assert seen.count(len(SAMPLES_TO_TEST["y"])) == 1
    assert "class_weighted_test_accuracy" not in found.clients


@pytest.mark.parametrize(
    ("objective", "sentence"),
    [
        ([1, 2], "objective: 2 weights for 3 clients"),
        ([1, 2, -1], "objective: weights must be"),
        ([0, 0, 0], "objective: weights must be"),
        ([1, 2, float("nan")], "objective: weights must be"),
        ("samples", "objective: 'samples' needs clients that hold samples"),
    ],
)
def test_bad_objectives(objective, sentence):
    task = Quadratic(matrices=[np.eye(2)] * 3, centers=np.zeros((3, 2))).prepare(
        0, CPU, torch.float64
    )
    with pytest.raises(ft.InvalidInputError, match=f"^{sentence}"):
        weigh_objective(task, objective)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Quadratic(matrices=[], centers=[]), "centers: "),
        (
            lambda: Quadratic(matrices=[[[1]]], centers=[[0, 0]]),
            "matrices: shape (1, 1, 1) is not (1, 2, 2)",
        ),
        (
            lambda: Quadratic(matrices=[[1], [[2]]], centers=[[0]]),
            "matrices: not an array of numbers",
        ),
        (lambda: Quadratic(matrices=[[["a"]]], centers=[[0]]), "matrices: not an array of numbers"),
        (
            lambda: Quadratic(matrices=[[[float("nan")]]], centers=[[0]]),
            "matrices: nan is not finite",
        ),
        (
            lambda: Quadratic(matrices=[[[1]]], centers=[[0]], start=[0, 0]),
            "start: shape (2,) is not (1,)",
        ),
        (lambda: LowerBound4D(noise=-1), "noise: -1 is not a number of at least 0"),
        (
            lambda: LowerBound4D(logged="publised"),
            "logged: unknown 'publised'; did you mean 'published'?",
        ),
        (lambda: Regression(samples=1, clients=1), "samples: 1 is not a number of at least 2"),
        (lambda: Regression(informative=300), "informative: 300 of 200 features"),
        (lambda: Regression(noise=float("inf")), "noise: inf is not a finite number of at least 0"),
    ],
)
def test_bad_problems(make, sentence):
    with pytest.raises(ft.InvalidInputError) as error:
        make()
    assert str(error.value).startswith(sentence)
