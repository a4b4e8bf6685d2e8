"""What clients do in a round, from the algorithm's instructions to their reports."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.algorithms import Algorithm, ClientUpdates, Instructions
from fedtide.errors import InvalidInputError, error_prefix
from fedtide.participation import Ids
from fedtide.problems import Task
from fedtide.training import LocalTraining
from fedtide.training.minibatches import MinibatchPlanner
from fedtide.training.trainers.base import RoundContext
from fedtide.training.trainers.select import TrainerName, choose_trainer

_COPIED = 2**21  # putting chunks together costs less than a further report up to so many bytes


class LocalRound:
    """Plans minibatches, trains clients, and makes reports of their updates.

    Args:
        task: what is learnt; the pooled task for a method without federation.
        local: what a client does in a round.
        seed: of the minibatches.
        trainer: its name.
        clients: how many clients are going to train in the whole run, about.
        compile: whether compiling is allowed.

    Attributes:
        feed: the minibatches; what it has taken belongs to a checkpoint.
        trainer: trains.
        choice: the trainer and why, for people.

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
        self._start, self._samples = task.start, task.population.samples
        with error_prefix("local"):
            self.feed = MinibatchPlanner(task.population, local, seed)
        if local.projection is not None:
            with error_prefix("local.projection"):
                local.projection.check(task.layout.size)
        self.trainer, self.choice = choose_trainer(trainer, task, local, clients, compile)
        one_step = LocalTraining(steps=1, lr=1.0)  # whatever else the local steps do to a gradient
        name = cast("TrainerName", self.trainer.name)
        self._slope, _ = choose_trainer(name, task, one_step, 0, compile)

    def chunk_size(self, max_bytes: int) -> int:
        """Return how many clients report together if their updates may take so much memory."""
        model_bytes = len(self._start) * self._start.element_size()
        fit, chunk = max(1, max_bytes // model_bytes), self.trainer.chunk
        if chunk is None or fit <= chunk:
            return fit
        return chunk if chunk * model_bytes > _COPIED else fit - fit % chunk

    def reports(
        self, asked: Instructions, clients: Ids, weights: NDArray[np.float64], lr: float
    ) -> ClientUpdates:
        """Return what these clients report, shape (S,), when they are asked like this."""
        plan = self.feed.plan(clients, asked.full_batch)
        shared = RoundContext(asked.model, lr, asked.mu, asked.gradients_at_start)
        return ClientUpdates(
            clients=self._tensor(clients),
            weights=self._tensor(weights).to(self._start.dtype),
            updates=self.trainer.train(shared, plan, asked.correction),
            lr=lr,
            steps=self._tensor(plan.steps),
            samples=None if self._samples is None else self._tensor(self._samples[clients]),
            gradients=self._gradients(clients, asked.model) if asked.gradients else None,
        )

    def pooled(self, model: Tensor, cohort: int, lr: float) -> ClientUpdates:
        """Return the report of the one client of a pooled task, who works for a whole cohort."""
        client, end, steps = np.zeros(1, dtype=np.int64), model, 0
        for _ in range(cohort):
            plan = self.feed.plan(client)
            end = end + self.trainer.train(RoundContext(end, lr), plan)[0]
            steps += int(plan.steps[0])
        return ClientUpdates(
            clients=self._tensor(client),
            weights=model.new_ones(1),
            updates=(end - model)[None],
            lr=lr,
            steps=self._tensor(client + steps),
        )

    def _gradients(self, clients: Ids, model: Tensor) -> Tensor:
        """Return ∇F_n at the model, over all samples of each client, shape (S, d)."""
        whole = self.feed.full_batch_plan(clients)
        return -self._slope.train(RoundContext(model, lr=1.0, gradients_at_start=True), whole)

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        return torch.as_tensor(array, device=self._start.device)


def check_fit(algorithm: Algorithm, local: LocalTraining) -> None:
    """Make sure that the algorithm can read what it needs off updates of such local training.

    Raises:
        InvalidInputError: it reads gradients, and momentum or a projection hides them.
    """
    if algorithm.requires_plain_sgd and (local.projection is not None or local.momentum):
        field = "momentum" if local.momentum else "projection"
        raise InvalidInputError(
            f"local.{field}: this algorithm reads gradients off the updates, which holds for "
            "plain local steps only; leave it out"
        )
