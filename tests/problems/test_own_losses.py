"""Losses and metrics of the user's: what they hold, what they keep, and what they return."""

from threading import Lock

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedtide as ft
from fedtide.problems.loss_checks import adapt_loss

COUNT = 12
RNG = np.random.default_rng(0)
ROWS = {
    "x": RNG.normal(size=(COUNT, 4)),
    "y": RNG.normal(size=(COUNT, 2)),
    "kind": RNG.integers(0, 3, COUNT),
    "client": np.repeat([0, 1, 2], [3, 4, 5]),
}


def prepare(loss, target="y", outputs=2, dtype=torch.float64, **fields):
    torch.manual_seed(0)
    given = {"target": target, "loss": loss, "model": nn.Linear(4, outputs)} | fields
    return ft.problems.Supervised(ROWS, **given).prepare(0, torch.device("cpu"), dtype)


def test_only_a_loss_with_tensors_needs_to_be_copied():
    class Locked(nn.Module):
        def __init__(self, *weights):
            super().__init__()
            self.lock = Lock()
            for weight in weights:
                self.register_buffer("weight", weight)

        def forward(self, outputs, target):
            return (outputs - target).square().mean(dim=1)

    cpu = torch.device("cpu")
    loss = Locked()
    assert adapt_loss(loss, cpu, torch.float32) is loss
    with pytest.raises(ft.InvalidInputError, match=r"^loss: it cannot be copied .*lock"):
        adapt_loss(Locked(torch.ones(2)), cpu, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("given", [torch.float32, torch.float64])
def test_class_weights_of_a_loss_have_the_dtype_of_the_run(dtype, given):
    weight = torch.tensor([1.0, 2.0, 4.0], dtype=given)
    loss = nn.CrossEntropyLoss(weight, reduction="none")
    task = prepare(loss, "kind", 3, dtype)
    logits = task.module(task.start).double()(torch.tensor(ROWS["x"]))
    kinds = torch.tensor(ROWS["kind"])
    each = functional.cross_entropy(logits, kinds, weight.double(), reduction="none")
    expected = [float(part.mean()) for part in each.detach().split([3, 4, 5])]
    np.testing.assert_allclose(task.evaluate(task.start).clients["loss"], expected, rtol=1e-5)
    assert loss.weight.dtype == given  # the user's own stays as it is


def test_a_mean_over_the_minibatch_is_no_number_per_sample():
    # with as many outputs as samples in the first trial
    with pytest.raises(ft.InvalidInputError, match=r"^loss: .*shape \(2,\); it must give one"):
        prepare(lambda outputs, target: (outputs - target).square().mean(0))
    gap = ft.problems.Metric(lambda z, y: (z - y).abs().mean(0), lower_is_better=True)
    with pytest.raises(ft.InvalidInputError, match=r"^metrics.gap: .*\(2,\); it must give one"):
        prepare("mse", metrics={"gap": gap})


class LossInside(nn.Module):
    """Computes the mean loss of the minibatch itself, as networks that take labels do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x, labels):
        return functional.mse_loss(self.layer(x), labels)


def test_a_network_that_returns_the_loss_of_the_minibatch_is_measured_client_by_client():
    task = prepare(
        lambda outputs, target: outputs.expand(len(target)),
        model=LossInside(),
        inputs={"x": "x", "labels": "y"},
        metrics={},
    )
    network = task.module(task.start)
    rows = [torch.tensor(ROWS[name]).split([3, 4, 5]) for name in ("x", "y")]
    expected = [network(*part).item() for part in zip(*rows, strict=True)]
    np.testing.assert_allclose(task.evaluate(task.start).clients["loss"], expected)


class Annealed:
    """A weight that grows with every call, as in variational autoencoders."""

    def __init__(self):
        self.calls = 0

    def __call__(self, outputs, target):
        self.calls += 1
        squares = (outputs - target).square().mean(1)
        return squares + min(1.0, self.calls / 1000) * outputs.square().mean(1)


class Scheduled(nn.Module):
    """A loss that changes later."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, outputs, target):
        self.calls += 1
        return (outputs - target).square().mean(1) * (1.0 if self.calls < 1000 else 0.5)


class Centred(nn.Module):
    """A loss with a running mean of outputs, which only training changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(2))

    def forward(self, outputs, target):
        if torch.is_grad_enabled():
            self.centre.mul_(0.9).add_(outputs.detach().mean(0), alpha=0.1)
        return (outputs - target - self.centre).square().mean(1)


@pytest.mark.parametrize("kind", [Annealed, Scheduled, Centred])
def test_a_loss_that_keeps_something_from_call_to_call_is_refused(kind):
    with pytest.raises(ft.InvalidInputError, match=r"^loss: it keeps a count or a mean .*; comp"):
        prepare(kind())


def test_a_loss_that_reads_parameters_of_a_network_is_refused():
    network = nn.Linear(4, 2)

    def sparse(outputs, target):
        return (outputs - target).square().mean(1) + network.weight.abs().sum()

    with pytest.raises(ft.InvalidInputError, match=r"^loss: it depends on a parameter .*; compute"):
        prepare(sparse, model=network)
    network.requires_grad_(False)  # a constant, as a network that compares images
    prepare(sparse)
