"""Problems whose clients hold functions or generated data: closed forms and those of papers."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.device_copies import to_device_of
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.problems.base import Batch, BatchInputs, BatchPlan, Evaluation, Problem, Task
from fedtide.problems.layout import Layout, Params
from fedtide.randomness import generator, uniforms
from fedtide.spec import AtLeast, spec
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


@spec
class Regression(Problem):
    """F_n(w) = 1 / (2 m) Σ_i (x_iᵀ w - y_i)² over the m samples of client n, without a bias.

    The data are `make_regression(samples, features, informative, noise, random_state=seed)` with
    standardised features, split at random into equal parts; w_0 = 0. Metrics: `loss`, the mean of
    F_n(w) over the clients, and `mse` = 2 · loss, which Rahimi & Kalogerias (2025) plot.

    Args:
        clients: N.
        samples: number of samples in total; the remainder of samples / N is left out.
        features: number of features, d.
        informative: how many features have a nonzero true weight.
        noise: the standard deviation of the noise in y.

    Raises:
        InvalidInputError: a count below 1, fewer than 2 samples, more informative features than
            features, or fewer samples than clients.

    >>> task = Regression(clients=10, samples=100).prepare(0, torch.device("cpu"), torch.float64)
    >>> task.population.samples[:3], task.layout.size
    (array([10, 10, 10]), 200)
    """

    clients: Annotated[int, AtLeast(1)] = 100
    samples: Annotated[int, AtLeast(2)] = 3000
    features: Annotated[int, AtLeast(1)] = 200
    informative: Annotated[int, AtLeast(1)] = 10
    noise: Annotated[float, AtLeast(0)] = 0.1

    def __post_init__(self) -> None:
        if self.informative > self.features:
            raise InvalidInputError(
                f"informative: {self.informative} of {self.features} features; give at most "
                f"{self.features}"
            )
        if self.samples < self.clients:
            raise InvalidInputError(
                f"clients: {self.clients} clients for {self.samples} samples; use fewer"
            )

    def prepare(self, seed: int, device: torch.device, dtype: torch.dtype) -> RegressionTask:
        from sklearn.datasets import make_regression  # slow to import

        features, targets = make_regression(
            self.samples,
            self.features,
            n_informative=self.informative,
            noise=self.noise,
            random_state=seed % 2**32,  # scikit-learn's range
        )
        features = (features - features.mean(axis=0)) / features.std(axis=0)
        each = self.samples // self.clients
        order = generator(seed, "regression").permutation(self.samples)[: each * self.clients]
        x = features[order].reshape(self.clients, each, self.features)
        y = targets[order].reshape(self.clients, each)
        return RegressionTask(
            torch.as_tensor(x).to(device, dtype), torch.as_tensor(y).to(device, dtype)
        )


class RegressionTask(Task):
    """The generated data of every client, on a device.

    Args:
        x: features, shape (N, m, d).
        y: targets, shape (N, m).
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._x, self._y = self.batch_data = x, y
        clients, each, features = x.shape
        self.start = x.new_zeros(features)
        self.layout = Layout({"w": (features,)})
        self.population = Population(clients, samples=np.full(clients, each, dtype=np.int64))

    def loss(self, params: Params, *batch: Tensor) -> Tensor:
        """Return half the mean squared error on the batch (x, y)."""
        x, y = batch
        return 0.5 * ((x @ params["w"] - y) ** 2).mean()

    def batch_inputs(self, plan: BatchPlan) -> BatchInputs:
        """Return the clients (1, S, 1) and the positions of each step's samples (I, S, B)."""
        assert plan.positions is not None
        clients = to_device_of(torch.as_tensor(plan.clients), self._x)
        positions = to_device_of(torch.as_tensor(plan.positions), self._x)
        return clients[None, :, None], positions

    def batch(self, *inputs: Tensor) -> Batch:
        """Return the cohort's samples, (S, B, d) and (S, B)."""
        clients, positions = inputs
        return self._x[clients, positions], self._y[clients, positions]

    def with_batch_data(self, data: tuple[Tensor, ...]) -> RegressionTask:
        """Return the task with other features and targets."""
        other = copy(self)
        other._x, other._y = data
        return other

    def evaluate(
        self, x: Tensor, clients: bool = True, buffers: Tensor | None = None
    ) -> Evaluation:
        """Return F_n(w) of every client, their mean, and the mean squared error."""
        losses = 0.5 * ((self._x @ x - self._y) ** 2).double().mean(dim=1)
        loss = float(losses.mean())
        return Evaluation({"loss": loss, "mse": 2 * loss}, {"loss": losses.cpu().numpy()})

    def pooled(self) -> RegressionTask:
        """Return the task of a single client that holds all samples."""
        return RegressionTask(self._x.flatten(0, 1)[None], self._y.flatten()[None])
