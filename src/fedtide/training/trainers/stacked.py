"""The trainer for small models: all clients of a chunk at once, stacked tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.problems.base import BatchPlan, Task
from fedtide.training.local_training import LocalTraining
from fedtide.training.trainers.base import RoundContext, Trainer
from fedtide.training.trainers.block_runner import BlockRunner

_BLOCK = 8  # steps are recorded together, up to so many
_BYTES = 8 * 2**20  # a chunk should stay in cache: its models may not take more together


@dataclass(frozen=True)
class _Chunks:
    """How a cohort is cut.

    Args:
        sizes: how many clients are trained together, rising from 1.
        full: the share of a chunk that must be clients, and not repetitions of the last of them.
    """

    sizes: tuple[int, ...]
    full: float

    def next(self, left: int) -> int:
        """Return the size of the next chunk, with so many clients left."""
        holds = next((size for size in self.sizes if size >= left), 0)
        if holds and left >= self.full * holds:
            return holds
        return max(size for size in self.sizes if size <= left)


_USUAL = _Chunks((1, 5, 10, 25), full=0.8)
_SMALL_BYTES = 4 * 2**10
_SMALL = _Chunks((1, 5, 10, 25, 100), full=1 / 3)
"""For models so small that a step costs as much for many as for one: calls, not arithmetic."""


class StackedTrainer(Trainer):
    """Takes each local step for a whole chunk of clients in one go (`torch.func.vmap`, recorded).

    Args:
        task: what is learnt.
        local: what a client does in a round.
        compiled: whether to use torch.compile (which needs a C++ compiler on CPU).
    """

    def __init__(self, task: Task, local: LocalTraining, compiled: bool = False) -> None:
        self.name = "compiled" if compiled else "stacked"
        self._steps = BlockRunner(task, local, stacked=True, compiled=compiled, block=_BLOCK)
        model = task.layout.size * task.start.element_size()
        chunks = _SMALL if model <= _SMALL_BYTES and not compiled else _USUAL
        sizes = tuple(size for size in chunks.sizes if size <= max(1, _BYTES // model))
        self._cut, self.chunk = replace(chunks, sizes=sizes), sizes[-1]

    @torch.no_grad()
    def train(
        self, round: RoundContext, plan: BatchPlan, correction: Tensor | None = None
    ) -> Tensor:
        """Return the updates, shape (S, d)."""
        size = len(plan.clients)
        if size in self._cut.sizes:
            return self._steps.take(round, plan, correction)
        if size == 0:
            return round.start.new_empty(0, len(round.start))
        chunks = [
            self._steps.take(
                round, plan.take(places), None if correction is None else correction[places]
            )
            for places in self._chunks(size)
        ]
        return torch.cat(chunks)[:size]

    def _chunks(self, clients: int) -> Iterator[NDArray[np.int64]]:
        """Yield the places of each chunk, its last repeated up to one of the recorded sizes."""
        first = 0
        while first < clients:
            size = self._cut.next(clients - first)
            yield np.arange(first, first + size).clip(max=clients - 1)
            first += size
