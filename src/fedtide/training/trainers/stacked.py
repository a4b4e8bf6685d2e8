"""The trainer for small models: all clients of a chunk at once, stacked tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.algorithms.base import Instructions
from fedtide.problems.base import BatchPlan, Task
from fedtide.training import devices
from fedtide.training.local_training import LocalTraining
from fedtide.training.trainers.base import Trained, Trainer
from fedtide.training.trainers.block_runner import BlockRunner

_BLOCK_STEPS = 8  # steps captured together at most
_CHUNK_BYTES = 8 * 2**20  # the models of a chunk should fit into the cache together


@dataclass(frozen=True)
class _Chunks:
    """How a cohort is divided into chunks.

    Args:
        sizes: the sizes that chunks may have, increasing from 1.
        full: the minimal share of a chunk that is clients rather than copies of the last one.
    """

    sizes: tuple[int, ...]
    full: float

    def next(self, left: int) -> int:
        """Return the size of the next chunk when `left` clients remain."""
        enough = next((size for size in self.sizes if size >= left), 0)
        if enough and left >= self.full * enough:
            return enough
        return max(size for size in self.sizes if size <= left)


_USUAL = _Chunks((1, 5, 10, 25), full=0.8)
_SMALL_BYTES = 4 * 2**10
_SMALL = _Chunks((1, 5, 10, 25, 100), full=1 / 3)
"""For models so small that a step takes as long for 100 clients as for one."""


class StackedTrainer(Trainer):
    """Takes each local step for a whole chunk of clients at once (`torch.func.vmap`, captured).

    Args:
        task: what is learnt.
        local: what a client does in a round.
        compiled: whether to compile the local steps (needs a C++ compiler on CPU).
    """

    def __init__(self, task: Task, local: LocalTraining, compiled: bool = False) -> None:
        self.name = "compiled" if compiled else "stacked"
        self._runner = BlockRunner(
            task, local, stacked=True, compiled=compiled, block_steps=_BLOCK_STEPS
        )
        model = task.layout.size * task.start.element_size()
        chunks = _SMALL if model <= _SMALL_BYTES and not compiled else _USUAL
        if not devices.is_cpu(task.start):
            chunks = _Chunks(devices.chunk_sizes(), full=0.75)
        most = devices.stack_bytes(task.start, _CHUNK_BYTES) // model
        sizes = tuple(size for size in chunks.sizes if size <= max(1, most))
        self._cut, self.chunk = replace(chunks, sizes=sizes), sizes[-1]

    @torch.no_grad()
    def train(
        self, instructions: Instructions, plan: BatchPlan, lr: float, buffers: Tensor | None = None
    ) -> Trained:
        size = len(plan.clients)
        if size in self._cut.sizes:
            return self._runner.run(instructions, plan, lr, buffers)
        if size == 0:
            return Trained(instructions.model.new_empty(0, len(instructions.model)), buffers)
        chunks = [
            self._runner.run(
                instructions.select(positions),
                plan.select(positions),
                lr,
                None if buffers is None else buffers[positions],
            )
            for positions in self._chunks(size)
        ]
        moved = [chunk.buffers for chunk in chunks if chunk.buffers is not None]
        return Trained(
            torch.cat([chunk.deltas for chunk in chunks])[:size],
            torch.cat(moved)[:size] if moved else None,
        )

    def _chunks(self, clients: int) -> Iterator[NDArray[np.int64]]:
        """Yield the positions of each chunk; its last client is repeated to fill the chunk."""
        first = 0
        while first < clients:
            size = self._cut.next(clients - first)
            yield np.arange(first, first + size).clip(max=clients - 1)
            first += size
