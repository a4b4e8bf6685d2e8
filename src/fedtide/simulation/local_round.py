"""The clients' part of a round: from the algorithm's instructions to the clients' updates."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.algorithms import Algorithm, ClientUpdates, Cohort, Instructions
from fedtide.algorithms.base import WeightedTotal
from fedtide.algorithms.driver import Chunk
from fedtide.errors import InvalidInputError, error_prefix
from fedtide.problems import Task
from fedtide.problems.base import BatchPlan
from fedtide.simulation.buffers import Buffers
from fedtide.simulation.divergence import has_finite_sum
from fedtide.training import LocalTraining, devices
from fedtide.training.minibatches import MinibatchPlanner, check_minibatches
from fedtide.training.threads import single_threaded
from fedtide.training.trainers.select import TrainerName, choose_trainer

_logger = logging.getLogger("fedtide")

ChunkResult = tuple[ClientUpdates | WeightedTotal, Tensor | None]
"""The updates of a chunk, or their sum, and its clients' buffers, (S, d_b), if there are any."""

TrainRoundChunks = Callable[[Iterator[Chunk], float, Buffers | None], Iterator[ChunkResult]]
"""Trains the chunks of a round at a learning rate, from the buffers, and yields them in order."""

Weigh = Callable[[ClientUpdates], Tensor | None]
"""Returns the weights with which a sum may take the place of a chunk's updates, or None."""

_COPIED = 2**21  # bytes up to which concatenating chunks is cheaper than absorbing each


@dataclass(frozen=True)
class _PlannedChunk:
    """Clients that train together.

    Args:
        instructions: how they train.
        cohort: who.
        plan: their minibatches.
        lr: γ_t.
        buffers: where their buffers start, shape (S, d_b); None: there are none.
    """

    instructions: Instructions
    cohort: Cohort
    plan: BatchPlan
    lr: float
    buffers: Tensor | None

    def select(self, which: NDArray[np.int64]) -> _PlannedChunk:
        """Return the clients at these positions."""
        return _PlannedChunk(
            self.instructions.select(which),
            self.cohort.select(which),
            self.plan.select(which),
            self.lr,
            None if self.buffers is None else self.buffers[which],
        )


