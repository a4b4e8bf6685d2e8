"""MIFA: the mean of the latest updates of all clients, every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedtide.algorithms._latest_updates import LatestUpdatesState
from fedtide.algorithms.base import Algorithm, ClientUpdates, RoundInfo
from fedtide.population import Population
from fedtide.validation import one_of, positive

Unseen = Literal["zero", "exclude", "wait"]


@dataclass(frozen=True)
class MIFA(Algorithm):
    """Memory-augmented impatient federated averaging (Gu et al., 2021).

        y_n ← Δ_n  for n in S_t,        x ← x + η / D Σ_n y_n        in every round, empty ones too

    where y_n is 0 for clients never seen and

        zero:     D = N, the reading of paper 001's program;
        exclude:  D = the number of clients seen so far;
        wait:     D = N, and x stays until all clients have been seen, which MIFA's theory assumes
                  of round 0.

    The memory keeps updates as they came: after γ was lowered, old ones still count in full, as in
    paper 001's program. MIFA's own program keeps Δ_n / γ and steps with the current γ, which is
    FedLaAvg here.

    Args:
        server_lr: η > 0.
        unseen: what clients never seen count.
        memory_folder: where a file for the memory lies; None keeps it in RAM.

    Raises:
        InvalidInputError: η not positive, an unknown `unseen`, or a folder that cannot be written.

    >>> import torch
    >>> method = MIFA()
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> reports = ClientUpdates(torch.tensor([1]), torch.ones(1), torch.ones(1, 1), 0.1, torch.ones(1))
    >>> state, info = method.step(method.absorb(state, reports), lr=0.1)
    >>> state, info = method.step(state, lr=0.1)  # nobody came: the memory steps again
    >>> state.model
    tensor([1.])
    """

    server_lr: float = 1.0
    unseen: Unseen = "zero"
    memory_folder: str | None = None

    def __post_init__(self) -> None:
        positive("server_lr", self.server_lr)
        one_of("unseen", self.unseen, Unseen)

    def init(self, model: Tensor, population: Population) -> LatestUpdatesState:
        """Return the state before round 0, with nobody seen."""
        return LatestUpdatesState.initial(model, population, self.memory_folder)

    def absorb(self, state: LatestUpdatesState, reports: ClientUpdates) -> LatestUpdatesState:
        """Put these updates in the place of the clients' former ones."""
        return state.store(reports.clients, reports.updates)

    def step(self, state: LatestUpdatesState, lr: float) -> tuple[LatestUpdatesState, RoundInfo]:
        """Move the model by η / D times the sum of all latest updates."""
        weight = self._weight(state)
        return state.finish_round(weight * (state.total + state.change), weight)

    def _weight(self, state: LatestUpdatesState) -> float:
        """Return η / D, 0 while waiting."""
        seen = state.memory.seen
        if self.unseen == "exclude":
            return self.server_lr / max(seen, 1)
        if self.unseen == "wait" and seen < state.population:
            return 0.0
        return self.server_lr / state.population
