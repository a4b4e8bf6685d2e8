"""Quadratic clients, whose optimum and trajectories have closed forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.device_copies import to_device_of
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.problems.base import BatchInputs, BatchPlan, Evaluation, Problem, Task
from fedtide.problems.layout import Layout, Params
from fedtide.spec import spec
from fedtide.validation import require_numbers

Array = Sequence[Any] | NDArray[Any] | Tensor


@spec
class Quadratic(Problem):
    """F_n(x) = ½ (x - e_n)ᵀ A_n (x - e_n), with exact gradients.

    The objective is the mean of the F_n, minimal at x* = (Σ A_n)⁻¹ Σ A_n e_n where Σ A_n is
    invertible. Metrics: `loss`, the mean of F_n(x); clients: `loss`, F_n(x).

    Args:
        matrices: A_n, shape (N, d, d), symmetric.
        centers: e_n, shape (N, d).
        start: x_0, shape (d,); None is the origin.

    Raises:
        InvalidInputError: incompatible shapes, an asymmetric matrix, or a non-finite number.

    >>> problem = Quadratic(matrices=[[[2.0]], [[2.0]]], centers=[[0.0], [1.0]], start=[3.0])
    >>> task = problem.prepare(0, torch.device("cpu"), torch.float64)
    >>> task.evaluate(task.start).metrics["loss"]
    6.5
    """

    matrices: Array
    centers: Array
    start: Array | None = None

    def __post_init__(self) -> None:
        for name, dimensions in (("centers", 2), ("matrices", 3), ("start", 1)):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, require_numbers(name, value, dimensions))
        a, e = np.asarray(self.matrices), np.asarray(self.centers)
        if len(e) == 0:
            raise InvalidInputError("centers: no clients; give at least 1")
        expected = (*e.shape, e.shape[1])
        if a.shape != expected:
            raise InvalidInputError(
                f"matrices: shape {a.shape} is not {expected}; give one matrix per center"
            )
        if not np.allclose(a, a.transpose(0, 2, 1)):
            raise InvalidInputError("matrices: a matrix is not symmetric; use (A + Aᵀ) / 2")
        if self.start is not None and np.shape(self.start) != e.shape[1:]:
            raise InvalidInputError(
                f"start: shape {np.shape(self.start)} is not {e.shape[1:]}; give d numbers"
            )

    @classmethod
    def two_clients(cls, first: float = 0.0, second: float = 1.0, start: float = 0.0) -> Quadratic:
        """Return F_n(x) = (x - e_n)² with e = (first, second) and x_0 = start (Yan et al. 2020)."""
        return cls(matrices=[[[2.0]], [[2.0]]], centers=[[first], [second]], start=[start])

    def prepare(self, seed: int, device: torch.device, dtype: torch.dtype) -> QuadraticTask:
        """Return the task; it is deterministic."""
        return QuadraticTask(self, device, dtype)


class QuadraticTask(Task):
    """Quadratic clients on a device."""

    def __init__(self, problem: Quadratic, device: torch.device, dtype: torch.dtype) -> None:
        self._a = torch.tensor(problem.matrices).to(device, dtype)
        self._e = torch.tensor(problem.centers).to(device, dtype)
        clients, d = self._e.shape
        start = np.zeros(d) if problem.start is None else problem.start
        self.start = torch.tensor(start).to(device, dtype)
        self.layout = Layout({"x": (d,)})
        self.population = Population(clients)

    def loss(self, params: Params, *batch: Tensor) -> Tensor:
        """Return F_n(x), with the batch (A_n, e_n)."""
        a, e = batch
        offset = params["x"] - e
        return 0.5 * (offset @ (a @ offset))

    def batch_inputs(self, plan: BatchPlan) -> BatchInputs:
        """Return (A_n, e_n) of the cohort, the same for all steps."""
        clients = to_device_of(torch.as_tensor(plan.clients), self._a)[None]
        return self._a[clients], self._e[clients]

    def evaluate(
        self, x: Tensor, clients: bool = True, buffers: Tensor | None = None
    ) -> Evaluation:
        """Return F_n(x) of every client and their mean."""
        offset = x - self._e
        losses = 0.5 * torch.einsum("ni,nij,nj->n", offset, self._a, offset)
        figures = {"loss": losses.double().cpu().numpy()}
        return Evaluation({"loss": float(losses.double().mean())}, figures)

    def pooled(self) -> QuadraticTask:
        """Return the task of the mean function, up to a constant: Ā = mean A_n, ē = Ā⁺ mean A e."""
        a = self._a.double().mean(dim=0)
        slope = torch.einsum("nij,nj->i", self._a.double(), self._e.double()) / len(self._a)
        center = torch.linalg.pinv(a, hermitian=True) @ slope
        mean = Quadratic(a[None].cpu(), center[None].cpu(), self.start.cpu())
        return QuadraticTask(mean, self.start.device, self.start.dtype)
