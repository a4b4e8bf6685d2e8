"""FedAvg: the plain average of the updates, in the four readings that papers and programs use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedtide.algorithms._weighted_sum import WeightedSum, WeightedSumState
from fedtide.algorithms.base import ClientUpdates
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.validation import one_of, positive

Weights = Literal["mean", "all", "data", "given"]


@dataclass(frozen=True)
class FedAvg(WeightedSum):
    """Federated averaging (McMahan et al., 2017).

    With the cohort S_t, updates Δ_n, server learning rate η and sample counts m_n,

        mean:   x ← x + η / |S_t| Σ_{n in S_t} Δ_n
        all:    x ← x + η / N     Σ_{n in S_t} Δ_n
        data:   x ← x + η Σ_{n in S_t} m_n Δ_n / Σ_{n in S_t} m_n
        given:  x ← x + η Σ_{n in S_t} q_t^n Δ_n

    and x stays where nobody reports. "mean" is "average participating" and "all" is "average all"
    of paper 001; "given" is Algorithm 1 of paper 000 without amplification: the weights are used as
    the participation gives them and never renormalised. Under uneven participation all of these
    minimise an objective in which client n counts in proportion to how often it takes part (paper
    001, Theorem 1; paper 004, equation 3): "mean" is exactly what goes wrong.

    Args:
        server_lr: η > 0; 1 puts the model at the average of the clients' models.
        weights: which of the four.

    Raises:
        InvalidInputError: η not positive; an unknown weighting; "data" where clients hold no samples.

    >>> import torch
    >>> from fedtide.population import Population
    >>> method = FedAvg()
    >>> state = method.init(torch.zeros(1), Population(4))
    >>> reports = ClientUpdates(torch.tensor([0, 2]), torch.tensor([0.5, 0.5]),
    ...                   torch.tensor([[1.0], [3.0]]), lr=0.1, steps=torch.tensor([1, 1]))
    >>> state, info = method.step(method.absorb(state, reports), lr=0.1)
    >>> state.model
    tensor([2.])
    """

    server_lr: float = 1.0
    weights: Weights = "mean"

    def __post_init__(self) -> None:
        positive("server_lr", self.server_lr)
        one_of("weights", self.weights, Weights)

    def init(self, model: Tensor, population: Population) -> WeightedSumState:
        """Return the state before round 0."""
        if self.weights == "data" and population.samples is None:
            raise InvalidInputError(
                "weights: 'data' needs clients that hold samples; choose 'mean'"
            )
        state: WeightedSumState = WeightedSumState.initial(model, population)
        return state

    def client_weights(
        self, state: WeightedSumState, reports: ClientUpdates
    ) -> tuple[WeightedSumState, Tensor]:
        """Return a_n: m_n for "data", q_t^n for "given", else 1."""
        if self.weights == "data":
            assert reports.samples is not None
            return state, reports.samples
        if self.weights == "given":
            return state, reports.weights
        return state, torch.ones_like(reports.weights)

    def normaliser(self, state: WeightedSumState) -> Tensor | float:
        """Return Σ a_n for "mean" and "data", N for "all", 1 for "given"."""
        if self.weights == "all":
            return float(state.population)
        return 1.0 if self.weights == "given" else state.weights.sum()
