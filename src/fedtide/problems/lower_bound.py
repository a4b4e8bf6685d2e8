"""The two-client lower-bound problem on which Crawshaw & Liu (2024) compare algorithms."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from fedtide.device_copies import to_device_of
from fedtide.population import Population
from fedtide.problems.base import BatchInputs, BatchPlan, Evaluation, Problem, Task
from fedtide.problems.layout import Layout, Params
from fedtide.randomness import uniforms
from fedtide.spec import AtLeast, spec

MU, H, L, LAMBDA, C, ZETA = 1.0, 16.0, 2.0, 1.0, 1.0, 16.0
B = np.sqrt(MU) * C / np.sqrt(H)


@spec
class LowerBound4D(Problem):
    """Two clients in four dimensions that disagree on the fourth coordinate.

    From Crawshaw & Liu 2024, section 5.1.

    With μ = 1, H = 16, L = 2, λ = 1, c = 1, ζ = 16 and b = √μ c / √H = 0.25,

        F_0(x) = g(x) + (L / 4) x_4² + ζ x_4,      F_1(x) = g(x) + (λ / 4) x_4² - ζ x_4,
        g(x)   = (μ / 2) (x_1 - c)² + (H / 2) (x_2 - b)² + (H / 8) (x_3² + max(0, x_3)²),

    from x_0 = 0. Every local step adds ξ ~ N(0, noise²) to the third coordinate of the gradient.
    The minimum of (F_0 + F_1) / 2 is 0, at (1, 0.25, 0, 0).

    Args:
        noise: the standard deviation of ξ; 0 gives exact gradients.
        logged: the metric `loss`: "consistent", (F_0 + F_1) / 2, which contains
            (L + λ) / 8 · x_4²; or "published", as the authors' program logs it, with
            (L + λ) / 4 · x_4². The choice changes the published round counts (800 and 1900 instead
            of 600 and 1500).

    Raises:
        InvalidInputError: negative noise or an unknown objective.

    >>> task = LowerBound4D().prepare(0, torch.device("cpu"), torch.float64)
    >>> task.evaluate(task.start).metrics["loss"]
    1.0
    """

    noise: Annotated[float, AtLeast(0)] = 1.0
    logged: Literal["consistent", "published"] = "consistent"

    def prepare(self, seed: int, device: torch.device, dtype: torch.dtype) -> LowerBound4DTask:
        """Return the task; the noise is a function of the keys of the steps."""
        return LowerBound4DTask(self, device, dtype)


class LowerBound4DTask(Task):
    """The two clients on a device.

    Both functions are ½ Σ k_j (x_j - c_j)² + (H / 8) max(0, x_3)² + Σ l_j x_j; the slope l_3 is the
    noise.
    """

    def __init__(self, problem: LowerBound4D, device: torch.device, dtype: torch.dtype) -> None:
        self._problem = problem
        self.start = torch.zeros(4, dtype=dtype, device=device)
        self.layout = Layout({"x": (4,)})
        self.population = Population(2)
        self._center = self.start.new_tensor([C, B, 0, 0])
        self._curvatures = self.start.new_tensor([[MU, H, H / 4, own / 2] for own in (L, LAMBDA)])
        self._slopes = self.start.new_tensor([[0, 0, 0, ZETA], [0, 0, 0, -ZETA]])

    def pooled(self) -> LowerBound4DTask:
        """Return the task of the mean function (F_0 + F_1) / 2."""
        pooled = LowerBound4DTask(self._problem, self.start.device, self.start.dtype)
        pooled.population = Population(1)
        pooled._curvatures = self._curvatures.mean(dim=0, keepdim=True)
        pooled._slopes = self._slopes.mean(dim=0, keepdim=True)
        return pooled

    def loss(self, params: Params, *batch: Tensor) -> Tensor:
        """Return F_n(x) + ξ x_3, with the batch (k, l)."""
        curvature, slope = batch
        x = params["x"]
        offset = x - self._center
        quadratic = 0.5 * (curvature * offset * offset).sum(-1)
        positive = torch.relu(x[..., 2])
        value: Tensor = quadratic + (slope * x).sum(-1) + H / 8 * positive * positive
        return value

    def batch_inputs(self, plan: BatchPlan) -> BatchInputs:
        """Return each client's curvatures (1, S, 4), and slopes with the steps' noise (I, S, 4)."""
        clients = to_device_of(torch.as_tensor(plan.clients), self.start)
        u, v = (uniforms(0, name, plan.keys.view(np.uint64)) for name in ("radius", "angle"))
        normal = np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v)
        slopes = self._slopes[clients].expand(*plan.keys.shape, 4).clone()
        noise = torch.as_tensor(self._problem.noise * normal).to(self.start.dtype)
        slopes[..., 2] = to_device_of(noise, self.start)
        return self._curvatures[clients][None], slopes

    def evaluate(
        self, x: Tensor, clients: bool = True, buffers: Tensor | None = None
    ) -> Evaluation:
        """Return the logged objective as `loss`, and F_0(x) and F_1(x)."""
        losses = self.loss({"x": x}, self._curvatures, self._slopes).double().cpu().numpy()
        loss = float(losses.mean())
        if self._problem.logged == "published":
            loss += (L + LAMBDA) / 8 * float(x[3] ** 2)
        return Evaluation({"loss": loss}, {"loss": losses})
