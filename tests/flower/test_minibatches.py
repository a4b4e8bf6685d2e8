"""A client's last, incomplete minibatch of an epoch, against a plain PyTorch loop."""

import copy
from zlib import crc32

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fedtide as ft
from fedtide.flower.clients.app import _ClientTrainer
from fedtide.flower.clients.task import ClientTask, cross_entropies
from fedtide.flower.protocol import TrainRequest
from fedtide.population import Population
from fedtide.training.minibatches import MinibatchPlanner

X = torch.randn(7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(7) % 3


def network(layer):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), layer, nn.Tanh(), nn.Linear(5, 3)).double()


def train(net, **local):
    task = ClientTask(net, X, Y, cross_entropies)
    return _ClientTrainer(task, ft.LocalTraining(lr=0.3, **local)).train(
        dict(net.named_parameters()), TrainRequest(round=0, client="a")
    )


@pytest.mark.parametrize("layer", [nn.Identity(), nn.BatchNorm1d(5, track_running_stats=False)])
def test_copies_that_fill_a_minibatch_up_do_not_train(layer):
    """An epoch of 7 samples is a minibatch of 5 and one of 2."""
    net, local = network(layer), {"epochs": 1, "batch_size": 5}
    planner = MinibatchPlanner(
        Population(1, samples=np.array([7])), ft.LocalTraining(lr=0.3, **local), crc32(b"a")
    )
    plan = planner.plan(np.zeros(1, dtype=np.int64))
    expected = copy.deepcopy(net)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.3)
    for positions, real in zip(plan.positions[:, 0], plan.mask[:, 0], strict=True):
        rows = torch.from_numpy(positions[real])
        optimizer.zero_grad()
        cross_entropy(expected(X[rows]), Y[rows]).backward()
        optimizer.step()
    found, start = train(net, **local), net.state_dict()
    assert plan.mask.sum(axis=2).tolist() == [[5], [2]]
    for name, value in expected.state_dict().items():
        assert torch.allclose(found.update[name], value - start[name], atol=1e-12)
