"""Trainers on data with several inputs and sequences, against PyTorch on unpadded samples."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedtide.algorithms import Instructions
from fedtide.problems import Supervised
from fedtide.problems.losses import LOSSES
from fedtide.training import LocalTraining
from fedtide.training.devices import can_compile
from fedtide.training.minibatches import MinibatchPlanner
from fedtide.training.trainers.reference import ReferenceTrainer
from fedtide.training.trainers.stacked import StackedTrainer
from fedtide.training.trainers.threaded import ThreadedTrainer

CPU = torch.device("cpu")
RNG = np.random.default_rng(7)
ROWS, TOKENS = 60, 11
OWNERS = np.concatenate([np.zeros(1), np.ones(9), RNG.integers(2, 6, ROWS - 10)]).astype(np.int64)
"""Six clients, the first of them with a single sample."""
LENGTHS = RNG.integers(2, 7, ROWS)
SEQUENCES = [RNG.integers(0, TOKENS, length) for length in LENGTHS]
VECTORS = RNG.normal(size=(ROWS, 4))
NUMBERS = RNG.normal(size=ROWS)
CLASSES = RNG.integers(0, 3, ROWS)


class Ratings(nn.Module):
    """Takes two integers and a vector."""

    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(5, 3), nn.Embedding(7, 3)
        self.linear = nn.Linear(4, 1)

    def forward(self, user, item, vector):
        return (self.users(user) * self.items(item)).sum(1) + self.linear(vector).squeeze(1)


class Reader(nn.Module):
    """Classifies a sequence by the masked mean of a transformer's outputs."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens, mask=None):
        if mask is None:
            mask = torch.ones_like(tokens, dtype=torch.bool)
        hidden = self.encoder(self.embedding(tokens), src_key_padding_mask=~mask)
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return self.head((hidden * weights).sum(1) / weights.sum(1))


class Writer(nn.Module):
    """Predicts the next token with a causal transformer whose output is tied to its embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, TOKENS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        causal = nn.Transformer.generate_square_subsequent_mask(
            tokens.shape[1], dtype=self.head.weight.dtype
        )
        return self.head(self.encoder(self.embedding(tokens), src_mask=causal))


@dataclass(frozen=True)
class Case:
    """A network and its data, and the mean loss of samples in plain PyTorch.

    Args:
        fields: of the problem.
        loss: takes the network and the rows of a minibatch.
    """

    fields: dict[str, Any]
    loss: Callable[[nn.Module, list[int]], torch.Tensor]


def one_by_one(loss):
    """Return the mean over the samples of a loss of one unpadded sequence."""
    return lambda net, rows: torch.stack([loss(net, row) for row in rows]).mean()


USERS, ITEMS = RNG.integers(0, 5, ROWS), RNG.integers(0, 7, ROWS)

CASES = {
    "several-inputs": Case(
        {
            "train": {"u": USERS, "i": ITEMS, "v": VECTORS, "y": NUMBERS},
            "inputs": {"item": "i", "vector": "v", "user": "u"},
            "model": Ratings,
            "loss": "mse",
        },
        lambda net, rows: functional.mse_loss(
            net(*(torch.tensor(part[rows]) for part in (USERS, ITEMS, VECTORS))),
            torch.tensor(NUMBERS[rows]),
        ),
    ),
    "padded-sequences": Case(
        {"train": {"x": SEQUENCES, "y": CLASSES}, "model": Reader},
        one_by_one(
            lambda net, row: functional.cross_entropy(
                net(torch.tensor(SEQUENCES[row])[None]), torch.tensor(CLASSES[row])[None]
            )
        ),
    ),
    "next-token": Case(
        {"train": {"x": SEQUENCES}, "target": None, "model": Writer, "loss": "next_token"},
        one_by_one(
            lambda net, row: functional.cross_entropy(
                net(torch.tensor(SEQUENCES[row])[None])[0, :-1], torch.tensor(SEQUENCES[row][1:])
            )
        ),
    ),
}

LR = 0.05
LOCALS = {
    "step": LocalTraining(steps=1, lr=LR, batch_size=4),
    "steps": LocalTraining(steps=2, lr=LR, batch_size=4),
    "epochs": LocalTraining(epochs=1, lr=LR, batch_size=4, momentum=0.9),
}

TRAINERS = {
    "reference": ReferenceTrainer,
    "stacked": StackedTrainer,
    "threaded": ThreadedTrainer,
    "compiled": lambda task, local: StackedTrainer(task, local, compiled=True),
    "threaded-compiled": lambda task, local: ThreadedTrainer(task, local, compiled=True),
}


def prepare(case):
    fields = CASES[case].fields
    train = {**fields["train"], "client": OWNERS}
    problem = Supervised(**{**fields, "train": train})
    return problem.prepare(seed=2, device=CPU, dtype=torch.float64)


@cache
def plain_training(case, how):
    """Return a task, a plan of its clients, and the state of each network after its local steps.

    The steps are taken by PyTorch alone, once for all trainers.
    """
    task, local = prepare(case), LOCALS[how]
    clients = np.arange(task.population.clients)
    plan = MinibatchPlanner(task.population, local, seed=4).plan(clients)
    states = []
    for s, client in enumerate(plan.clients):
        held = task.data.shards.held_by(client)
        network = task.module(task.start).train()
        trainable = [p for p in network.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trainable, lr=LR, momentum=local.momentum)
        for k in range(plan.steps[s]):
            step = min(k, len(plan.positions) - 1)
            positions = plan.positions[step, s]
            if plan.mask is not None:
                positions = positions[plan.mask[step, s]]
            optimizer.zero_grad()
            CASES[case].loss(network, held[positions].tolist()).backward()
            optimizer.step()
        states.append(network.state_dict())
    return task, plan, states


def check(name, case, how):
    task, plan, states = plain_training(case, how)
    trained = TRAINERS[name](task, LOCALS[how]).train(Instructions(task.start), plan, LR)
    for s, state in enumerate(states):
        found = task.module(task.start + trained.deltas[s]).state_dict()
        for key, value in state.items():
            torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-9)


UNCOMPILED = ["reference", "stacked", pytest.param("threaded", marks=pytest.mark.compile)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", UNCOMPILED)
def test_trainers_equal_a_plain_loop(name, case):
    """Transformers take long to capture: one step."""
    check(name, case, "epochs" if case == "several-inputs" else "step")


@pytest.mark.compile
@pytest.mark.skipif(not can_compile(torch.zeros(0)), reason="no C++ compiler")
@pytest.mark.parametrize(
    ("name", "case"), [("compiled", "several-inputs"), ("threaded-compiled", "padded-sequences")]
)
def test_compiled_trainers_equal_a_plain_loop(name, case):
    check(name, case, "steps")


def test_all_losses_have_a_gradient_without_padding_in_it():
    """Padded positions must not receive gradients, whatever the loss."""
    mask = torch.tensor([[True, True, False]])
    for name, loss in LOSSES.items():
        if name in ("cross_entropy", "next_token"):
            outputs, target = torch.randn(1, 3, 4), torch.tensor([[0, 1, 2]])
        else:
            outputs, target = torch.randn(1, 3), torch.rand(1, 3)
        outputs.requires_grad_()
        loss(outputs, target, mask).sum().backward()
        assert not outputs.grad[0, 2].any()
        assert outputs.grad[0, 0].any()
