"""The readable trainer: one client after another, one step after another."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtide.algorithms.base import Instructions
from fedtide.problems.base import Batch, BatchPlan, Task, loss_gradient
from fedtide.training.local_training import LocalTraining
from fedtide.training.trainers.base import Trainer, local_direction


class ReferenceTrainer(Trainer):
    """Trains client by client with plain tensors; the faster trainers are tested equal to it.

    Args:
        task: what is learnt.
        local: what a client does in a round.
    """

    name = "reference"

    def __init__(self, task: Task, local: LocalTraining) -> None:
        self._task, self._local = task, local

    def train(self, instructions: Instructions, plan: BatchPlan, lr: float) -> Tensor:
        start = instructions.model
        updates = torch.empty(len(plan.clients), len(start)).to(start)
        batches = list(self._task.batches(plan))
        for s, steps in enumerate(plan.steps.tolist()):
            own = [tuple(tensor[s] for tensor in batch) for batch in batches[:steps]]
            updates[s] = self._train_client(instructions.select(s), own, lr) - start
        return updates

    def _train_client(self, instructions: Instructions, batches: list[Batch], lr: float) -> Tensor:
        layout, projection = self._task.layout, self._local.projection
        at_start, start = instructions.gradients_at_start, instructions.model
        direction = local_direction(self._task, self._local, at_start, loss_gradient)
        mu = start.new_tensor(instructions.mu) if instructions.mu else None
        flat = instructions.correction
        correction = None if flat is None else layout.unflatten(flat)
        x = y = layout.unflatten(start)
        m = {name: torch.zeros_like(tensor) for name, tensor in x.items()}
        for batch in batches:
            m = direction(y, m, x, correction, mu, *batch)
            y = {name: y[name] - lr * m[name] for name in y}
            if projection is not None:
                y = layout.unflatten(projection(layout.flatten(y)))
        return layout.flatten(y)
