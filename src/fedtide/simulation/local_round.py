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
from fedtide.simulation.round_plan import RoundPlan, Weigh, without_deltas
from fedtide.training import LocalTraining
from fedtide.training.minibatches import MinibatchPlanner, check_minibatches
from fedtide.training.threads import single_threaded
from fedtide.training.trainers.select import TrainerName, choose_trainer

_logger = logging.getLogger("fedtide")

ChunkResult = tuple[ClientUpdates | WeightedTotal, Tensor | None]
"""A chunk's updates, or their sum, and its clients' buffers, shape (S, d_b); None: no buffers."""

TrainChunks = Callable[[Iterator[Chunk], RoundPlan, float, Buffers | None], Iterator[ChunkResult]]
"""Trains the chunks of a round as planned, given γ_t and the run's buffers; yields results in
order."""


@dataclass(frozen=True)
class _PlannedChunk:
    """Clients that train together.

    Args:
        instructions: how they train.
        cohort: the clients and their participation weights.
        plan: their minibatches.
        lr: γ_t.
        buffers: their initial buffers, shape (S, d_b); None: there are none.
    """

    instructions: Instructions
    cohort: Cohort
    plan: BatchPlan
    lr: float
    buffers: Tensor | None

    def select(self, which: NDArray[np.int64]) -> _PlannedChunk:
        """Return the part of the chunk with the clients at these positions."""
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
        task: what is learnt; the pooled task for a centralised method.
        local: what a client does in a round.
        seed: of the minibatches.
        trainer: its name.
        clients: roughly how many client updates this process will compute with these local steps.
        compile: whether compiling is allowed.

    Attributes:
        planner: plans the minibatches; a checkpoint stores its `steps_taken`.
        trainer: the trainer in use.
        choice: the trainer and why it was chosen, as text.

    Raises:
        InvalidInputError: the local training does not fit the task.
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
        """Return the context in which a round must run; see `Trainer.own_threads`."""
        return single_threaded() if self.trainer.own_threads else nullcontext()

    def evaluation_cost(self, cohort: float) -> float:
        """Return an upper bound on the cost of an evaluation, in rounds with `cohort` clients.

        Evaluating a sample takes a third of the operations of training on it, but outside of
        compiled blocks: with the smallest models it takes almost as long.
        """
        trained = cohort * self.planner.samples_per_round
        return self._task.evaluated_samples / trained if trained else 0.0

    def train_chunks(
        self, chunks: Iterator[Chunk], plan: RoundPlan, lr: float, buffers: Buffers | None
    ) -> Iterator[ChunkResult]:
        """Train chunks one after another; yield what `train` returns for each."""
        for instructions, cohort in chunks:
            start = None if buffers is None else buffers.of(cohort.clients)
            chunk = self._plan(instructions, cohort, lr, start)
            if len(cohort) <= plan.kept:
                yield self._train(chunk, plan.weigh)
            elif (found := self._sum(chunk, plan.weigh)) is not None:
                yield found
            else:
                for first in range(0, len(cohort), plan.kept):
                    part = np.arange(first, min(first + plan.kept, len(cohort)))
                    yield self._train(chunk.select(part), plan.weigh)

    def train_pooled(
        self, chunks: Iterator[Chunk], plan: RoundPlan, lr: float, buffers: Buffers | None
    ) -> Iterator[ChunkResult]:
        """Train the single client of a pooled task: one client's round for each of the cohort."""
        client = np.zeros(1, dtype=np.int64)
        for instructions, cohort in chunks:
            moved = None if buffers is None else buffers.of(cohort.clients[:1])
            start, end, steps = instructions.model, instructions.model, 0
            for _ in range(len(cohort)):
                batches = self.planner.plan(client)
                trained = self.trainer.train(Instructions(end), batches, lr, moved)
                end, moved = end + trained.deltas[0], trained.buffers
                steps += int(batches.steps[0])
            updates = ClientUpdates(
                clients=torch.as_tensor(client),
                weights=torch.ones(1, dtype=start.dtype),
                deltas=(end - start)[None],
                lr=lr,
                steps=torch.as_tensor(client + steps),
            )
            yield updates, moved

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
            buffers: each client's initial buffers, shape (S, d_b); None: there are none.
            weigh: gives a_n if Σ a_n Δ_n may be returned in place of the updates; None: it may not.
                If the sum is not finite, the updates are returned nevertheless.
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
        updates = without_deltas(self._task, chunk.cohort, chunk.lr, chunk.plan.steps)
        return replace(updates, deltas=trained.deltas, gradients=gradients), trained.buffers

    def _sum(self, chunk: _PlannedChunk, weigh: Weigh | None) -> ChunkResult | None:
        """Return the sum of the updates; None if it may not replace them or is not finite."""
        if weigh is None:
            return None
        weights = weigh(without_deltas(self._task, chunk.cohort, chunk.lr, chunk.plan.steps))
        if weights is None:
            return None
        trained = self.trainer.train(
            chunk.instructions, chunk.plan, chunk.lr, chunk.buffers, weights
        )
        if not (has_finite_sum(trained.deltas) and has_finite_sum(trained.buffers)):
            return None
        return WeightedTotal(chunk.cohort.clients, weights, trained.deltas), trained.buffers


def require_plain_updates(algorithm: Algorithm[Any]) -> None:
    """Check that the algorithm expects Δ_n of its clients.

    Raises:
        InvalidInputError: its clients send something else, which depends on their own memory.
    """
    if algorithm.traits.client_form:
        raise InvalidInputError(
            "algorithm: clients of a simulation have no memory of their own; give the method "
            "without ClientSideMemory, whose models are the same"
        )


def require_plain_sgd(algorithm: Algorithm[Any], local: LocalTraining) -> None:
    """Check that the algorithm can recover gradients from the updates of this local training.

    Raises:
        InvalidInputError: the algorithm needs plain local SGD, and `local` is something else.
    """
    if algorithm.traits.requires_plain_sgd and not local.is_plain_sgd:
        others = "optimizer" if local.projection is None else "projection"
        field = "momentum" if local.momentum else others
        raise InvalidInputError(
            f"local.{field}: this algorithm recovers gradients from updates, which needs plain "
            "local SGD; remove it"
        )
