"""The fast trainer: all clients of a cohort at once, their models stacked tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fedtide.problems.layout import Params
from fedtide.problems.problem import Plan, Task
from fedtide.training.local import LocalTraining
from fedtide.training.trainer import Round, Trainer, local_step, of_step

_MOST = 32  # clients trained together at most, and less if their models would take more than
_BYTES = 64 * 2**20  # this: a chunk should stay in cache
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # chunks are padded to these, each recorded once
_SIZES_COMPILED = (8, 32)  # compiling takes seconds, so there are fewer

StackedStep = Callable[..., tuple[Params, Params]]
_RECORDED: WeakKeyDictionary[Task, dict[Any, StackedStep]] = WeakKeyDictionary()
"""The recorded steps of each task that is alive; runs of several methods on it share them."""


class StackedTrainer(Trainer):
    """Takes each local step for a whole chunk of clients in one go.

    The step is stacked over the clients by `torch.func.vmap`. What that does is recorded once for
    each shape and replayed afterwards, because working it out costs more than doing it for models
    as small as those of federated learning. With `compiled` the recording is compiled, too.

    Args:
        task: what is learnt.
        local: what a client does in a round.
        compiled: whether to use torch.compile (which needs a C++ compiler on CPU).
    """

    name = "stacked"

    def __init__(self, task: Task, local: LocalTraining, compiled: bool = False) -> None:
        self._task, self._local, self._compiled = task, local, compiled
        if compiled:
            self.name = "compiled"
        self._recorded = _RECORDED.setdefault(task, {})
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
        layout, size = self._task.layout, len(plan.clients)
        x = layout.unflatten(round.start)
        y = {name: t.expand(size, *t.shape).contiguous() for name, t in x.items()}
        m = {name: torch.zeros_like(t) for name, t in y.items()} if self._local.momentum else {}
        correction = None if drift is None else layout.unflatten(drift)
        lr = round.start.new_tensor(round.lr)
        mu = round.start.new_tensor(round.mu) if round.mu else None
        batches = self._task.batches(plan)
        for k in range(len(plan.keys)):
            batch = of_step(batches, k)
            arguments = (y, m, x, correction, lr, mu, *batch)
            after, m = self._recording(round.frozen, arguments)(*arguments)
            y = after if plan.active is None else self._where(plan.active[k], after, y)
        return layout.flatten(y, leading=1)

    def _where(self, active: Any, after: Params, before: Params) -> Params:
        """Return the models after the step for the active clients, those before it for the rest."""
        return {
            name: torch.where(
                torch.as_tensor(active, device=t.device).view(-1, *[1] * (t.dim() - 1)),
                t,
                before[name],
            )
            for name, t in after.items()
        }

    def _recording(self, frozen: bool, arguments: tuple[Any, ...]) -> StackedStep:
        """Return the stacked step for arguments of these shapes."""
        y, _, _, drift, _, mu, *batch = arguments
        local, size = self._local, len(next(iter(y.values())))
        settings = (self._compiled, local.momentum, local.weight_decay, local.projection, frozen)
        shapes = tuple((t.shape, t.dtype) for t in batch)
        key = (settings, size, drift is None, mu is None, shapes)
        if key not in self._recorded:
            self._recorded[key] = self._record(frozen, arguments)
        return self._recorded[key]

    def _record(self, frozen: bool, arguments: tuple[Any, ...]) -> StackedStep:
        _, _, _, drift, _, _, *batch = arguments
        in_dims = (0, 0, None, None if drift is None else 0, None, None)
        step = local_step(self._task, self._local, frozen)
        stacked = torch.func.vmap(step, in_dims=in_dims + (0,) * len(batch))
        recording: StackedStep = make_fx(stacked)(*arguments)
        return torch.compile(recording, dynamic=False) if self._compiled else recording
