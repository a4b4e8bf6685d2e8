"""The contract of a trainer, and the direction of a local step that all trainers share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from fedtide.algorithms.base import Instructions
from fedtide.problems.base import BatchPlan, Task
from fedtide.problems.layout import Params
from fedtide.training.local_training import LocalTraining


class Trainer(ABC):
    """Trains a cohort; all trainers give the same updates up to rounding.

    Attributes:
        name: its name in experiment files.
        chunk: how many clients it trains at once, if it concatenates the updates of chunks.
    """

    name: str
    chunk: int | None = None

    @abstractmethod
    def train(self, instructions: Instructions, plan: BatchPlan, lr: float) -> Tensor:
        """Return the updates Δ_n = y_n - x of the plan's clients, shape (S, d).

        Args:
            instructions: how the cohort trains; corrections in the order of the plan's clients.
            plan: the minibatches of their local steps.
            lr: γ_t.
        """


Direction = Callable[..., Params]


def local_direction(
    task: Task,
    local: LocalTraining,
    gradients_at_start: bool = False,
    differentiate: Callable[..., Direction] = torch.func.grad,
) -> Direction:
    """Return the direction of one client's local step, a pure function of tensors.

    direction(y, m, x, correction, mu, *batch) = β m + g(y) + λ y + correction + μ (y - x), with y,
    m, x and correction as named tensors; m is empty without momentum and in the first step,
    correction is None without one, and mu, a 0-d tensor, is None without a proximal term. With
    `gradients_at_start`, g is taken at x. The step is y ← Π(y - γ direction), m ← direction (see
    `LocalTraining`). `differentiate` turns the loss into g.
    """
    gradient = differentiate(task.loss)

    def direction(
        y: Params,
        m: Params,
        x: Params,
        correction: Params | None,
        mu: Tensor | None,
        *batch: Tensor,
    ) -> Params:
        d: Params = gradient(x if gradients_at_start else y, *batch)
        if local.weight_decay:
            d = {name: d[name] + local.weight_decay * y[name] for name in y}
        if correction is not None:
            d = {name: d[name] + correction[name] for name in y}
        if mu is not None:
            d = {name: d[name] + mu * (y[name] - x[name]) for name in y}
        if local.momentum and m:
            d = {name: d[name] + local.momentum * m[name] for name in y}
        return d

    return direction
