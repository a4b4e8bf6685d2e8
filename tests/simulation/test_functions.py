"""The problems of functions against their formulas."""

from functools import partial

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


SAMPLES = {"x": np.arange(6.0)[:, None], "y": np.arange(6.0), "client": [0, 0, 0, 0, 1, 1]}


def supervised(**fields):
    problem = ft.problems.Supervised(SAMPLES, model=nn.Linear(1, 1), loss="mse", **fields)
    return problem.prepare(0, CPU, torch.float64)


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


QUADRATIC = Quadratic(matrices=[np.eye(2)] * 3, centers=np.zeros((3, 2)))


@pytest.mark.parametrize(
    ("field", "make"),
    [
        *[
            ("objective", partial(weigh_objective, QUADRATIC.prepare(0, CPU, torch.float64), given))
            for given in ([1, 2], [1, 2, -1], [0, 0, 0], "samples")
        ],
        ("centers", partial(Quadratic, matrices=[], centers=[])),
        ("matrices", partial(Quadratic, matrices=[[[1]]], centers=[[0, 0]])),
        ("matrices", partial(Quadratic, matrices=[[[float("nan")]]], centers=[[0]])),
        ("start", partial(Quadratic, matrices=[[[1]]], centers=[[0]], start=[0, 0])),
        ("noise", partial(LowerBound4D, noise=-1)),
        ("informative", partial(Regression, informative=300)),
    ],
)
def test_bad_problems_and_objectives(field, make):
    with pytest.raises(ft.InvalidInputError, match=f"^{field}: "):
        make()
