"""SGD on the pooled data, the reference without federation."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtide.algorithms._weighted_sum import WeightedSum, WeightedSumState
from fedtide.algorithms.base import ClientUpdates, Traits
from fedtide.population import Population
from fedtide.spec import spec


@spec
class CentralSGD(WeightedSum[WeightedSumState]):
    """Sequential SGD on the data of all clients together ("sequential SGD" of Yan et al. 2020).

        x ← x + Δ,  after as many local steps as the cohort would have taken together

    >>> method = CentralSGD()
    >>> method.traits.centralised
    True
    >>> state = method.init(torch.zeros(1), Population(1))
    >>> one = torch.ones(1)
    >>> updates = ClientUpdates(torch.tensor([0]), one, one[:, None], lr=0.1, steps=one)
    >>> method.step(method.absorb(state, updates), lr=0.1)[0].model
    tensor([1.])
    """

    server_lr = 1.0

    traits = Traits(centralised=True, averages_updates=True)

    def init(self, model: Tensor, population: Population) -> WeightedSumState:
        return WeightedSumState.initial(model, population)

    def client_weights(self, state: WeightedSumState, updates: ClientUpdates) -> Tensor:
        """Return 1 for the only client."""
        return torch.ones_like(updates.weights)

    def normaliser(self, state: WeightedSumState) -> float:
        return 1.0
