"""MIFA: in every round, a step along the mean of all clients' latest updates."""

from __future__ import annotations

from typing import Annotated, Literal

from torch import Tensor

from fedtide.algorithms._latest_updates import LatestUpdates, LatestUpdatesState
from fedtide.algorithms.base import ClientUpdates, RoundInfo
from fedtide.population import Population
from fedtide.spec import Positive, spec

Unseen = Literal["zero", "exclude", "wait"]


@spec
class MIFA(LatestUpdates[LatestUpdatesState]):
    """Memory-augmented impatient federated averaging (Gu et al., 2021).

        h_n ← Δ_n  for n in S_t,        x ← x + η / D Σ_n h_n        in every round, empty ones too

    where h_n is 0 for clients never seen and

        zero:     D = N, as in the program of Wang & Ji 2024 (FedAU);
        exclude:  D = the number of clients seen so far;
        wait:     D = N, and x stays until all clients have been seen, as MIFA's theory assumes for
                  round 0.

    The memory keeps updates as they arrived: old ones still count in full after γ was lowered, as
    in that program. MIFA's own program keeps Δ_n / γ and multiplies by the current γ; that method
    is FedLaAvg here.

    Args:
        server_lr: η > 0.
        unseen: how clients never seen count.
        memory_folder: folder for a file with the memory; None: in RAM.

    Raises:
        InvalidInputError: η not positive, an unknown `unseen`, or a folder that cannot be written.

    >>> import torch
    >>> from fedtide.population import Population
    >>> method = MIFA()
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> one = torch.ones(1)
    >>> updates = ClientUpdates(torch.tensor([1]), one, one[:, None], lr=0.1, steps=one)
    >>> state, info = method.step(method.absorb(state, updates), lr=0.1)
    >>> state, info = method.step(state, lr=0.1)  # an empty round: the memory steps again
    >>> state.model
    tensor([1.])
    """

    server_lr: Annotated[float, Positive] = 1.0
    unseen: Unseen = "zero"
    memory_folder: str | None = None

    def init(self, model: Tensor, population: Population) -> LatestUpdatesState:
        return LatestUpdatesState.initial(model, population, self.memory_folder)

    def absorb(self, state: LatestUpdatesState, updates: ClientUpdates) -> LatestUpdatesState:
        return state.store(updates.clients, updates.deltas)

    def step(self, state: LatestUpdatesState, lr: float) -> tuple[LatestUpdatesState, RoundInfo]:
        """Move the model by η / D times the sum of all latest updates."""
        weight = self._weight(state)
        return state.finish_round((state.total + state.change).mul_(weight), weight)

    def _weight(self, state: LatestUpdatesState) -> float:
        """Return η / D, 0 while waiting."""
        seen = state.memory.seen
        if self.unseen == "exclude":
            return self.server_lr / max(seen, 1)
        if self.unseen == "wait" and seen < state.population:
            return 0.0
        return self.server_lr / state.population
