"""The trainer for small models: all clients of a chunk at once, stacked tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.problems.problem import Plan, Task
from fedtide.training.local import LocalTraining
from fedtide.training.steps import Steps
from fedtide.training.trainer import Round, Trainer

_SIZES = (25, 10, 5, 1)  # how many clients are trained together: a chunk should stay in cache,
_BYTES = 8 * 2**20  # so their models may not take more than this together
_BLOCK = 8  # steps are recorded together, up to so many


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
        most = max(1, _BYTES // (task.layout.size * task.start.element_size()))
        self._sizes = [size for size in _SIZES if size <= most]
        self.chunk = self._sizes[0]

    @torch.no_grad()
    def train(self, round: Round, plan: Plan, drift: Tensor | None = None) -> Tensor:
        """Return the updates, shape (S, d)."""
        size = len(plan.clients)
        if size in self._sizes:
            return self._steps.take(round, plan, drift)
        if size == 0:
            return round.start.new_empty(0, len(round.start))
        chunks = [
            self._steps.take(round, plan.take(places), None if drift is None else drift[places])
            for places in self._chunks(size)
        ]
        return torch.cat(chunks)[:size]

    def _chunks(self, clients: int) -> Iterator[NDArray[np.int64]]:
        """Yield the places of each chunk, its last repeated up to one of the recorded sizes.

        Of all clients trained, one in five at most repeats another, or the last chunk is the
        smallest.
        """
        first = 0
        while first < clients:
            left = clients - first
            size = next((s for s in self._sizes if 5 * left >= 4 * s), self._sizes[-1])
            yield np.arange(first, first + size).clip(max=clients - 1)
            first += size
