"""SGD on the pooled data: the reference without federation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtide.algorithms._weighted_sum import WeightedSum, WeightedSumState
from fedtide.algorithms.base import ClientUpdates


@dataclass(frozen=True)
class CentralSGD(WeightedSum):
    """Sequential SGD on the data of all clients together (paper 003's "sequential SGD").

        x ← x + Δ,  after as many local steps as the cohort would have taken together

    >>> from fedtide.population import Population
    >>> method = CentralSGD()
    >>> method.centralised
    True
    >>> state = method.init(torch.zeros(1), Population(1))
    >>> reports = ClientUpdates(torch.tensor([0]), torch.ones(1), torch.ones(1, 1), 0.1, torch.ones(1))
    >>> method.step(method.absorb(state, reports), lr=0.1)[0].model
    tensor([1.])
    """

    server_lr = 1.0

    @property
    def centralised(self) -> bool:
        """It is."""
        return True

    def client_weights(
        self, state: WeightedSumState, reports: ClientUpdates
    ) -> tuple[WeightedSumState, Tensor]:
        """Return 1 for the one client there is."""
        return state, torch.ones_like(reports.weights)

    def normaliser(self, state: WeightedSumState) -> float:
        """Return 1."""
        return 1.0
