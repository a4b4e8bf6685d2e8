"""FedLaAvg: in every round, a step along the mean of all clients' latest gradients."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from fedtide.algorithms._latest_updates import LatestUpdates, LatestUpdatesState
from fedtide.algorithms.base import ClientUpdates, RoundInfo
from fedtide.population import Population
from fedtide.spec import spec
from fedtide.validation import require_positive


@spec
class FedLaAvg(LatestUpdates[LatestUpdatesState]):
    """Federated latest averaging (Yan et al. 2020; Algorithm 2 for I > 1 local steps).

        g_n ← Σ_k g_{n,k} = -Δ_n / γ_t  for n in S_t,        x ← x - γ_t / N Σ_n g_n

    in every round, also in empty ones. Clients never seen have g_n = 0 and count in N. The stored
    sums are multiplied by the current γ_t; MIFA keeps the product, so the two differ only when γ
    changes. To weight clients by their data, the paper multiplies F_n by N m_n / Σ m; here that is
    `objective: samples`.

    The paper selects the clients that have been absent longest: `selection=LongestAbsent(size)`.

    Args:
        memory_folder: folder for a file with the memory; None: in RAM.

    Raises:
        InvalidInputError: a folder that cannot be written.

    >>> import torch
    >>> from fedtide.population import Population
    >>> method = FedLaAvg()
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> one = torch.ones(1)
    >>> updates = ClientUpdates(torch.tensor([1]), one, one[:, None], lr=0.1, steps=one)
    >>> state, info = method.step(method.absorb(state, updates), lr=0.1)
    >>> state, info = method.step(state, lr=0.01)
    >>> state.model
    tensor([0.5500])
    """

    memory_folder: str | None = None

    traits = replace(LatestUpdates.traits, uses_local_lr=True)  # the memory holds Δ_n / γ

    def init(self, model: Tensor, population: Population) -> LatestUpdatesState:
        return LatestUpdatesState.initial(model, population, self.memory_folder)

    def absorb(self, state: LatestUpdatesState, updates: ClientUpdates) -> LatestUpdatesState:
        """Store these clients' sums of gradients (negated) instead of their previous ones."""
        require_positive("lr", updates.lr)
        return state.store(updates.clients, updates.deltas / updates.lr)

    def step(self, state: LatestUpdatesState, lr: float) -> tuple[LatestUpdatesState, RoundInfo]:
        """Move the model along the mean of all latest sums of gradients."""
        direction = lr / state.population * (state.total + state.change)
        return state.finish_round(direction, 1.0 / state.population)
