"""The fast trainer: all clients of a cohort at once, their models stacked tensor by tensor."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.problems.layout import Params
from fedtide.problems.problem import Plan, Task
from fedtide.training.local import LocalTraining
from fedtide.training.recording import Recording, record
from fedtide.training.trainer import Round, Trainer, local_step, of_step

_MOST = 32  # clients trained together at most, and less if their models would take more than
_BYTES = 64 * 2**20  # this: a chunk should stay in cache
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # chunks are padded to these, each recorded once
_SIZES_COMPILED = (8, 32)  # compiling takes seconds, so there are fewer

_RECORDED: WeakKeyDictionary[Task, dict[Any, Recording]] = WeakKeyDictionary()
"""The recorded steps of each task that is alive; runs of several methods on it share them."""


class StackedTrainer(Trainer):
    """Takes each local step for a whole chunk of clients in one go.

    The step is stacked over the clients by `torch.func.vmap`, recorded once for each shape and
    replayed afterwards. With `compiled` the recording is compiled, too.

    Args:
        task: what is learnt.
        local: what a client does in a round.
        compiled: whether to use torch.compile (which needs a C++ compiler on CPU).
    """

    def __init__(self, task: Task, local: LocalTraining, compiled: bool = False) -> None:
        self.name = "compiled" if compiled else "stacked"
        self._task, self._local, self._compiled = task, local, compiled
        self._recorded = _RECORDED.setdefault(task, {})
        self._names = list(task.layout.shapes)
        model_bytes = task.layout.size * task.start.element_size()
        self._chunk = max(1, min(_MOST, _BYTES // model_bytes))
        sizes = _SIZES_COMPILED if compiled else _SIZES
        self._sizes = [size for size in sizes if size < self._chunk] + [self._chunk]

    def train(self, round: Round, plan: Plan, drift: Tensor | None = None) -> Tensor:
        """Return the updates, shape (S, d)."""
        size = len(plan.clients)
        updates = torch.empty(size, len(round.start)).to(round.start)
        for first in range(0, size, self._chunk):
            chunk = slice(first, min(first + self._chunk, size))
            padded = self._padded(chunk)
            models = self._train_chunk(
                round, plan.take(padded), None if drift is None else drift[padded]
            )
            torch.sub(models[: chunk.stop - chunk.start], round.start, out=updates[chunk])
        return updates

    def _padded(self, chunk: slice) -> NDArray[np.int64]:
        """Return the places of the chunk, its last repeated up to one of the recorded sizes."""
        wanted = next(size for size in self._sizes if size >= chunk.stop - chunk.start)
        places: NDArray[np.int64] = np.arange(chunk.start, chunk.start + wanted)
        return places.clip(max=chunk.stop - 1)

    @torch.no_grad()
    def _train_chunk(self, round: Round, plan: Plan, drift: Tensor | None) -> Tensor:
        """Return the models y_n after the local steps, shape (S, d)."""
        size, layout = len(plan.clients), self._task.layout
        x = list(layout.unflatten(round.start).values())
        y = [t.expand(size, *t.shape).contiguous() for t in x]
        m = [torch.zeros_like(t) for t in y] if self._local.momentum else []
        corrections = [] if drift is None else list(layout.unflatten(drift).values())
        scalars = [round.start.new_tensor(round.lr)]
        if round.mu:
            scalars.append(round.start.new_tensor(round.mu))
        batches = self._task.batches(plan)
        for k in range(len(plan.keys)):
            arguments = [*y, *m, *x, *corrections, *scalars, *of_step(batches, k)]
            step = self._recording(round, drift is not None, arguments)
            after = list(step(*arguments))
            if plan.active is not None:
                after = _where(plan.active[k], after, [*y, *m])
            y, m = after[: len(y)], after[len(y) :]
        return torch.cat([t.flatten(1) for t in y], dim=1)

    def _recording(self, round: Round, drift: bool, arguments: list[Tensor]) -> Recording:
        """Return the stacked step for arguments of these shapes."""
        local = self._local
        settings = (self._compiled, local.momentum, local.weight_decay, local.projection)
        shapes = tuple((t.shape, t.dtype) for t in arguments)
        key = (settings, round.frozen, bool(round.mu), drift, shapes)
        if key not in self._recorded:
            self._recorded[key] = self._record(round, drift, arguments)
        return self._recorded[key]

    def _record(self, round: Round, drift: bool, arguments: list[Tensor]) -> Recording:
        """Record one step of all clients as a function of the single tensors in `arguments`."""
        n, momentum, mu = len(self._names), bool(self._local.momentum), bool(round.mu)
        counts = (n, n * momentum, n, n * drift, 1, int(mu))
        dims = (0, 0, None, 0 if drift else None, None, None)
        step = local_step(self._task, self._local, round.frozen)
        batch_size = len(arguments) - sum(counts)
        stacked = torch.func.vmap(step, in_dims=dims + (0,) * batch_size)

        def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
            y, m, x, corrections, lr, weight, batch = _cut(tensors, counts)
            after, momenta = stacked(
                self._named(y),
                self._named(m) if momentum else {},
                self._named(x),
                self._named(corrections) if drift else None,
                lr[0],
                weight[0] if mu else None,
                *batch,
            )
            return *(after[k] for k in self._names), *(momenta[k] for k in momenta)

        recording = record(flat, arguments)
        return torch.compile(recording, dynamic=False) if self._compiled else recording

    def _named(self, tensors: tuple[Tensor, ...]) -> Params:
        return dict(zip(self._names, tensors, strict=True))


def _cut(tensors: tuple[Tensor, ...], counts: tuple[int, ...]) -> list[tuple[Tensor, ...]]:
    """Return the tensors in groups of these sizes, and what is left."""
    ends = np.cumsum(counts).tolist()
    starts = [0, *ends]
    return [tensors[i:j] for i, j in zip(starts, [*ends, len(tensors)], strict=True)]


def _where(active: NDArray[np.bool_], after: list[Tensor], before: list[Tensor]) -> list[Tensor]:
    """Return what stands after the step for the active clients, and before it for the rest."""
    return [
        torch.where(
            torch.as_tensor(active, device=new.device).view(-1, *[1] * (new.dim() - 1)), new, old
        )
        for new, old in zip(after, before, strict=True)
    ]
