"""A block of local steps as one function of tensors, to be captured and compiled."""

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
    """The inputs of a block; each group of tensors may be empty.

    Args:
        x: the start model, flat.
        y: the models before the block, tensor by tensor; empty if the block is a whole round.
        m: the momentum before the block, tensor by tensor.
        correction: the corrections, flat.
        mu: μ, a single number.
        lr: γ, a single number.
        idle: where a client does not take a step, (I, S); empty if all take every step.
        batch_inputs: what the batches are computed from, (I, S, ...) or (1, S, ...).
    """

    x: Tensors
    y: Tensors = ()
    m: Tensors = ()
    correction: Tensors = ()
    mu: Tensors = ()
    lr: Tensors = ()
    idle: Tensors = ()
    batch_inputs: Tensors = ()

    @property
    def flat(self) -> Tensors:
        """All tensors in order."""
        return tuple(tensor for group in self for tensor in group)

    def with_tensors(self, tensors: Tensors) -> BlockInputs:
        """Return inputs with other tensors in the same order."""
        ends = list(accumulate(map(len, self), initial=0))
        return BlockInputs(*(tensors[i:j] for i, j in pairwise(ends)))


@dataclass(frozen=True)
class StepBlock:
    """Some local steps, from the inputs of their batches to the new models.

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
        """Return the models and then the momentum; for a whole round only the flat updates."""
        minus_lr = -inputs.lr[0]
        x, y, m = self.tensors(inputs.x[0]), inputs.y, inputs.m
        batch: Batch = ()
        for k, step_inputs in enumerate(each_step(inputs.batch_inputs, self.steps)):
            batch = self._batch(step_inputs) if step_inputs else batch
            along = self._direction(x, y, m, inputs, batch)
            m = along if self.local.momentum else ()
            if inputs.idle:
                along = tuple(_without_idle(inputs.idle[0][k], tensor) for tensor in along)
            y = _step(y or x, along, minus_lr)
            if self.local.projection is not None:
                y = self.tensors(self.local.projection(self.flat(y)))
        return y + m if inputs.y else (self.flat(tuple(map(torch.sub, y, x))),)

    def tensors(self, flat: Tensor) -> Tensors:
        """Return flat models or corrections, shape (d,) or (S, d), tensor by tensor."""
        tensors = self.task.layout.unflatten(flat).values()
        return tuple(tensors if self.stacked else map(self.task.to_memory_format, tensors))

    def flat(self, tensors: Tensors) -> Tensor:
        """Return models as flat vectors, shape (S, d) if stacked, else (d,)."""
        return torch.cat([tensor.flatten(int(self.stacked)) for tensor in tensors], dim=-1)

    def _batch(self, step_inputs: BatchInputs) -> Batch:
        batch = self.task.batch(*step_inputs)
        return (
            batch if self.stacked else tuple(self.task.to_memory_format(part[0]) for part in batch)
        )

    def _direction(
        self, x: Tensors, y: Tensors, m: Tensors, inputs: BlockInputs, batch: Batch
    ) -> Tensors:
        """Return the clients' directions at y, or at x in the first step of a round."""
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


def _without_idle(idle: Tensor, along: Tensor) -> Tensor:
    """Return the direction of a chunk, shape (S, ...), zero for idle clients."""
    return along.masked_fill(idle.view(-1, *[1] * (along.dim() - 1)), 0)


def _step(y: Tensors, along: Tensors, minus_lr: Tensor) -> Tensors:
    """Return y - γ along; a y without client dimension is shared by all clients."""
    return tuple(torch.addcmul(t, d, minus_lr) for t, d in zip(y, along, strict=True))