class LocalRound:
    """Plans minibatches, trains clients and collects their updates.

    Args:
        task: what is learnt; the pooled task for a method without federation.
        local: what a client does in a round.
        seed: of the minibatches.
        trainer: its name.
        clients: roughly how many client updates these local steps compute in this process.
        compile: whether compiling is allowed.

    Attributes:
        planner: of the minibatches; its `steps_taken` belongs to a checkpoint.
        trainer: the trainer in use.
        choice: the trainer and why it was chosen, for people.

    Raises:
        InvalidInputError: local training that does not fit the task.
    """

    def __init__(
        self,
        task: Task,
        local: LocalTraining,
        seed: int,
        trainer: TrainerName,
        clients: float,
        compile: bool = True,
    ) -> None:
        self._task = task
        with error_prefix("local"):
            self.planner = MinibatchPlanner(task.population, local, seed)
            check_minibatches(self.planner, task)
        if local.projection is not None:
            with error_prefix("local.projection"):
                local.projection.check(task.layout.size)
        self.trainer, self.choice = choose_trainer(trainer, task, local, clients, compile)

    def limit_threads(self) -> AbstractContextManager[None]:
        """Return the context in which a round runs, see `Trainer.own_threads`."""
        return single_threaded() if self.trainer.own_threads else nullcontext()

    def evaluation_cost(self, cohort: float) -> float:
        """Return what an evaluation costs at most, in rounds in which so many clients train.

        A sample that is only evaluated needs a third of the operations of one that is trained on,
        but outside of compiled blocks: with the smallest models it takes almost as long.
        """
        trained = cohort * self.planner.samples_per_round
        return self._task.evaluated_samples / trained if trained else 0.0

    def chunk_size(self, max_bytes: int, most: int | None) -> int:
        """Return how many clients train together if their updates may take `max_bytes`.

        Args:
            max_bytes: the memory of their updates.
            most: the largest number; None: no other limit.
        """
        start = self._task.start
        model_bytes = len(start) * start.element_size()
        max_bytes = devices.stack_bytes(start, max_bytes)
        size, together = max(1, max_bytes // model_bytes), self.trainer.chunk
        if together is not None and size > together:
            is_large = together * model_bytes > _COPIED
            size = together if is_large else size - size % together
        return size if most is None else min(size, most)

    def plan_size(self, cohort: Cohort, max_bytes: int, most: int) -> int:
        """Return how many clients of a cohort train together if their plan may take `max_bytes`.

        Every client of a plan has as many steps as the one with the most, and minibatches as wide
        as the widest. A trainer gets at least as many clients as it trains at once.

        Args:
            cohort: of the round.
            max_bytes: the memory of their plan.
            most: how many train together at most.
        """
        padded = self.planner.padded_bytes(cohort.clients.numpy())
        if padded == 0:
            return most
        at_once = self.trainer.chunk or 2 * torch.get_num_threads()
        return min(most, max(at_once, max_bytes // padded))

    def sum_size(self, cohort: Cohort, lr: float, weigh: Weigh | None, size: int) -> int:
        """Return how many clients of a cohort train together: all if their updates are added up.

        Few of these are in memory at a time, and threads need not wait for one another at the end
        of every chunk. The trainer adds them in the groups that the chunks would be, so the sum has
        the same bits. Clients whose steps differ in number or width are better kept apart, since
        the plan of all is as large as that of the largest.

        Args:
            cohort: of the round.
            lr: γ_t.
            weigh: says whether updates may be sums; None: they may not.
            size: how many train together if all updates are kept.
        """
        if weigh is None or len(cohort) <= size or self.trainer.chunk != size:
            return size
        clients = cohort.clients.numpy()
        if self._task.buffer_layout is not None or not self.planner.are_alike(clients):
            return size
        steps = self.planner.steps_of(clients)
        adds_up = weigh(self.without_deltas(cohort, lr, steps)) is not None
        return -(-len(cohort) // size) * size if adds_up else size

    def train_chunks(
        self,
        chunks: Iterator[Chunk],
        lr: float,
        buffers: Buffers | None,
        weigh: Weigh | None = None,
        size: int | None = None,
    ) -> Iterator[ChunkResult]:
        """Train chunks one after another; yield what `train` returns of each.

        Args:
            chunks: how they train, and who.
            lr: γ_t.
            buffers: of the run; None where there are none.
            weigh: says which chunks may be sums.
            size: of the parts of a chunk whose sum is not finite, which then train again; None: the
                chunk is one part.
        """
        for instructions, cohort in chunks:
            start = None if buffers is None else buffers.of(cohort.clients)
            chunk = self._plan(instructions, cohort, lr, start)
            if size is None or len(cohort) <= size:
                yield self._train(chunk, weigh)
            elif (found := self._sum(chunk, weigh)) is not None:
                yield found
            else:
                for first in range(0, len(cohort), size):
                    part = np.arange(first, min(first + size, len(cohort)))
                    yield self._train(chunk.select(part), weigh)

    def train(
        self,
        instructions: Instructions,
        cohort: Cohort,
        lr: float,
        buffers: Tensor | None = None,
        weigh: Weigh | None = None,
    ) -> ChunkResult:
        """Train these clients as instructed and return their updates and their buffers.

        Args:
            instructions: how they train.
            cohort: the clients.
            lr: γ_t.
            buffers: where each client's buffers start, shape (S, d_b); None where there are none.
            weigh: gives a_n if Σ a_n Δ_n may be returned in place of the updates; None: it may
                not. The updates are returned all the same if one of them may not be finite.
        """
        return self._train(self._plan(instructions, cohort, lr, buffers), weigh)

    def _plan(
        self, instructions: Instructions, cohort: Cohort, lr: float, buffers: Tensor | None
    ) -> _PlannedChunk:
        plan = self.planner.plan(cohort.clients.numpy(), instructions.full_batch)
        return _PlannedChunk(instructions, cohort, plan, lr, buffers)

    def _train(self, chunk: _PlannedChunk, weigh: Weigh | None) -> ChunkResult:
        """Train a chunk; return the sum of the updates if that is enough, or else all of them."""
        if (found := self._sum(chunk, weigh)) is not None:
            return found
        instructions, clients, gradients = chunk.instructions, chunk.plan.clients, None
        if instructions.gradients:
            whole = self.planner.full_batch_plan(clients)
            gradients = self._task.gradient(instructions.model, whole)
        trained = self.trainer.train(instructions, chunk.plan, chunk.lr, chunk.buffers)
        if instructions.end_gradients:
            ends = instructions.model + trained.deltas
            gradients = torch.cat(
                [
                    self._task.gradient(end, self.planner.full_batch_plan(clients[s : s + 1]))
                    for s, end in enumerate(ends)
                ]
            )
        updates = self.without_deltas(chunk.cohort, chunk.lr, chunk.plan.steps)
        return replace(updates, deltas=trained.deltas, gradients=gradients), trained.buffers

    def _sum(self, chunk: _PlannedChunk, weigh: Weigh | None) -> ChunkResult | None:
        """Return the sum of the updates; None: the method needs them all, or one is not finite."""
        if weigh is None:
            return None
        weights = weigh(self.without_deltas(chunk.cohort, chunk.lr, chunk.plan.steps))
        if weights is None:
            return None
        trained = self.trainer.train(
            chunk.instructions, chunk.plan, chunk.lr, chunk.buffers, weights
        )
        if not (has_finite_sum(trained.deltas) and has_finite_sum(trained.buffers)):
            return None
        return WeightedTotal(chunk.cohort.clients, weights, trained.deltas), trained.buffers

    def without_deltas(self, cohort: Cohort, lr: float, steps: NDArray[np.int64]) -> ClientUpdates:
        """Return what is known of updates before anyone has trained, with deltas (S, 0)."""
        start, samples = self._task.start, self._task.population.samples
        return ClientUpdates(
            clients=cohort.clients,
            weights=cohort.weights.to(start.dtype),
            deltas=start.new_empty(len(cohort), 0),
            lr=lr,
            steps=torch.as_tensor(steps),
            samples=None if samples is None else torch.as_tensor(samples[cohort.clients.numpy()]),
        )

    def train_pooled_chunks(
        self, chunks: Iterator[Chunk], lr: float, buffers: Buffers | None
    ) -> Iterator[ChunkResult]:
        """Train the only client of a pooled task for the cohorts of the chunks."""
        for instructions, cohort in chunks:
            start = None if buffers is None else buffers.of(cohort.clients[:1])
            yield self._train_pooled(instructions.model, len(cohort), lr, start)

    def _train_pooled(
        self, model: Tensor, cohort_size: int, lr: float, buffers: Tensor | None
    ) -> ChunkResult:
        """Train the only client of a pooled task, who works for a whole cohort.

        `buffers` are where it starts, shape (1, d_b); the last ones are returned, too.
        """
        client, end, steps = np.zeros(1, dtype=np.int64), model, 0
        for _ in range(cohort_size):
            plan = self.planner.plan(client)
            trained = self.trainer.train(Instructions(end), plan, lr, buffers)
            end, buffers = end + trained.deltas[0], trained.buffers
            steps += int(plan.steps[0])
        updates = ClientUpdates(
            clients=torch.as_tensor(client),
            weights=torch.ones(1, dtype=model.dtype),
            deltas=(end - model)[None],
            lr=lr,
            steps=torch.as_tensor(client + steps),
        )
        return updates, buffers


def require_plain_updates(algorithm: Algorithm[Any]) -> None:
    """Check that the algorithm expects Δ_n of its clients.

    Raises:
        InvalidInputError: its clients would send something else, from a memory of their own.
    """
    if algorithm.client_form:
        raise InvalidInputError(
            "algorithm: clients of a simulation have no memory of their own; give the method "
            "without ClientSideMemory, whose models are the same"
        )


def require_plain_sgd(algorithm: Algorithm[Any], local: LocalTraining) -> None:
    """Check that the algorithm can recover gradients from updates of such local training.

    Raises:
        InvalidInputError: the algorithm needs plain local SGD, and `local` is something else.
    """
    if algorithm.requires_plain_sgd and not local.is_plain_sgd:
        others = "optimizer" if local.projection is None else "projection"
        field = "momentum" if local.momentum else others
        raise InvalidInputError(
            f"local.{field}: this algorithm recovers gradients from updates, which needs plain "
            "local SGD; remove it"
        )
