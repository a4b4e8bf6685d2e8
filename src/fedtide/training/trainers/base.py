"""The contract of a trainer, and the gradient of a local step that all trainers share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.algorithms.base import Instructions
from fedtide.device_copies import to_device_of
from fedtide.errors import InvalidInputError
from fedtide.problems.base import BatchPlan, Gradient, Task
from fedtide.problems.layout import Params
from fedtide.training.local_training import LocalTraining

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Trained:
    """The result of the local training of S clients.

    Args:
        deltas: the updates Δ_n = y_n - x, shape (S, d), or their weighted sum, shape (d,), if that
            was asked for.
        buffers: the clients' buffers, such as running statistics, shape (S, d_b); None: none.
    """

    deltas: Tensor
    buffers: Tensor | None = None

    def select(self, clients: slice | NDArray[np.int64]) -> Trained:
        """Return the results of these clients."""
        buffers = None if self.buffers is None else self.buffers[clients]
        return Trained(self.deltas[clients], buffers)

    @classmethod
    def join(cls, parts: Sequence[Trained]) -> Trained:
        """Return the results of several parts, concatenated in order."""
        if len(parts) == 1:
            return parts[0]
        buffers = [part.buffers for part in parts if part.buffers is not None]
        deltas = torch.cat([part.deltas for part in parts])
        return cls(deltas, torch.cat(buffers) if buffers else None)


class UnsuitableTrainerError(InvalidInputError):
    """This trainer cannot train the model; a data-dependent `if`, say, prevents stacking."""


class Trainer(ABC):
    """Trains a cohort; all trainers give the same updates up to rounding.

    Attributes:
        name: its name in experiment files.
        chunk: how many clients it trains at once; sums are added up in groups of this size. None:
            no fixed number.
        chunk_sizes: how many sizes its chunks may have; local steps are captured for each.
        own_threads: whether it trains on threads of its own. PyTorch's threads spin for some
            milliseconds after every operation that uses them, which would take cores away from the
            trainer's, so the rest of a round should use a single core.
    """

    name: str
    chunk: int | None = None
    chunk_sizes: int = 1
    own_threads: bool = False

    @abstractmethod
    def train(
        self,
        instructions: Instructions,
        plan: BatchPlan,
        lr: float,
        buffers: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Trained:
        """Return the updates and the buffers of the plan's clients.

        Args:
            instructions: how the cohort trains; corrections in the order of the plan's clients.
            plan: the minibatches of their local steps.
            lr: γ_t.
            buffers: each client's initial buffers, shape (S, d_b); None if the task has none.
            weights: a_n, shape (S,), to return Σ a_n Δ_n in place of the updates; then only a few
                updates are in memory at a time.
        """


class UpdateSum:
    """Adds up Σ a_n Δ_n of updates from several threads, always in the order of the clients.

    Hence the result does not depend on which thread is faster. An update that arrives before its
    turn is kept; all others are added by the core that has them in its cache.

    Args:
        weights: a_n, shape (S,).
        model: the clients' start model, shape (d,).
        group: the clients are summed in groups of this size, and then the groups, so that training
            in chunks of this size gives the same bits; None: a single group.

    Attributes:
        result: the sum, shape (d,).

    >>> total = UpdateSum(torch.tensor([1.0, 10.0]), torch.zeros(1))
    >>> total.put(1, torch.tensor([[2.0]]))
    >>> total.put(0, torch.tensor([[1.0]]))
    >>> total.result
    tensor([21.])
    """

    def __init__(self, weights: Tensor, model: Tensor, group: int | None = None) -> None:
        self.result = torch.zeros_like(model)
        self._group = group or max(1, len(weights))
        self._sum = self.result  # of the group whose turn it is
        self._weights = to_device_of(weights, model)
        self._waiting: dict[int, Tensor] = {}
        self._next = 0
        self._lock = Lock()

    def put(self, first: int, deltas: Tensor) -> None:
        """Take the updates of clients first, first + 1, ... of one group, shape (S', d)."""
        with self._lock:
            self._waiting[first] = deltas
            while (ready := self._waiting.pop(self._next, None)) is not None:
                end = self._next + len(ready)
                self._sum.addmv_(ready.T, self._weights[self._next : end])
                self._next = end
                if end % self._group == 0 or end == len(self._weights):
                    self._end_group()

    def _end_group(self) -> None:
        if self._sum is not self.result:
            self.result.add_(self._sum)
            self._sum.zero_()
        elif self._next < len(self._weights):
            self._sum = torch.zeros_like(self.result)


class CohortResult:
    """Collects the results of a cohort in parts that may arrive from several threads.

    Args:
        model: the clients' start model, shape (d,).
        buffers: each client's initial buffers, shape (S, d_b); None: there are none.
        size: S, how many clients train.
        weights: a_n, shape (S,), to collect the sum Σ a_n Δ_n; None: the updates themselves.
        group: see `UpdateSum`.

    >>> found = CohortResult(torch.zeros(1), None, size=2)
    >>> found.put(1, Trained(torch.tensor([2.0])))
    >>> found.put(0, Trained(torch.tensor([[1.0]])))
    >>> found.trained.deltas
    tensor([[1.],
            [2.]])
    """

    def __init__(
        self,
        model: Tensor,
        buffers: Tensor | None,
        size: int,
        weights: Tensor | None = None,
        group: int | None = None,
    ) -> None:
        self._sum = None if weights is None else UpdateSum(weights, model, group)
        deltas = model.new_empty(size, len(model)) if self._sum is None else self._sum.result
        self.trained = Trained(deltas, None if buffers is None else torch.empty_like(buffers))

    def put(self, first: int, part: Trained) -> None:
        """Take the results of some consecutive clients.

        Args:
            first: the position of the first of them in the cohort.
            part: their results; those of a single client may lack the dimension S.
        """
        deltas = part.deltas.reshape(-1, self.trained.deltas.shape[-1])
        rows = slice(first, first + len(deltas))
        if self._sum is None:
            self.trained.deltas[rows] = deltas
        else:
            self._sum.put(first, deltas)
        if self.trained.buffers is not None and part.buffers is not None:
            self.trained.buffers[rows] = part.buffers


def find_or_add(kept: deque[tuple[object, dict[Key, Value]]], of: object) -> dict[Key, Value]:
    """Return the dictionary kept for a key, after adding an empty one if there is none.

    Args:
        kept: the most recent pairs of a key and its dictionary.
        of: the key; compared by equality, since it may not be hashable.
    """
    for known, found in kept:
        if known == of:
            return found
    kept.append((of, {}))
    return kept[-1][1]


def local_gradient(
    task: Task,
    local: LocalTraining,
    gradients_at_start: bool,
    differentiate: Callable[[Callable[..., tuple[Tensor, Params]]], Gradient],
) -> Gradient:
    """Return the gradient of one client's local step, a pure function of tensors.

    gradient(y, x, correction, mu, buffers, *batch) = (g(y) + λ y + correction + μ (y - x), new
    buffers), with y, x, correction and the buffers as named tensors; correction is None if there
    is none, and mu, a 0-d tensor, is None without a proximal term. With AdamW, λ y is left out and
    applied in the step instead. With `gradients_at_start`, g is taken at x. `differentiate` turns
    the loss into g.
    """
    loss_gradient = differentiate(task.loss_and_buffers)
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
