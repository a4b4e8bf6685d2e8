"""The trainer for networks that do not stack well, such as convolutions on CPU."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fedtide.algorithms.base import Instructions
from fedtide.problems.base import BatchPlan, Task
from fedtide.training.local_training import LocalTraining
from fedtide.training.threads import CoreThreads
from fedtide.training.trainers.base import CohortResult, Trained, Trainer
from fedtide.training.trainers.block_runner import BlockRunner
from fedtide.training.trainers.reference import ReferenceTrainer

_BLOCK_STEPS = 5  # most steps compiled together; compile time grows with their number


class ThreadedTrainer(Trainer):
    """Trains one client per thread, each on one core, with channels-last images.

    Steps are captured, except those of recurrent networks: PyTorch's layers loop over the positions
    of a sequence in C++, while captured steps would be thousands of single operations.

    Args:
        task: what is learnt.
        local: what a client does in a round.
        compiled: whether to compile the local steps (needs a C++ compiler on CPU); recurrent
            networks are never compiled.
    """

    own_threads = True

    def __init__(self, task: Task, local: LocalTraining, compiled: bool = False) -> None:
        self.name = "threaded-compiled" if compiled else "threaded"
        steps = _BLOCK_STEPS if compiled else 1
        self._task = task
        self._reference = ReferenceTrainer(task, local)
        self._runner = BlockRunner(task, local, stacked=False, compiled=compiled, block_steps=steps)
        self._threads = CoreThreads(torch.get_num_threads())

    def train(
        self,
        instructions: Instructions,
        plan: BatchPlan,
        lr: float,
        buffers: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Trained:
        found = CohortResult(instructions.model, buffers, len(plan.clients), weights)

        def train_client(s: int) -> None:
            before = None if buffers is None else buffers[s]
            given, own_plan = instructions.select(s), plan.single_client(s)
            with torch.no_grad():  # applies to the current thread only
                if self._task.is_recurrent:
                    trained = self._reference.train_client(given, own_plan, lr, before)
                else:
                    steps = self._runner.start(given, own_plan, lr, before)
                    trained = self._runner.prepare(steps)()
                found.put(s, trained)

        self._threads.map(lambda s: partial(train_client, s), range(len(plan.clients)))
        return found.trained
