"""FedBuff: the server steps whenever it has collected a certain number of updates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from fedtide.algorithms.base import Algorithm, ClientUpdates, RoundInfo, State, Traits
from fedtide.algorithms.trimmed_mean import Rows
from fedtide.device_copies import to_device_of
from fedtide.population import Population
from fedtide.randomness import random_words
from fedtide.spec import AtLeast, Positive, Unit, spec

_ORDER = "fedbuff order"
"""The purpose of the draws of the order in which a round's updates enter the buffer."""


@dataclass(frozen=True)
class FedBuffState(State):
    """The state of FedBuff.

    Args:
        buffer: b, the weighted sum of the updates that wait for a step, shape (d,).
        waiting: how many wait, less than B between two rounds.
        clients: ids of the clients absorbed in this round so far, shape (S,).
        updates: their Δ_n.
        seed: of the order in which updates enter the buffer.
    """

    buffer: Tensor
    waiting: int
    clients: Tensor
    updates: Rows
    seed: int


@spec
class FedBuff(Algorithm[FedBuffState]):
    """Buffered aggregation (Nguyen et al., AISTATS 2022), adapted to rounds.

    The updates of a round enter a buffer b one after another. With s_n the number of steps that
    the server has made since client n was sent its model, and b = 0 at first,

        b ← b + Δ_n / (1 + s_n)^a

    and as soon as B updates have entered,

        x ← x + η / B · b,    b ← 0

    The buffer spans rounds: updates left in it wait for those of the next rounds, and any left
    after the last round are not used. A round of more than B updates makes several steps. Since all
    clients of a round receive the model from its start, s_n is 0 up to the round's first step, 1 up
    to the second, and so on; no other staleness occurs. With cohorts of B clients this is FedAvg.

    The updates of a round enter in random order, drawn with the run's seed (in a federation 0): in
    the order of ids, the last clients would have the stalest updates in every round. The order in
    which a simulator or a deployment passes them on therefore does not matter. The updates of a
    round are kept until its end: S d numbers. `RoundInfo` gives those that still wait the weight 0.

    Written from the authors' program (github.com/facebookresearch/FLSim at 7311f2d); of the paper
    only the abstract was read. By default the program does not divide by B, and divides all weights
    by that of s_n = 1, so that its learning rate is η / (2^a B); it has B = 1 and a = 0. It can
    also weight updates by samples, leave stale ones out, and step with momentum or Adam; at the end
    of an epoch it makes a step with what is in the buffer. Its clients start and end independently
    of each other. Here a late update in a deployment is not used, because methods do not know when
    its client started.

    Args:
        server_lr: η > 0.
        buffer_size: B >= 1, in updates.
        exponent: a in [0, 1]; 1/2 weights by 1/√(1 + s_n), 0 weights all equally.

    Raises:
        InvalidInputError: a number outside its range.

    >>> method = FedBuff(buffer_size=2)
    >>> state = method.init(torch.zeros(1), Population(3))
    >>> ones = torch.ones(3)
    >>> updates = ClientUpdates(torch.arange(3), ones, ones[:, None], lr=0.1, steps=ones)
    >>> state, info = method.step(method.absorb(state, updates), lr=0.1)
    >>> state.model, state.waiting  # the third update has missed a step
    (tensor([1.]), 1)
    >>> state.buffer
    tensor([0.7071])
    """

    server_lr: Annotated[float, Positive] = 1.0
    buffer_size: Annotated[int, AtLeast(1)] = 10
    exponent: Annotated[float, Unit] = 0.5

    traits = Traits(uses_absent_clients=True)  # updates of earlier rounds enter a step

    def init(self, model: Tensor, population: Population) -> FedBuffState:
        clients = torch.zeros(0, dtype=torch.int64)
        seed = population.seed or 0
        return FedBuffState(model, 0, torch.zeros_like(model), 0, clients, Rows(), seed)

    def absorb(self, state: FedBuffState, updates: ClientUpdates) -> FedBuffState:
        """Keep the updates until the end of the round, when their order is known."""
        return replace(
            state,
            clients=torch.cat([state.clients, updates.clients]),
            updates=Rows((*state.updates.chunks, updates.deltas)),
        )

    def step(self, state: FedBuffState, lr: float) -> tuple[FedBuffState, RoundInfo]:
        """Let the updates enter the buffer, and make the steps that are due."""
        model, buffer = state.model, state.buffer
        before = state.waiting + _ranks(state)  # updates since the last step
        weights = (before // self.buffer_size + 1).double() ** -self.exponent
        steps, waiting = divmod(state.waiting + len(state.clients), self.buffer_size)
        used = torch.where(before < steps * self.buffer_size, weights, 0.0)
        direction = torch.zeros_like(model)
        if steps:
            scale = self.server_lr / self.buffer_size
            direction = scale * (buffer + _sum(used, state.updates, model))
            buffer, used, weights = torch.zeros_like(model), scale * used, weights - used
        buffer = buffer + _sum(weights, state.updates, model)
        info = RoundInfo(state.clients, used.to(model.dtype), direction)
        return replace(
            state,
            model=model + direction,
            round=state.round + 1,
            buffer=buffer,
            waiting=waiting,
            clients=state.clients[:0],
            updates=Rows(),
        ), info


def _ranks(state: FedBuffState) -> Tensor:
    """Return the position, from 0, of each client in the order of the round, shape (S,)."""
    ids = state.clients.cpu().numpy()
    words = torch.from_numpy(random_words(state.seed, _ORDER, state.round, ids).view("int64"))
    return words.argsort().argsort()


def _sum(weights: Tensor, updates: Rows, like: Tensor) -> Tensor:
    """Return Σ w_n Δ_n, shape (d,), with the weights in the order of arrival."""
    total, first = torch.zeros_like(like), 0
    for chunk in updates.chunks:
        own = weights[first : first + len(chunk)]
        total += to_device_of(own.to(chunk.dtype), chunk) @ chunk
        first += len(chunk)
    return total
