"""The readable trainer: one client after another, one step after another."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtide.problems.problem import Plan, Task
from fedtide.training.local import LocalTraining
from fedtide.training.trainer import Round, Trainer, local_step, of_step


class ReferenceTrainer(Trainer):
    """Trains client by client with plain tensors; what the faster trainers are held to.

    Args:
        task: what is learnt.
        local: what a client does in a round.
    """

    name = "reference"

    def __init__(self, task: Task, local: LocalTraining) -> None:
        self._task, self._local = task, local

    def train(self, round: Round, plan: Plan, drift: Tensor | None = None) -> Tensor:
        """Return the updates, shape (S, d)."""
        updates = torch.empty(len(plan.clients), len(round.start)).to(round.start)
        batch = self._task.batches(plan)
        for s, steps in enumerate(plan.steps.tolist()):
            client_batches = tuple(tensor[:, s] for tensor in batch)
            client_drift = None if drift is None else drift[s]
            model = self._train_client(round, client_batches, steps, client_drift)
            updates[s] = model - round.start
        return updates

    def _train_client(
        self, round: Round, batch: tuple[Tensor, ...], steps: int, drift: Tensor | None
    ) -> Tensor:
        layout = self._task.layout
        lr, mu = round.start.new_tensor(round.lr), round.start.new_tensor(round.mu)
        x = y = layout.unflatten(round.start)
        m = {name: torch.zeros_like(t) for name, t in x.items()} if self._local.momentum else {}
        correction = None if drift is None else layout.unflatten(drift)
        step = local_step(self._task, self._local, round.frozen)
        for k in range(steps):
            y, m = step(y, m, x, correction, lr, mu if round.mu else None, *of_step(batch, k))
        return layout.flatten(y)
