"""The two-client lower-bound problem on which paper 002 compares its methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedtide.checks import at_least, one_of
from fedtide.population import Population
from fedtide.problems.layout import Layout, Params
from fedtide.problems.problem import Batch, Evaluation, Plan, Problem, Task
from fedtide.randomness import uniforms

MU, H, L, LAMBDA, C, ZETA = 1.0, 16.0, 2.0, 1.0, 1.0, 16.0
B = np.sqrt(MU) * C / np.sqrt(H)


@dataclass(frozen=True)
class LowerBound4D(Problem):
    """Two clients in four dimensions that pull the fourth coordinate apart (paper 002, synthetic).

    With μ = 1, H = 16, L = 2, λ = 1, c = 1, ζ = 16 and b = √μ c / √H = 0.25,

        F_0(x) = g(x) + (L / 4) x_4² + ζ x_4,      F_1(x) = g(x) + (λ / 4) x_4² - ζ x_4,
        g(x)   = (μ / 2) (x_1 - c)² + (H / 2) (x_2 - b)² + (H / 8) (x_3² + max(0, x_3)²),

    from x_0 = 0. Every local step adds ξ ~ N(0, noise²) to the third coordinate of the gradient.
    The mean of the two is minimal, and 0, at (1, 0.25, 0, 0).

    Args:
        noise: the standard deviation of ξ; 0 is exact.
        logged: which objective the metric `loss` is: "consistent", the mean of F_0 and F_1, with
            (L + λ) / 8 · x_4²; or "published", the authors' program's, with (L + λ) / 4 · x_4².
            The difference moves the published round counts (800 and 1900 instead of 600 and 1500).

    Raises:
        BadInput: negative noise or another objective.

    >>> task = LowerBound4D().prepare(0, torch.device("cpu"), torch.float64)
    >>> task.evaluate(task.start).metrics["loss"]
    1.0
    """

    noise: float = 1.0
    logged: Literal["consistent", "published"] = "consistent"

    def __post_init__(self) -> None:
        at_least("noise", self.noise, 0)
        one_of("logged", self.logged, Literal["consistent", "published"])

    def prepare(self, seed: int, device: torch.device, dtype: torch.dtype) -> LowerBound4DTask:
        """Return the task; the noise is drawn from the keys of the steps."""
        return LowerBound4DTask(self, device, dtype)


class LowerBound4DTask(Task):
    """The two clients on a device."""

    def __init__(self, problem: LowerBound4D, device: torch.device, dtype: torch.dtype) -> None:
        self._problem = problem
        self.start = torch.zeros(4, dtype=dtype, device=device)
        self.layout = Layout({"x": (4,)})
        self.population = Population(2)
        self._curvature = self.start.new_tensor([L / 4, LAMBDA / 4])
        self._slope = self.start.new_tensor([ZETA, -ZETA])

    def pooled(self) -> LowerBound4DTask:
        """Return the task of the mean of the two."""
        pooled = LowerBound4DTask(self._problem, self.start.device, self.start.dtype)
        pooled.population = Population(1)
        pooled._curvature = self._curvature.mean(dim=0, keepdim=True)
        pooled._slope = self._slope.mean(dim=0, keepdim=True)
        return pooled

    def loss(self, params: Params, *batch: Tensor) -> Tensor:
        """Return F_n(x) + ξ x_3, with the batch (curvature, slope, ξ)."""
        curvature, slope, noise = batch
        x = params["x"]
        own = curvature * x[3] ** 2 + slope * x[3]
        return _shared(x) + own + noise * x[2]

    def batches(self, plan: Plan) -> Batch:
        """Return each client's fourth coordinate, and ξ for every step."""
        clients = torch.as_tensor(plan.clients, device=self.start.device)
        u, v = (uniforms(0, name, plan.keys.view(np.uint64)) for name in ("radius", "angle"))
        normal = np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v)
        noise = torch.as_tensor(self._problem.noise * normal).to(self.start)
        return self._curvature[clients][None], self._slope[clients][None], noise

    def evaluate(self, x: Tensor) -> Evaluation:
        """Return the logged objective and both clients' own."""
        x = x.double()
        own = self._curvature.double() * x[3] ** 2 + self._slope.double() * x[3]
        losses = (_shared(x) + own).cpu().numpy()
        loss = float(losses.mean())
        if self._problem.logged == "published":
            loss += (L + LAMBDA) / 8 * float(x[3] ** 2)
        return Evaluation({"loss": loss}, {"loss": losses})


def _shared(x: Tensor) -> Tensor:
    """Return g(x)."""
    third = x[2] ** 2 + torch.clamp(x[2], min=0) ** 2
    shared: Tensor = MU / 2 * (x[0] - C) ** 2 + H / 2 * (x[1] - B) ** 2 + H / 8 * third
    return shared
