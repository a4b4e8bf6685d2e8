"""Weighted objectives Σ a_n F_n for any task and any algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedtide.client_values import Name, order_by_id, scale_to_finite_sum
from fedtide.device_copies import to_device_of
from fedtide.errors import InvalidInputError, quantify
from fedtide.population import Population
from fedtide.problems.base import Batch, BatchInputs, BatchPlan, Evaluation, Task
from fedtide.problems.layout import Params

Objective = Literal["uniform", "samples"] | Sequence[float] | Mapping[Name, float]
"""The a_n: 1 / N, the share of all samples, or given numbers (a list or by name) over their sum."""


class WeightedTask(Task):
    """A task in which client n minimises N a_n F_n, so that the mean over clients is Σ a_n F_n.

    An algorithm that minimises the mean therefore minimises Σ a_n F_n without further changes
    (Wang & Ji 2024, appendix A.1; Yan et al. 2020 scale losses by N m_n / Σ m likewise).

    Args:
        task: the task with the original F_n.
        weights: a_n >= 0 summing to 1, shape (N,).
    """

    def __init__(self, task: Task, weights: NDArray[np.float64]) -> None:
        for name in Task.__annotations__:
            setattr(self, name, getattr(task, name))
        self._task, self._weights = task, weights
        self.objective_weights = weights
        self.seed_family = None if task.seed_family is None else (WeightedTask, task.seed_family)
        self._factors = torch.as_tensor(len(weights) * weights).to(task.start)

    def loss(self, params: Params, *batch: Tensor) -> Tensor:
        """Return N a_n times the loss; the factor N a_n is the last part of the batch."""
        *rest, factor = batch
        return factor * self._task.loss(params, *rest)

    def loss_and_buffers(
        self, params: Params, buffers: Params, *batch: Tensor
    ) -> tuple[Tensor, Params]:
        """Return N a_n times the loss, and the new buffers of the original task."""
        *rest, factor = batch
        loss, moved = self._task.loss_and_buffers(params, buffers, *rest)
        return factor * loss, moved

    def batch_inputs(self, plan: BatchPlan) -> BatchInputs:
        """Return the inputs of the original task and the clients' factors (1, S)."""
        clients = to_device_of(torch.as_tensor(plan.clients), self.start)[None]
        return (*self._task.batch_inputs(plan), self._factors[clients])

    def batch(self, *inputs: Tensor) -> Batch:
        """Return the original batch with the clients' factors."""
        *original, factors = inputs
        return (*self._task.batch(*original), factors)

    def with_batch_data(self, data: tuple[Tensor, ...]) -> WeightedTask:
        """Return the task with other data of the original task."""
        other = copy(self)
        other._task = self._task.with_batch_data(data)
        return other

    @property
    def unweighted(self) -> Task:
        """The original task."""
        return self._task

    def pooled(self) -> Task:
        """Return the original task, pooled, if the weights are the shares of all samples.

        Raises:
            InvalidInputError: other weights, which samples in one pool cannot have.
        """
        samples = self.population.samples
        if samples is None or not np.allclose(self._weights, samples / samples.sum()):
            raise InvalidInputError(
                "objective: in pooled data every sample counts the same; give 'samples', or choose "
                "a federated method"
            )
        return self._task.pooled()

    def to_memory_format(self, tensor: Tensor) -> Tensor:
        """Return the tensor in the memory format of the original task."""
        return self._task.to_memory_format(tensor)

    def evaluate(
        self, x: Tensor, clients: bool = True, buffers: Tensor | None = None
    ) -> Evaluation:
        """Return the original evaluation with `loss` = Σ a_n F_n; client metrics are unweighted.

        Without the F_n, because clients are not evaluated, `loss` is that of the original task.
        """
        result = self._task.evaluate(x, clients, buffers)
        if "loss" not in result.clients:
            return result
        loss = float(self._weights @ result.clients["loss"])
        return replace(result, metrics={**result.metrics, "loss": loss})

    def evaluate_clients(
        self, x: Tensor, clients: NDArray[np.int64], buffers: Tensor | None = None
    ) -> dict[str, NDArray[np.float64]]:
        """Return the unweighted metrics of the original task."""
        return self._task.evaluate_clients(x, clients, buffers)

    def module(self, x: Tensor, buffers: Tensor | None = None) -> nn.Module:
        """Return the network of the original task."""
        return self._task.module(x, buffers)


def weigh_objective(task: Task, objective: Objective) -> Task:
    """Return the task whose mean over clients is this objective.

    Raises:
        InvalidInputError: the number of weights is not N, a weight is negative or not finite, all
            are 0, or "samples" where clients hold none.
    """
    if objective == "uniform":
        return task
    weights = scale_to_finite_sum(_read_weights(task.population, objective))
    return WeightedTask(task, weights / weights.sum())


def _read_weights(population: Population, objective: Objective) -> NDArray[np.float64]:
    if objective == "samples":
        if population.samples is None:
            raise InvalidInputError(
                "objective: 'samples' needs clients that hold samples; use 'uniform'"
            )
        return population.samples.astype(np.float64)
    weights = np.asarray(order_by_id("objective", objective, population), dtype=np.float64)
    if weights.shape != (population.clients,):
        raise InvalidInputError(
            f"objective: {quantify(weights.size, 'weight')} for "
            f"{quantify(population.clients, 'client')}; give one for each"
        )
    if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        raise InvalidInputError(
            "objective: weights must be finite, not negative, and not all 0; give positive numbers"
        )
    return weights
