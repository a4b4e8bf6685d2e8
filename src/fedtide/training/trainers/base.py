"""The contract of a trainer, and the local step that every trainer takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtide.problems.base import BatchPlan, Task
from fedtide.problems.layout import Params
from fedtide.training.local_training import LocalTraining


@dataclass(frozen=True)
class RoundContext:
    """What all clients of a cohort share in a round.

    Args:
        start: x, shape (d,).
        lr: γ_t.
        mu: μ, the proximal weight.
        gradients_at_start: whether every gradient is taken at x, so that Δ_n = -γ Σ_k g_k(x).
    """

    start: Tensor
    lr: float
    mu: float = 0.0
    gradients_at_start: bool = False


class Trainer(ABC):
    """Trains a cohort: the same updates, to rounding, whichever trainer it is.

    Attributes:
        name: what experiment files call it.
        chunk: how many clients it trains in one go, if it puts the updates of chunks together.
    """

    name: str
    chunk: int | None = None

    @abstractmethod
    def train(
        self, round: RoundContext, plan: BatchPlan, correction: Tensor | None = None
    ) -> Tensor:
        """Return the updates Δ_n = y_n - x of the plan's clients, shape (S, d).

        Args:
            round: what the clients share.
            plan: their local steps.
            correction: what is added to every local gradient of each client, shape (S, d).
        """


Direction = Callable[..., Params]


def local_direction(
    task: Task,
    local: LocalTraining,
    gradients_at_start: bool = False,
    differentiate: Callable[..., Direction] = torch.func.grad,
) -> Direction:
    """Return what one client steps along, a pure function of tensors (see LocalTraining).

    direction(y, m, x, correction, mu, *batch) = β m + g(y) + λ y + correction + μ (y - x), where y, m, x and
    correction go by name; m is empty without momentum or at first, correction None without a correction, and
    mu, a 0-d tensor, None without a proximal term. With `gradients_at_start` the gradient is taken at x. The
    step is y ← Π(y - γ direction), m ← direction. `differentiate` makes g of the loss.
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
