"""Losses and metrics of the user's: class weights in a run, and what the check finds."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedtide as ft
from fedtide.problems.losses import LOSSES
from fedtide.testing import check_loss

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


class WeightedError(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, outputs, target):
        return self.weight * (outputs - target).square().mean(1)


def in_batch(outputs, target):
    """A contrastive loss: each sample is told from the others of the minibatch."""
    return -torch.log_softmax(outputs @ outputs.T, 1).diagonal() + 0 * target.sum(1)


def changes_target(outputs, target):
    target -= outputs.detach()
    return target.square().mean(1) + 0 * outputs.sum(1)


KEEPS = "the loss keeps .* from call to call"
WRONG = {
    "count": (Annealed(), KEEPS),
    "count-of-later-use": (Scheduled(), KEEPS),
    "running-mean": (Centred(), KEEPS),
    "mean-of-the-minibatch": (lambda z, y: (z - y).square().mean(), "one number per sample"),
    "each-target": (nn.MSELoss(reduction="none"), r"mean over .*values.flatten\(1\).mean\(1\)"),
    "fails": (lambda z, y: z @ z, "loss: it fails on outputs of shape"),
    "noise": (lambda z, y: functional.dropout((z - y).square().mean(1)), "global random generator"),
    "detached": (lambda z, y: (z.detach() - y).square().mean(1), "loss: it has no gradient"),
    "parameter": (WeightedError(), "depends on a parameter of shape"),
    "contrast": (in_batch, "depends on the other samples: compute it from each sample alone"),
    "infinite": (lambda z, y: (z - y).abs().mean(1) / 0, "is not finite"),
    "changed-target": (changes_target, "changes its targets in place|from call to call"),
}


@pytest.mark.parametrize("case", WRONG)
def test_losses_that_clients_could_not_share_are_found(case):
    loss, sentence = WRONG[case]
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match=sentence):
        check_loss(loss, torch.randn(5, 2), torch.randn(5, 2))


@pytest.mark.parametrize("shapes", [((5, 1), (5,)), ((5,), (5, 1))])
def test_outputs_that_are_paired_with_all_targets_are_found(shapes):
    def paired(outputs, target):
        return ((outputs - target) ** 2).mean(1)

    outputs, target = map(torch.rand, shapes)
    with pytest.raises(AssertionError, match=r"pairs all outputs, .* with all targets"):
        check_loss(paired, outputs, target)


def test_losses_of_single_samples_are_accepted():
    outputs, target = torch.randn(5, 3), torch.tensor([0, 2, 1, 1, 0])
    check_loss("cross_entropy", outputs, target)
    check_loss(nn.CrossEntropyLoss(torch.rand(3), reduction="none"), outputs, target)
    check_loss(lambda z, y: functional.mse_loss(z, y, reduction="none").mean(1), outputs, outputs)
    for name in ("mse", "mae", "huber"):
        check_loss(name, outputs[:, :1], outputs[:, 0])
    check_loss("bce", outputs, target[:, None].expand(5, 3) / 2)
    mask = torch.arange(4) < torch.tensor([[4], [2], [3], [1], [4]])
    check_loss("next_token", torch.randn(5, 4, 9), torch.randint(0, 9, (5, 4)), mask)
    assert set(LOSSES) >= {"cross_entropy", "mse", "mae", "huber", "bce", "next_token"}
