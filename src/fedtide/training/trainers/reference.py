"""The readable trainer: one client after another, one step after another."""

from __future__ import annotations

from torch import Tensor

from fedtide.algorithms.base import Instructions
from fedtide.problems.base import BatchPlan, Task, loss_gradient
from fedtide.training.local_step import Moments, adam_scales, local_gradient, step_direction
from fedtide.training.local_training import LocalTraining
from fedtide.training.trainers.base import CohortResult, Trained, Trainer


class ReferenceTrainer(Trainer):
    """Trains client by client with plain tensors; faster trainers are tested against it.

    Args:
        task: what is learnt.
        local: what a client does in a round.
    """

    name = "reference"

    def __init__(self, task: Task, local: LocalTraining) -> None:
        self._task, self._local = task, local

    def train(
        self,
        instructions: Instructions,
        plan: BatchPlan,
        lr: float,
        buffers: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Trained:
        found = CohortResult(instructions.model, buffers, len(plan.clients), weights)
        for s in range(len(plan.clients)):
            before = None if buffers is None else buffers[s]
            own = plan.single_client(s)
            found.put(s, self.train_client(instructions.select(s), own, lr, before))
        return found.trained

    def train_client(
        self, instructions: Instructions, plan: BatchPlan, lr: float, buffers: Tensor | None
    ) -> Trained:
        """Return Δ_n, shape (d,), and the buffers, (d_b,), after a single client's steps.

        Any thread may call it.

        Args:
            instructions: for this client; the correction has shape (d,).
            plan: its minibatches.
            lr: γ.
            buffers: its initial buffers, shape (d_b,); None: there are none.
        """
        task, local = self._task, self._local
        layout, projection, start = task.layout, local.projection, instructions.model
        gradient = local_gradient(task, local, instructions.gradients_at_start, loss_gradient)
        mu = start.new_full((), instructions.mu) if instructions.mu else None
        flat = instructions.correction
        correction = None if flat is None else layout.unflatten(flat)
        x = y = layout.unflatten(start)
        named = task.unflatten_buffers(buffers)
        moments: Moments = ()
        all_scales = adam_scales(local, len(plan.step_index))
        for batch, scales in zip(task.batches(plan), all_scales, strict=True):
            own = (part[0] for part in batch)
            g, named = gradient(y, x, correction, mu, named, *own)
            direction, moments = step_direction(local, y, g, moments, scales)
            y = {name: y[name] - lr * direction[name] for name in y}
            if projection is not None:
                y = layout.unflatten(projection(layout.flatten(y)))
        after = None
        if buffers is not None and task.buffer_layout is not None:
            after = task.buffer_layout.flatten(named)
        return Trained(layout.flatten(y) - start, after)
