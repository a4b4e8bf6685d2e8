"""A block of local steps as one function of tensors, to be captured and compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtide.problems.base import (
    Batch,
    BatchInputs,
    Gradient,
    Task,
    each_step,
    require_single_number,
)
from fedtide.problems.layout import Params, flatten_after
from fedtide.training.local_step import local_gradient, step_direction
from fedtide.training.local_training import LocalTraining
from fedtide.training.trainers._graph_capture import in_memory

Tensors = tuple[Tensor, ...]


def stackable_gradient(loss: Callable[..., tuple[Tensor, Params]]) -> Gradient:
    """Return what `loss_gradient` returns, in a form that can be captured, and stacked by `vmap`.

    Equivalent to `torch.func.grad`, except that its gradients cannot be differentiated again: to
    allow that, PyTorch splits some, such as those of group normalisation, into many small
    operations.

    >>> gradient = stackable_gradient(lambda params: (params["x"] ** 2, {}))
    >>> gradient({"x": torch.tensor(3.0)})
    ({'x': tensor(6.)}, {})
    """

    def gradient(params: Params, *args: Any) -> tuple[Params, Params]:
        found: Any = torch.func.vjp(lambda p: loss(p, *args), params, has_aux=True)
        value, pull_back, buffers = found
        require_single_number(value)
        with torch.no_grad():
            (slopes,) = pull_back(torch.ones_like(value))
        return slopes, buffers

    return gradient


class BlockInputs(NamedTuple):
    """The inputs of a block; each group of tensors may be empty.

    Args:
        x: the start model, flat.
        y: the models before the block, tensor by tensor; empty if the block is a whole round.
        moments: the optimizer's moments before the block, tensor by tensor: first all of one kind,
            then all of the next.
        correction: the corrections, flat.
        mu: μ, a single number.
        lr: γ, a single number.
        scales: of each step of Adam, shape (I, 2), see `adam_scales`.
        buffers: the buffers before the block, flat.
        idle: true where a client skips a step, (I, S); empty if all take every step.
        batch_inputs: what the batches are computed from, (I, S, ...) or (1, S, ...).
    """

    x: Tensors
    y: Tensors = ()
    moments: Tensors = ()
    correction: Tensors = ()
    mu: Tensors = ()
    lr: Tensors = ()
    scales: Tensors = ()
    buffers: Tensors = ()
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

    def with_state(self, tensors: Tensors) -> BlockInputs:
        """Return inputs with other models, moments and buffers, as a block returns them."""
        first, last = len(self.y), len(tensors) - len(self.buffers)
        return self._replace(y=tensors[:first], moments=tensors[first:last], buffers=tensors[last:])

    def select(self, clients: slice | Tensor) -> BlockInputs:
        """Return the inputs of these clients of a stacked chunk, given by their positions."""
        inputs = self._replace(
            batch_inputs=tuple(
                part[:, clients].clone(memory_format=torch.contiguous_format)
                for part in self.batch_inputs
            )
        )
        if not (self.y or self.correction or self.buffers):  # as in most chunks
            return inputs
        groups = {
            name: tuple(tensor[clients] for tensor in getattr(self, name))
            for name in ("y", "moments", "correction", "buffers")
        }
        return inputs._replace(**groups)

    def of_steps(self, part: slice) -> BlockInputs:
        """Return the inputs of some of the steps."""
        return self._replace(
            scales=tuple(scales[part] for scales in self.scales),
            batch_inputs=tuple(
                given if len(given) == 1 else given[part] for given in self.batch_inputs
            ),
        )


@dataclass(frozen=True)
class StepBlock:
    """A function that takes some local steps, from the inputs of their batches to the new models.

    Args:
        task: what is learnt.
        local: what a client does in a round.
        stacked: whether models and batches have a leading dimension over clients.
    """

    task: Task
    local: LocalTraining
    stacked: bool

    def __call__(self, inputs: BlockInputs, steps: int, at_start: bool) -> Tensors:
        """Return the models, then the moments, then the buffers.

        If the block is a whole round, it returns flat updates instead of models and moments.

        Args:
            inputs: what the steps are computed from.
            steps: how many there are.
            at_start: whether every gradient is taken at x.
        """
        minus_lr = -inputs.lr[0]
        x, y, moments, buffers = self.tensors(inputs.x[0]), inputs.y, inputs.moments, inputs.buffers
        batch: Batch = ()
        for k, step_inputs in enumerate(each_step(inputs.batch_inputs, steps)):
            batch = self._batch(step_inputs) if step_inputs else batch
            gradient, moved = self._gradient(x, y, inputs, buffers, batch, at_start)
            along, moments = self._direction(y or x, gradient, moments, inputs, k)
            if inputs.idle:
                along = tuple(_without_idle(inputs.idle[0][k], tensor) for tensor in along)
                moved = tuple(
                    torch.where(inputs.idle[0][k, :, None], old, new)
                    for old, new in zip(buffers, moved, strict=True)
                )
            y, buffers = _step(y or x, along, minus_lr), moved
            if self.local.projection is not None:
                y = self.tensors(self.local.projection(self.flat(y)))
        if inputs.y:
            return y + moments + buffers
        # in memory first: otherwise the compiler computes every element's index by division
        return self.flat(tuple(in_memory(a - b) for a, b in zip(y, x, strict=True))), *buffers

    def tensors(self, flat: Tensor) -> Tensors:
        """Split flat models or corrections, shape (d,) or (S, d), into their tensors."""
        tensors = self.task.layout.unflatten(flat).values()
        return tuple(tensors if self.stacked else map(self.task.to_memory_format, tensors))

    def flat(self, tensors: Tensors) -> Tensor:
        """Return models as flat vectors, shape (S, d) if stacked, else (d,)."""
        return torch.cat([flatten_after(tensor, int(self.stacked)) for tensor in tensors], dim=-1)

    def _batch(self, step_inputs: BatchInputs) -> Batch:
        batch = self.task.batch(*step_inputs)
        return (
            batch if self.stacked else tuple(self.task.to_memory_format(part[0]) for part in batch)
        )

    def _gradient(
        self,
        x: Tensors,
        y: Tensors,
        inputs: BlockInputs,
        buffers: Tensors,
        batch: Batch,
        at_start: bool,
    ) -> tuple[Params, Tensors]:
        """Return the clients' gradients at y, or at x if y is empty, and their new buffers."""
        gradient = local_gradient(self.task, self.local, at_start, stackable_gradient)
        if self.stacked:
            over = (0 if y else None, None, 0 if inputs.correction else None, None, 0)
            gradient = torch.func.vmap(gradient, in_dims=over + (0,) * len(batch))
        g, moved = gradient(
            self._named(y or x),
            self._named(x),
            self._named(self.tensors(inputs.correction[0])) if inputs.correction else None,
            inputs.mu[0] if inputs.mu else None,
            self.task.unflatten_buffers(*buffers) if buffers else {},
            *batch,
        )
        layout = self.task.buffer_layout
        if layout is None or not buffers:
            return g, ()
        return g, (layout.flatten(moved, leading=int(self.stacked)),)

    def _direction(
        self, y: Tensors, gradient: Params, moments: Tensors, inputs: BlockInputs, k: int
    ) -> tuple[Tensors, Tensors]:
        """Return the direction of step k of the block, and the moments after it."""
        size = len(y)
        before = tuple(self._named(moments[i : i + size]) for i in range(0, len(moments), size))
        scales = inputs.scales[0][k] if inputs.scales else (1.0, 1.0)
        direction, after = step_direction(self.local, self._named(y), gradient, before, scales)
        return tuple(direction.values()), tuple(t for named in after for t in named.values())

    def _named(self, tensors: Tensors) -> Params:
        return dict(zip(self.task.layout.shapes, tensors, strict=False))


def _without_idle(idle: Tensor, along: Tensor) -> Tensor:
    """Return the direction of a chunk, shape (S, ...), zero for idle clients."""
    return along.masked_fill(idle.view(-1, *[1] * (along.dim() - 1)), 0)


def _step(y: Tensors, along: Tensors, minus_lr: Tensor) -> Tensors:
    """Return y - γ along; a y without client dimension is shared by all clients."""
    return tuple(torch.addcmul(t, d, minus_lr) for t, d in zip(y, along, strict=True))
