"""The trainer for networks that do not stack well, such as convolutions on CPU."""

from __future__ import annotations

from itertools import repeat

import numpy as np
import torch
from torch import Tensor

from fedtide.problems.problem import Plan, Task
from fedtide.training.local import LocalTraining
from fedtide.training.parallel import side_by_side
from fedtide.training.steps import Steps
from fedtide.training.trainer import Round, Trainer


class ThreadedTrainer(Trainer):
    """Trains one client per thread, each on one core, with channels-last images.

    Args:
        task: what is learnt.
        local: what a client does in a round.
        compiled: whether to use torch.compile (which needs a C++ compiler on CPU).
    """

    def __init__(self, task: Task, local: LocalTraining, compiled: bool = False) -> None:
        self.name = "threaded-compiled" if compiled else "threaded"
        self._task = task
        self._steps = Steps(task, local, stacked=False, compiled=compiled)
        self._threads = torch.get_num_threads()

    def train(self, round: Round, plan: Plan, drift: Tensor | None = None) -> Tensor:
        """Return the updates, shape (S, d)."""
        updates = torch.empty(len(plan.clients), len(round.start)).to(round.start)
        steps = plan.steps.tolist()

        def train_client(s: int) -> None:
            client = plan.take(np.array([s]))
            model = self._train_client(round, client, steps[s], None if drift is None else drift[s])
            torch.sub(model, round.start, out=updates[s])

        side_by_side(train_client, range(len(steps)), self._threads)
        return updates

    @torch.no_grad()
    def _train_client(self, round: Round, client: Plan, steps: int, drift: Tensor | None) -> Tensor:
        """Return the model y_n after the local steps, shape (d,)."""
        layout = self._task.layout
        x = [_channels_last(t) for t in layout.unflatten(round.start).values()]
        corrections = [] if drift is None else list(layout.unflatten(drift).values())
        batches = (tuple(_own(part) for part in batch) for batch in self._task.batches(client))
        models = self._steps.take(
            round,
            y=[t.clone() for t in x],  # they move in place
            x=x,
            drift=corrections,
            batches=batches,
            active=repeat(None, steps),
        )
        return torch.cat([t.flatten() for t in models])


def _channels_last(tensor: Tensor) -> Tensor:
    """Return images and filters with the channels as the fastest dimension."""
    if tensor.dim() != 4:
        return tensor
    return tensor.contiguous(memory_format=torch.channels_last)


def _own(part: Tensor) -> Tensor:
    """Return the part of a batch without the dimension over clients, (1, ...)."""
    return _channels_last(part[0])
