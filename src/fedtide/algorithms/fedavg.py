"""FedAvg: the average of the clients' models."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from fedtide.algorithms._weighted_sum import SumT, WeightedSum, WeightedSumState
from fedtide.algorithms.base import ClientUpdates
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.spec import Positive, spec

Weights = Literal["mean", "all", "data", "given"]


class CohortAverage(WeightedSum[SumT]):
    """x ← x + η Σ_{n in S_t} q_n Δ_n, with q_n as `weights` says (see `FedAvg`)."""

    weights: Weights

    def require_samples(self, population: Population) -> None:
        """Raise InvalidInputError if the weighting needs samples and the clients hold none."""
        if self.weights == "data" and population.samples is None:
            raise InvalidInputError("weights: 'data' needs clients that hold samples; use 'mean'")

    def weight_bound(self, state: SumT) -> float | None:
        """Return 1 for "all"; None for the others, whose normaliser is not N."""
        return 1.0 if self.weights == "all" else None

    def client_weights(self, state: SumT, updates: ClientUpdates) -> Tensor:
        """Return a_n: m_n for "data", q_t^n for "given", else 1."""
        if self.weights == "data":
            assert updates.samples is not None
            return updates.samples
        if self.weights == "given":
            return updates.weights
        return torch.ones_like(updates.weights)

    def normaliser(self, state: SumT) -> Tensor | float:
        """Return Σ a_n for "mean" and "data", N for "all", 1 for "given"."""
        if self.weights == "all":
            return float(state.population)
        return 1.0 if self.weights == "given" else state.weights.sum()


@spec
class FedAvg(CohortAverage[WeightedSumState]):
    """Federated averaging (McMahan et al., 2017).

        x ← x + η Σ_{n in S_t} q_n Δ_n

    with, for the cohort S_t of clients whose updates are used and m_n samples at client n,

        mean:   q_n = 1 / |S_t|            "average participating" of Wang & Ji 2024
        all:    q_n = 1 / N                "average all" of Wang & Ji 2024
        data:   q_n = m_n / Σ_{S_t} m_k    weighted by sample counts
        given:  q_n = q_t^n                the participation weight, never renormalised;
                                       Wang & Ji 2022, Algorithm 1

    An empty round leaves x where it is. Under uneven participation each of these minimises an
    objective in which clients that take part more often count more (Wang & Ji 2024, Theorem 1;
    Rahimi & Kalogerias 2025, equation 3).

    Args:
        server_lr: η > 0; 1 moves the model to the average of the clients' models.
        weights: one of the four; not "data" with `objective: samples`, which already weights
            clients by m_n: together they would weight them by m_n².

    Raises:
        InvalidInputError: η not positive; an unknown weighting; "data" where clients hold no
            samples.

    >>> import torch
    >>> from fedtide.population import Population
    >>> method = FedAvg()
    >>> state = method.init(torch.zeros(1), Population(4))
    >>> updates = ClientUpdates(torch.tensor([0, 2]), torch.tensor([0.5, 0.5]),
    ...                         torch.tensor([[1.0], [3.0]]), lr=0.1, steps=torch.tensor([1, 1]))
    >>> state, info = method.step(method.absorb(state, updates), lr=0.1)
    >>> state.model
    tensor([2.])
    """

    server_lr: Annotated[float, Positive] = 1.0
    weights: Weights = "mean"

    def init(self, model: Tensor, population: Population) -> WeightedSumState:
        self.require_samples(population)
        return WeightedSumState.initial(model, population)
