"""The trainer for networks that do not stack well, such as convolutions on CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtide.problems.problem import Plan, Task
from fedtide.training.local import LocalTraining
from fedtide.training.parallel import side_by_side
from fedtide.training.steps import Steps
from fedtide.training.trainer import Round, Trainer

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
        self._steps = Steps(task, local, stacked=False, compiled=compiled, block=block)
        self._threads = torch.get_num_threads()

    def train(self, round: Round, plan: Plan, drift: Tensor | None = None) -> Tensor:
        """Return the updates, shape (S, d)."""
        updates = torch.empty(len(plan.clients), len(round.start)).to(round.start)

        def train_client(s: int) -> None:
            own = None if drift is None else drift[s]
            with torch.no_grad():  # which holds for the thread
                updates[s] = self._steps.take(round, plan.alone(s), own)

        side_by_side(train_client, range(len(plan.clients)), self._threads)
        return updates
