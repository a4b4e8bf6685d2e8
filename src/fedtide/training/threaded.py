"""The trainer for networks that do not stack well, such as convolutions on CPU."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from fedtide.problems.problem import Batch, Plan, Task
from fedtide.training.local import LocalTraining
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

        with _single_threaded(), ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(train_client, range(len(steps))))
        return updates

    @torch.no_grad()
    def _train_client(self, round: Round, client: Plan, steps: int, drift: Tensor | None) -> Tensor:
        """Return the model y_n after the local steps, shape (d,)."""
        torch.set_num_threads(1)
        layout = self._task.layout
        x = [_channels_last(t) for t in layout.unflatten(round.start).values()]
        corrections = [] if drift is None else list(layout.unflatten(drift).values())
        batches: Batch = tuple(_squeezed(tensor) for tensor in self._task.batches(client))
        models = self._steps.take(
            round,
            y=[t.clone() for t in x],  # they move in place
            x=x,
            drift=corrections,
            batches=batches,
            active=[None] * steps,
        )
        return torch.cat([t.flatten() for t in models])


def _channels_last(tensor: Tensor) -> Tensor:
    """Return images and filters with the channels as the fastest dimension."""
    if tensor.dim() != 4:
        return tensor
    return tensor.contiguous(memory_format=torch.channels_last)


def _squeezed(tensor: Tensor) -> Tensor:
    """Return the batches of all steps without the dimension over clients, (I or 1, 1, ...)."""
    one = tensor[:, 0]
    if one.dim() != 5:
        return one
    images = _channels_last(one.flatten(0, 1))
    return images.view(one.shape[0], -1, *images.shape[1:])


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Let every operation of PyTorch use one core while clients are trained side by side."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
