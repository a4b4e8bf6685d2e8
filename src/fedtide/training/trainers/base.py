"""The contract of a trainer, and the collection of what the clients of a cohort return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
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
from fedtide.problems.base import BatchPlan

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


class CohortResult:
    """Collects the results of a cohort in parts that may arrive from several threads, in any order.

    A sum is always added up in the order of the clients, so that it does not depend on which thread
    is faster. A part that arrives before its turn is kept; all others are added by the core that
    has them in its cache.

    Args:
        model: the clients' start model, shape (d,).
        buffers: each client's initial buffers, shape (S, d_b); None: there are none.
        size: S, how many clients train.
        weights: a_n, shape (S,), to collect the sum Σ a_n Δ_n; None: the updates themselves.
        group: clients are added up in groups of this size, and then the groups, so that training
            in chunks of this size gives the same bits; None: a single group.

    >>> found = CohortResult(torch.zeros(1), None, size=2, weights=torch.tensor([1.0, 10.0]))
    >>> found.put(1, Trained(torch.tensor([2.0])))
    >>> found.put(0, Trained(torch.tensor([[1.0]])))
    >>> found.trained.deltas
    tensor([21.])
    """

    def __init__(
        self,
        model: Tensor,
        buffers: Tensor | None,
        size: int,
        weights: Tensor | None = None,
        group: int | None = None,
    ) -> None:
        self._weights = None if weights is None else to_device_of(weights, model)
        deltas = model.new_empty(size, len(model)) if weights is None else torch.zeros_like(model)
        self.trained = Trained(deltas, None if buffers is None else torch.empty_like(buffers))
        self._size, self._group = size, group or max(1, size)
        self._sum = deltas  # of the group whose turn it is
        self._waiting: dict[int, Tensor] = {}
        self._next = 0
        self._lock = Lock()

    def put(self, first: int, part: Trained) -> None:
        """Take the results of some consecutive clients, of one group.

        Args:
            first: the position of the first of them in the cohort.
            part: their results; those of a single client may lack the dimension S.
        """
        deltas = part.deltas.reshape(-1, self.trained.deltas.shape[-1])
        rows = slice(first, first + len(deltas))
        if self.trained.buffers is not None and part.buffers is not None:
            self.trained.buffers[rows] = part.buffers
        if self._weights is None:
            self.trained.deltas[rows] = deltas
            return
        with self._lock:
            self._waiting[first] = deltas
            while (ready := self._waiting.pop(self._next, None)) is not None:
                self._add(ready, self._weights)

    def _add(self, deltas: Tensor, weights: Tensor) -> None:
        """Add the updates of the next clients to the sum of their group; end it after the last."""
        end = self._next + len(deltas)
        self._sum.addmv_(deltas.T, weights[self._next : end])
        self._next = end
        if end % self._group and end < self._size:
            return
        total = self.trained.deltas
        if self._sum is not total:
            total.add_(self._sum)
            self._sum.zero_()
        elif end < self._size:
            self._sum = torch.zeros_like(total)


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
