"""Linear regression on scikit-learn's generated data, as in paper 004."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.problems.base import Batch, BatchInputs, BatchPlan, Evaluation, Problem, Task
from fedtide.problems.layout import Layout, Params
from fedtide.randomness import generator
from fedtide.validation import at_least


@dataclass(frozen=True)
class Regression(Problem):
    """F_n(w) = 1 / (2 m) Σ_i (x_iᵀ w - y_i)² over the m samples of client n, without a bias.

    The data are `make_regression(samples, features, informative, noise, random_state=seed)` with
    standardised features, dealt out at random in equal parts; w_0 = 0. Metrics: `loss`, the mean of
    F_n(w) over the clients, and `mse` = 2 · loss, which paper 004 plots.

    Args:
        clients: N.
        samples: of all clients together; the remainder of samples / N is left out.
        features: d.
        informative: how many features have a true weight.
        noise: the standard deviation of the noise in y.

    Raises:
        InvalidInputError: a count below 1, one sample alone, more informative features than features, or
            fewer samples than clients.

    >>> task = Regression(clients=10, samples=100).prepare(0, torch.device("cpu"), torch.float64)
    >>> task.population.samples[:3], task.layout.size
    (array([10, 10, 10]), 200)
    """

    clients: int = 100
    samples: int = 3000
    features: int = 200
    informative: int = 10
    noise: float = 0.1

    def __post_init__(self) -> None:
        for name in ("clients", "features", "informative"):
            at_least(name, getattr(self, name), 1)
        at_least("samples", self.samples, 2)
        at_least("noise", self.noise, 0)
        if self.informative > self.features:
            raise InvalidInputError(f"informative: {self.informative} of {self.features} features")
        if self.samples < self.clients:
            raise InvalidInputError(
                f"clients: {self.clients} clients for {self.samples} samples; use fewer"
            )

    def prepare(self, seed: int, device: torch.device, dtype: torch.dtype) -> RegressionTask:
        """Return the task with the data of this seed."""
        from sklearn.datasets import make_regression  # slow to import, and seldom needed

        features, targets = make_regression(
            self.samples,
            self.features,
            n_informative=self.informative,
            noise=self.noise,
            random_state=seed % 2**32,  # what scikit-learn takes
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
    """The generated data on a device, client by client.

    Args:
        x: features, shape (N, m, d).
        y: targets, shape (N, m).
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._x, self._y = x, y
        clients, each, features = x.shape
        self.start = x.new_zeros(features)
        self.layout = Layout({"w": (features,)})
        self.population = Population(clients, samples=np.full(clients, each, dtype=np.int64))

    def loss(self, params: Params, *batch: Tensor) -> Tensor:
        """Return half the mean squared error on the batch (x, y); clients are of equal size."""
        x, y = batch
        return 0.5 * ((x @ params["w"] - y) ** 2).mean()

    def batch_inputs(self, plan: BatchPlan) -> BatchInputs:
        """Return which samples of which client each step uses, (1, S, 1) and (I, S, B)."""
        assert plan.positions is not None
        clients = torch.as_tensor(plan.clients, device=self._x.device)[None, :, None]
        return clients, torch.as_tensor(plan.positions, device=self._x.device)

    def batch(self, *draws: Tensor) -> Batch:
        """Return the cohort's samples, (S, B, d) and (S, B)."""
        clients, positions = draws
        return self._x[clients, positions], self._y[clients, positions]

    def evaluate(self, x: Tensor, clients: bool = True) -> Evaluation:
        """Return F_n(w) of every client, their mean, and the mean squared error."""
        losses = 0.5 * ((self._x @ x - self._y) ** 2).double().mean(dim=1)
        loss = float(losses.mean())
        return Evaluation({"loss": loss, "mse": 2 * loss}, {"loss": losses.cpu().numpy()})

    def pooled(self) -> RegressionTask:
        """Return the task of one client with all samples."""
        return RegressionTask(self._x.flatten(0, 1)[None], self._y.flatten()[None])
