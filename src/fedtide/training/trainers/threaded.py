"""The trainer for networks that do not stack well, such as convolutions on CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtide.problems.base import BatchPlan, Task
from fedtide.training.local_training import LocalTraining
from fedtide.training.threads import map_threads
from fedtide.training.trainers.base import RoundContext, Trainer
from fedtide.training.trainers.block_runner import BlockRunner

_BLOCK = 5  # steps are compiled together, up to so many; compiling takes about as long for each


class ThreadedTrainer(Trainer):
    """Trains one client per thread, each on one core, with channels-last images.

    Args:
        task: what is learnt.
        local: what a client does in a round.
        compiled: whether to use torch.compile (which needs a C++ compiler on CPU).
    """

    def __init__(self, task: Task, local: LocalTraining, compiled: bool = False) -> None:
        self.name = "threaded-compiled" if compiled else "threaded"
        block = _BLOCK if compiled else 1
        self._steps = BlockRunner(task, local, stacked=False, compiled=compiled, block=block)
        self._threads = torch.get_num_threads()

    def train(
        self, round: RoundContext, plan: BatchPlan, correction: Tensor | None = None
    ) -> Tensor:
        """Return the updates, shape (S, d)."""
        updates = torch.empty(len(plan.clients), len(round.start)).to(round.start)

        def train_client(s: int) -> None:
            own = None if correction is None else correction[s]
            with torch.no_grad():  # which holds for the thread
                updates[s] = self._steps.take(round, plan.single_client(s), own)

        map_threads(train_client, range(len(plan.clients)), self._threads)
        return updates
