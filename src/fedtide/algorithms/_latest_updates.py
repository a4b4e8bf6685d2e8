"""What the methods share that keep the latest update of every client."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedtide.algorithms._client_memory import ClientMemory
from fedtide.algorithms.base import RoundInfo, State, no_updates
from fedtide.population import Population


@dataclass(frozen=True)
class LatestUpdatesState(State):
    """The state of such a method.

    Args:
        memory: y_n, the latest row that each client sent.
        total: Σ y_n over all clients before this round, shape (d,).
        change: Σ (new y_n - old y_n) over this round's reports so far, shape (d,).
        clients: who reported in this round so far, shape (S,).
    """

    memory: ClientMemory
    total: Tensor
    change: Tensor
    clients: Tensor

    @classmethod
    def initial(
        cls, model: Tensor, population: Population, folder: str | None
    ) -> LatestUpdatesState:
        """Return the state before round 0, with the rows in RAM or in a file in `folder`."""
        return cls(
            model=model,
            round=0,
            memory=ClientMemory.empty(population.clients, model, folder),
            total=torch.zeros_like(model),
            change=torch.zeros_like(model),
            clients=no_updates(model)[0],
        )

    @property
    def population(self) -> int:
        """N."""
        return self.memory.clients

    def store(self, clients: Tensor, rows: Tensor) -> LatestUpdatesState:
        """Return the state with these rows, shape (S, d), as the latest of these clients."""
        change = (rows - self.memory.read(clients)).sum(dim=0)
        return replace(
            self,
            memory=self.memory.write(clients, rows),
            change=self.change + change,
            clients=torch.cat([self.clients, clients]),
        )

    def finish_round(
        self, direction: Tensor, weight: float
    ) -> tuple[LatestUpdatesState, RoundInfo]:
        """Return what `step` returns when the round adds `direction` to the model.

        Args:
            direction: shape (d,).
            weight: the factor with which each of this round's updates entered it.
        """
        weights = torch.full_like(self.clients, weight, dtype=direction.dtype)
        state = replace(
            self,
            model=self.model + direction,
            round=self.round + 1,
            total=self.total + self.change,
            change=torch.zeros_like(self.change),
            clients=self.clients[:0],
        )
        return state, RoundInfo(self.clients, weights, direction)
