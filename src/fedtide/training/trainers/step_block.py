"""A block of local steps as one function of tensors, for recording and compiling."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from fedtide.problems.base import Batch, BatchInputs, Task, each_step
from fedtide.problems.layout import Params
from fedtide.training.local_training import LocalTraining
from fedtide.training.trainers.base import local_direction

Tensors = tuple[Tensor, ...]


class BlockInputs(NamedTuple):
    """What a block depends on; empty is what there is not.

    Args:
        x: the start model, flat.
        y: the models before the block, tensor by tensor; none if it is the whole round, from x on.
        m: the momentum before the block, likewise.
        correction: the corrections, flat.
        mu: μ, a single number.
        lr: γ, a single number.
        resting: where a client does not take a step, (I, S); none where all take every step.
        draws: what the batches are made of, (I, S, ...) or (1, S, ...).
    """

    x: Tensors
    y: Tensors = ()
    m: Tensors = ()
    correction: Tensors = ()
    mu: Tensors = ()
    lr: Tensors = ()
    resting: Tensors = ()
    draws: Tensors = ()

    @property
    def flat(self) -> Tensors:
        """All tensors, one after another."""
        return tuple(tensor for group in self for tensor in group)

    def of(self, tensors: Tensors) -> BlockInputs:
        """Return inputs made of other tensors in the same order."""
        ends = list(accumulate(map(len, self), initial=0))
        return BlockInputs(*(tensors[i:j] for i, j in pairwise(ends)))


@dataclass(frozen=True)
class StepBlock:
    """Some local steps, from what they draw to the moved models.

    Args:
        task: what is learnt.
        local: what a client does in a round.
        stacked: whether models and batches have a leading dimension over clients.
        gradients_at_start: whether every gradient is taken at x.
        steps: how many steps.
    """

    task: Task
    local: LocalTraining
    stacked: bool
    gradients_at_start: bool
    steps: int

    def __call__(self, inputs: BlockInputs) -> Tensors:
        """Return the models and then the momentum; of a whole round the flat updates alone."""
        minus_lr = -inputs.lr[0]
        x, y, m = self.tensors(inputs.x[0]), inputs.y, inputs.m
        batch: Batch = ()
        for k, draws in enumerate(each_step(inputs.draws, self.steps)):
            batch = self._batch(draws) if draws else batch
            along = self._direction(x, y, m, inputs, batch)
            m = along if self.local.momentum else ()
            if inputs.resting:
                along = tuple(_except(inputs.resting[0][k], tensor) for tensor in along)
            y = _moved(y or x, along, minus_lr)
            if self.local.projection is not None:
                y = self.tensors(self.local.projection(self.flat(y)))
        return y + m if inputs.y else (self.flat(tuple(map(torch.sub, y, x))),)

    def tensors(self, flat: Tensor) -> Tensors:
        """Return models or corrections, shape (d,) or (S, d), tensor by tensor."""
        tensors = self.task.layout.unflatten(flat).values()
        return tuple(tensors if self.stacked else map(self.task.to_memory_format, tensors))

    def flat(self, tensors: Tensors) -> Tensor:
        """Return models as flat vectors, shape (S, d) if they are stacked, else (d,)."""
        return torch.cat([tensor.flatten(int(self.stacked)) for tensor in tensors], dim=-1)

    def _batch(self, draws: BatchInputs) -> Batch:
        batch = self.task.batch(*draws)
        return (
            batch if self.stacked else tuple(self.task.to_memory_format(part[0]) for part in batch)
        )

    def _direction(
        self, x: Tensors, y: Tensors, m: Tensors, inputs: BlockInputs, batch: Batch
    ) -> Tensors:
        """Return what the clients step along; they stand at x where there is no y."""
        direction = local_direction(self.task, self.local, self.gradients_at_start)
        if self.stacked:
            over = (0 if y else None, 0, None, 0 if inputs.correction else None, None)
            direction = torch.func.vmap(direction, in_dims=over + (0,) * len(batch))
        along = direction(
            self._named(y or x),
            self._named(m),
            self._named(x),
            self._named(self.tensors(inputs.correction[0])) if inputs.correction else None,
            inputs.mu[0] if inputs.mu else None,
            *batch,
        )
        return tuple(along.values())

    def _named(self, tensors: Tensors) -> Params:
        return dict(zip(self.task.layout.shapes, tensors, strict=False))


def _except(resting: Tensor, along: Tensor) -> Tensor:
    """Return the direction of a chunk, shape (S, ...), zero for the clients that rest."""
    return along.masked_fill(resting.view(-1, *[1] * (along.dim() - 1)), 0)


def _moved(y: Tensors, along: Tensors, minus_lr: Tensor) -> Tensors:
    """Return y - γ along; a single y is that of all clients."""
    return tuple(torch.addcmul(t, d, minus_lr) for t, d in zip(y, along, strict=True))
