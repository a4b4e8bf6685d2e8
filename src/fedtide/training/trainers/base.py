"""The contract of a trainer, and the gradient of a local step that all trainers share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedtide.algorithms.base import Instructions
from fedtide.errors import InvalidInputError
from fedtide.problems.base import BatchPlan, Task
from fedtide.problems.layout import Params
from fedtide.training.local_training import LocalTraining


@dataclass(frozen=True)
class Trained:
    """What S clients have after their local training.

    Args:
        deltas: the updates Δ_n = y_n - x, shape (S, d).
        buffers: the clients' buffers, such as running statistics, shape (S, d_b); None: none.
    """

    deltas: Tensor
    buffers: Tensor | None = None


class StackingError(InvalidInputError):
    """The model cannot be trained for several clients at once, as with a data-dependent `if`."""


class Trainer(ABC):
    """Trains a cohort; all trainers give the same updates up to rounding.

    Attributes:
        name: its name in experiment files.
        chunk: how many clients it trains at once, if it concatenates the updates of chunks.
        own_threads: whether it trains on threads of its own. PyTorch's threads wait busily for some
            milliseconds after every operation that uses them, and would take cores from these, so
            the rest of a round should use a single one.
    """

    name: str
    chunk: int | None = None
    own_threads: bool = False

    @abstractmethod
    def train(
        self, instructions: Instructions, plan: BatchPlan, lr: float, buffers: Tensor | None = None
    ) -> Trained:
        """Return the updates and the buffers of the plan's clients.

        Args:
            instructions: how the cohort trains; corrections in the order of the plan's clients.
            plan: the minibatches of their local steps.
            lr: γ_t.
            buffers: where each client's buffers start, shape (S, d_b); None where the task has
                none.
        """


LocalGradient = Callable[..., tuple[Params, Params]]


def local_gradient(
    task: Task,
    local: LocalTraining,
    gradients_at_start: bool,
    differentiate: Callable[..., Callable[..., Any]],
) -> LocalGradient:
    """Return the gradient of one client's local step, a pure function of tensors.

    gradient(y, x, correction, mu, buffers, *batch) = (g(y) + λ y + correction + μ (y - x), new
    buffers), with y, x, correction and the buffers as named tensors; correction is None without
    one, and mu, a 0-d tensor, is None without a proximal term. λ y is left to AdamW's step. With
    `gradients_at_start`, g is taken at x. `differentiate` turns the loss into g.
    """
    loss_gradient = differentiate(task.loss_and_buffers, has_aux=True)
    decay = 0.0 if local.optimizer == "adamw" else local.weight_decay

    def gradient(
        y: Params,
        x: Params,
        correction: Params | None,
        mu: Tensor | None,
        buffers: Params,
        *batch: Tensor,
    ) -> tuple[Params, Params]:
        g, buffers = loss_gradient(x if gradients_at_start else y, buffers, *batch)
        if decay:
            g = {name: g[name] + decay * y[name] for name in y}
        if correction is not None:
            g = {name: g[name] + correction[name] for name in y}
        if mu is not None:
            g = {name: g[name] + mu * (y[name] - x[name]) for name in y}
        return g, buffers

    return gradient
