"""The trainer for small models: all clients of a chunk at once, stacked tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.problems.problem import Plan, Task
from fedtide.training.local import LocalTraining
from fedtide.training.steps import Steps
from fedtide.training.trainer import Round, Trainer

_BLOCK = 8  # steps are recorded together, up to so many
_BYTES = 8 * 2**20  # a chunk should stay in cache: its models may not take more together


@dataclass(frozen=True)
class _Chunks:
    """How a cohort is cut.

    Args:
        sizes: how many clients are trained together, falling to 1.
        full: the share of a chunk that must be clients, and not repetitions of the last of them.
    """

    sizes: tuple[int, ...]
    full: float


_CHUNKS = _Chunks((25, 10, 5, 1), 0.8)
_SMALL_BYTES = 4 * 2**10
_SMALL = _Chunks((100, 25, 5, 1), 1 / 3)
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
        self._steps = Steps(task, local, stacked=True, compiled=compiled, block=_BLOCK)
        model = task.layout.size * task.start.element_size()
        chunks = _SMALL if model <= _SMALL_BYTES else _CHUNKS
        self._sizes = [size for size in chunks.sizes if size <= max(1, _BYTES // model)]
        self._full, self.chunk = chunks.full, self._sizes[0]

    @torch.no_grad()
    def train(self, round: Round, plan: Plan, drift: Tensor | None = None) -> Tensor:
        """Return the updates, shape (S, d)."""
        size = len(plan.clients)
        if size in self._sizes:
            return self._steps.take(round, plan, drift)
        if size == 0:
            return round.start.new_empty(0, round.start.shape[-1])
        chunks = [
            self._steps.take(
                round.take(places), plan.take(places), None if drift is None else drift[places]
            )
            for places in self._chunks(size)
        ]
        return torch.cat(chunks)[:size]

    def _chunks(self, clients: int) -> Iterator[NDArray[np.int64]]:
        """Yield the places of each chunk, its last repeated up to one of the recorded sizes."""
        first = 0
        while first < clients:
            left = clients - first
            size = next((s for s in self._sizes if left >= self._full * s), self._sizes[-1])
            yield np.arange(first, first + size).clip(max=clients - 1)
            first += size
