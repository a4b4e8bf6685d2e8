"""FedLaAvg: the mean of the latest gradients of all clients, every round."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedtide.algorithms._latest_updates import LatestUpdatesState
from fedtide.algorithms.base import Algorithm, ClientUpdates, RoundInfo
from fedtide.population import Population
from fedtide.validation import positive


@dataclass(frozen=True)
class FedLaAvg(Algorithm):
    """Federated latest averaging (paper 003; Algorithm 2 for I > 1 local steps).

        g_n ← Σ_k g_{n,k} = -Δ_n / γ_t  for n in S_t,        x ← x - γ_t / N Σ_n g_n

    in every round, also in empty ones. Clients never seen have g_n = 0 and count in N. The stored
    sums are multiplied by the current γ_t, which is what sets it apart from MIFA; with constant γ
    they are the same. Where clients' objectives shall count by their data, paper 003 multiplies
    F_n by N m_n / Σ m: that is the problem's to do.

    The paper trains the clients that were absent longest: `selection=LongestAbsent(size)`.

    Args:
        memory_folder: where a file for the memory lies; None keeps it in RAM.

    Raises:
        InvalidInputError: a folder that cannot be written.

    >>> import torch
    >>> method = FedLaAvg()
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> reports = ClientUpdates(torch.tensor([1]), torch.ones(1), torch.ones(1, 1), 0.1, torch.ones(1))
    >>> state, info = method.step(method.absorb(state, reports), lr=0.1)
    >>> state, info = method.step(state, lr=0.01)
    >>> state.model
    tensor([0.5500])
    """

    memory_folder: str | None = None

    def init(self, model: Tensor, population: Population) -> LatestUpdatesState:
        """Return the state before round 0, with all gradients zero."""
        return LatestUpdatesState.initial(model, population, self.memory_folder)

    def absorb(self, state: LatestUpdatesState, reports: ClientUpdates) -> LatestUpdatesState:
        """Put these clients' sums of gradients (negated) in the place of their former ones."""
        positive("lr", reports.lr)
        return state.store(reports.clients, reports.updates / reports.lr)

    def step(self, state: LatestUpdatesState, lr: float) -> tuple[LatestUpdatesState, RoundInfo]:
        """Move the model along the mean of all latest sums of gradients."""
        direction = lr / state.population * (state.total + state.change)
        return state.finish_round(direction, 1.0 / state.population)
