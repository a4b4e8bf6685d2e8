"""How the clients that train in a round are cut into chunks: decided here alone, once a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.algorithms import ClientUpdates, Cohort
from fedtide.problems import Task
from fedtide.training import devices
from fedtide.training.minibatches import MinibatchPlanner
from fedtide.training.trainers.base import Trainer

Weigh = Callable[[ClientUpdates], Tensor | None]
"""Returns the weights a_n if the sum Σ a_n Δ_n may replace a chunk's updates, otherwise None."""

_COPIED = 2**21  # bytes up to which concatenating chunks is cheaper than absorbing each


@dataclass(frozen=True)
class RoundPlan:
    """How the clients that train in a round are cut into chunks.

    Args:
        size: how many clients train, and are absorbed, together at most.
        kept: how many of them if every update is kept: a chunk whose sum is not finite trains again
            in parts of this size.
        weigh: says for which chunks a sum may replace the updates; None: for none.
    """

    size: int
    kept: int
    weigh: Weigh | None = None


class RoundPlanner:
    """Plans rounds, each from the clients that train in it; these may not be those that reported.

    Args:
        task: what is learnt.
        planner: plans the minibatches.
        trainer: trains the chunks.
        max_bytes: the memory that the updates of a chunk may take, and the plan of its minibatches.
        most: how many clients may train together at most; None: no further limit.
        centralised: whether one client trains on behalf of all of them.
        weigh: see `RoundPlan`.
        adds_up: whether cohorts larger than a chunk may train as one whose updates are added up.
    """

    def __init__(
        self,
        task: Task,
        planner: MinibatchPlanner,
        trainer: Trainer,
        max_bytes: int,
        most: int | None,
        centralised: bool,
        weigh: Weigh | None,
        adds_up: bool,
    ) -> None:
        self._task, self._planner, self._trainer = task, planner, trainer
        self._max_bytes, self._centralised = max_bytes, centralised
        self._weigh = None if centralised else weigh
        self._adds_up = adds_up and most is None
        self._largest = self._largest_chunk(most)

    def plan(self, cohort: Cohort, lr: float) -> RoundPlan:
        """Return the plan of a round with γ_t = `lr` in which these clients train."""
        if self._centralised:
            return RoundPlan(len(cohort), len(cohort))
        size = self._fitting_chunk(cohort)
        together = self._summed_chunk(cohort, lr, size)
        return RoundPlan(together, self._largest, self._weigh)

    def _largest_chunk(self, most: int | None) -> int:
        """Return how many clients train together if their updates may take `max_bytes`."""
        start, together = self._task.start, self._trainer.chunk
        model_bytes = len(start) * start.element_size()
        size = max(1, devices.stack_bytes(start, self._max_bytes) // model_bytes)
        if together is not None and size > together:
            is_large = together * model_bytes > _COPIED
            size = together if is_large else size - size % together
        return size if most is None else min(size, most)

    def _fitting_chunk(self, cohort: Cohort) -> int:
        """Return how many of these clients train together if their plan may take `max_bytes`.

        A plan is padded: every client has room for the most steps and the widest minibatch of any.
        A trainer gets at least as many clients as it trains at once.
        """
        padded = self._planner.padded_bytes(cohort.clients.numpy())
        if padded == 0:
            return self._largest
        at_once = self._trainer.chunk or 2 * torch.get_num_threads()
        return min(self._largest, max(at_once, self._max_bytes // padded))

    def _summed_chunk(self, cohort: Cohort, lr: float, size: int) -> int:
        """Return how many clients train together: all if their updates are added up, else `size`.

        When updates are added up, few are in memory at a time, and threads need not wait for one
        another at the end of every chunk. The trainer adds them in groups of the chunk size, so the
        sum has the same bits. Clients that differ in the number of steps or the width of their
        minibatches stay in chunks, because a plan is padded to its largest client.
        """
        weigh, clients = self._weigh, cohort.clients.numpy()
        if weigh is None or not self._adds_up or len(cohort) <= size or self._trainer.chunk != size:
            return size
        if self._task.buffer_layout is not None or not self._planner.are_alike(clients):
            return size
        expected = without_deltas(self._task, cohort, lr, self._planner.steps_of(clients))
        return size if weigh(expected) is None else -(-len(cohort) // size) * size


def without_deltas(
    task: Task, cohort: Cohort, lr: float, steps: NDArray[np.int64]
) -> ClientUpdates:
    """Return all that is known of updates before training; `deltas` has no values."""
    start, samples = task.start, task.population.samples
    return ClientUpdates(
        clients=cohort.clients,
        weights=cohort.weights.to(start.dtype),
        deltas=start.new_empty(len(cohort), len(start), device="meta"),
        lr=lr,
        steps=torch.as_tensor(steps),
        samples=None if samples is None else torch.as_tensor(samples[cohort.clients.numpy()]),
    )
