"""The readable trainer: one client after another, one step after another."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedtide.problems.base import Batch, BatchPlan, Task
from fedtide.problems.layout import Params
from fedtide.training.local_training import LocalTraining
from fedtide.training.trainers.base import RoundContext, Trainer, local_direction


class ReferenceTrainer(Trainer):
    """Trains client by client with plain tensors; what the faster trainers are held to.

    Args:
        task: what is learnt.
        local: what a client does in a round.
    """

    name = "reference"

    def __init__(self, task: Task, local: LocalTraining) -> None:
        self._task, self._local = task, local

    def train(
        self, round: RoundContext, plan: BatchPlan, correction: Tensor | None = None
    ) -> Tensor:
        """Return the updates, shape (S, d)."""
        updates = torch.empty(len(plan.clients), len(round.start)).to(round.start)
        batches = list(self._task.batches(plan))
        for s, steps in enumerate(plan.steps.tolist()):
            own = [tuple(tensor[s] for tensor in batch) for batch in batches[:steps]]
            client_correction = None if correction is None else correction[s]
            model = self._train_client(round, own, client_correction)
            updates[s] = model - round.start
        return updates

    def _train_client(
        self, round: RoundContext, batches: list[Batch], correction: Tensor | None
    ) -> Tensor:
        layout, projection = self._task.layout, self._local.projection
        direction = local_direction(self._task, self._local, round.gradients_at_start, _gradient)
        mu = round.start.new_tensor(round.mu) if round.mu else None
        x = y = layout.unflatten(round.start)
        m = {name: torch.zeros_like(tensor) for name, tensor in x.items()}
        corrections = None if correction is None else layout.unflatten(correction)
        for batch in batches:
            m = direction(y, m, x, corrections, mu, *batch)
            y = {name: y[name] - round.lr * m[name] for name in y}
            if projection is not None:
                y = layout.unflatten(projection(layout.flatten(y)))
        return layout.flatten(y)


def _gradient(loss: Callable[..., Tensor]) -> Callable[..., Params]:
    """Return the gradient of a loss by its first argument.

    It is what `torch.func.grad` returns, which would take a second to import the compiler first: a
    second for every message to a client of a deployment.
    """

    def gradient(params: Params, *batch: Tensor) -> Params:
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
        with torch.enable_grad():
            value = loss(leaves, *batch)
        slopes = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        return {
            name: torch.zeros_like(tensor) if slope is None else slope
            for (name, tensor), slope in zip(leaves.items(), slopes, strict=True)
        }

    return gradient
