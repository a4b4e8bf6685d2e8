"""Figures after local fine-tuning, against plain PyTorch."""

import numpy as np
import pytest
import torch
from torch import nn

import fedtide as ft

RNG = np.random.default_rng(3)
OWNERS = np.repeat(["a", "b", "c"], [6, 9, 5])
SHIFTS = {"a": -1.0, "b": 0.5, "c": 3.0}
X = RNG.normal(size=(20, 2))
Y = X @ [1.0, -1.0] + np.array([SHIFTS[name] for name in OWNERS])


def linear():
    return nn.Linear(2, 1)


def run(test=None, **fields):
    rows = {"x": X, "y": Y, "client": OWNERS.tolist()}
    problem = ft.problems.Supervised(
        train=rows, test=test, model=linear, loss="mse", metrics=["mae"]
    )
    return ft.simulate(
        problem=problem,
        participation="full",
        algorithm="fedavg",
        local={"steps": 2, "lr": 0.1} | fields.pop("local", {}),
        rounds=10,
        dtype="float64",
        trainer="reference",
        **fields,
    )


def fine_tuned(model, rows, steps, lr=0.1):
    """Return the network after steps of gradient descent on these rows."""
    net = nn.Linear(2, 1, dtype=torch.float64)
    nn.utils.vector_to_parameters(torch.tensor(model), net.parameters())
    x, y = torch.tensor(X[rows]), torch.tensor(Y[rows])[:, None]
    for _ in range(steps):
        net.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= lr * parameter.grad
    return net


@pytest.mark.parametrize(("steps", "objective"), [(1, "uniform"), (7, [0.0, 1.0, 3.0])])
def test_figures_after_fine_tuning_are_those_of_gradient_descent(steps, objective):
    result = run(evaluation={"personalise": steps}, objective=objective)
    for name, loss, mae in result.clients.select(
        "client", "personalised_loss", "personalised_mae"
    ).iter_rows():
        rows = name == OWNERS
        outputs = fine_tuned(result.model, rows, steps)(torch.tensor(X[rows]))
        errors = outputs[:, 0].detach().numpy() - Y[rows]
        assert loss == pytest.approx((errors**2).mean(), rel=1e-9)
        assert mae == pytest.approx(np.abs(errors).mean(), rel=1e-9)


def test_figures_are_measured_on_the_clients_own_test_parts():
    test = {"x": X[4:8] + 0.1, "y": Y[4:8], "client": OWNERS[4:8].tolist()}
    result = run(test=test, evaluation={"personalise": 3})
    columns = dict(
        zip(result.clients["client"], result.clients["personalised_test_mae"], strict=True)
    )
    for name, own in (("a", slice(4, 6)), ("b", slice(6, 8))):
        outputs = fine_tuned(result.model, name == OWNERS, 3)(torch.tensor(X[own] + 0.1))
        errors = outputs[:, 0].detach().numpy() - Y[own]
        assert columns[name] == pytest.approx(np.abs(errors).mean(), rel=1e-9)
    assert np.isnan(columns["c"])


def test_the_run_itself_is_the_same():
    plain, personalised = run(), run(evaluation={"personalise": 5})
    assert plain.model.tobytes() == personalised.model.tobytes()
    assert plain.metrics.equals(personalised.metrics)
