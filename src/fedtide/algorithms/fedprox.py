"""FedProx: FedAvg with a proximal term in the local objective."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from torch import Tensor

from fedtide.algorithms._weighted_sum import WeightedSumState
from fedtide.algorithms.base import Instructions
from fedtide.algorithms.fedavg import CohortAverage, Weights
from fedtide.population import Population
from fedtide.spec import AtLeast, Positive, spec


@spec
class FedProx(CohortAverage[WeightedSumState]):
    """Federated averaging with a proximal term (Li et al., 2020).

    Clients take local gradient steps on F_n(y) + μ/2 ||y - x||², that is,

        y ← y - γ ( g_n(y) + μ (y - x) )        I times from y = x,

    and the server averages as FedAvg does. Its authors suggest μ in {0.001, 0.01, 0.1, 0.5, 1}.

    Args:
        mu: μ >= 0; 0 is FedAvg.
        server_lr: η > 0.
        weights: as for FedAvg.

    Raises:
        InvalidInputError: μ negative, or an input that FedAvg refuses.

    >>> import torch
    >>> from fedtide.population import Population
    >>> method = FedProx(mu=0.1)
    >>> method.instruct(method.init(torch.zeros(1), Population(2)), torch.tensor([0])).mu
    0.1
    """

    mu: Annotated[float, AtLeast(0)]
    server_lr: Annotated[float, Positive] = 1.0
    weights: Weights = "mean"

    def init(self, model: Tensor, population: Population) -> WeightedSumState:
        self.require_samples(population)
        return WeightedSumState.initial(model, population)

    def instruct(self, state: WeightedSumState, clients: Tensor) -> Instructions:
        """Return the instructions of FedAvg with the proximal weight μ."""
        return replace(super().instruct(state, clients), mu=self.mu)
