"""The trainer for small models: all clients of a chunk at once, stacked tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.problems.problem import Plan, Task
from fedtide.training.local import LocalTraining
from fedtide.training.steps import Steps
from fedtide.training.trainer import Round, Trainer

_MOST = 25  # clients trained together at most, and less if their models would take more than
_BYTES = 64 * 2**20  # this: a chunk should stay in cache
_SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25)  # chunks are padded to these, each recorded once
_SIZES_COMPILED = (8, 25)  # compiling takes seconds, so there are fewer


class StackedTrainer(Trainer):
    """Takes each local step for a whole chunk of clients in one go (`torch.func.vmap`, recorded).

    Args:
        task: what is learnt.
        local: what a client does in a round.
        compiled: whether to use torch.compile (which needs a C++ compiler on CPU).
    """

    def __init__(self, task: Task, local: LocalTraining, compiled: bool = False) -> None:
        self.name = "compiled" if compiled else "stacked"
        self._task = task
        self._steps = Steps(task, local, stacked=True, compiled=compiled)
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
            self._train_chunk(
                round,
                plan.take(padded),
                None if drift is None else drift[padded],
                self._task.layout.unflatten(updates[chunk]).values(),
            )
        return updates

    def _padded(self, chunk: slice) -> NDArray[np.int64]:
        """Return the places of the chunk, its last repeated up to one of the recorded sizes."""
        wanted = next(size for size in self._sizes if size >= chunk.stop - chunk.start)
        places: NDArray[np.int64] = np.arange(chunk.start, chunk.start + wanted)
        return places.clip(max=chunk.stop - 1)

    @torch.no_grad()
    def _train_chunk(
        self, round: Round, plan: Plan, drift: Tensor | None, updates: Iterable[Tensor]
    ) -> None:
        """Train a chunk, and write the updates of all that is not padding tensor by tensor."""
        layout, size = self._task.layout, len(plan.clients)
        x = list(layout.unflatten(round.start).values())
        models = self._steps.take(
            round,
            y=[t.expand(size, *t.shape).clone(memory_format=torch.contiguous_format) for t in x],
            x=x,
            drift=[] if drift is None else list(layout.unflatten(drift).values()),
            batches=self._task.batches(plan),
            active=repeat(None) if plan.active is None else plan.active,
        )
        for update, model, start in zip(updates, models, x, strict=True):
            torch.sub(model[: len(update)], start, out=update)
