"""The latest update of every client: what MIFA, FedLaAvg and FedVARP have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from fedtide.algorithms._client_memory import ClientMemory
from fedtide.algorithms.base import Algorithm, RoundInfo, State, Traits, empty_sum, no_updates
from fedtide.population import Population


@dataclass(frozen=True)
class LatestUpdatesState(State):
    """The state of a method that remembers each client's latest update.

    Args:
        memory: h_n, the latest row that each client sent.
        total: Σ h_n over all clients before this round, shape (d,), float64.
        change: Σ (new h_n - old h_n) over this round's updates so far, shape (d,), float64.
        clients: ids of the clients absorbed in this round so far, shape (S,).
    """

    memory: ClientMemory
    total: Tensor
    change: Tensor
    clients: Tensor

    @property
    def population(self) -> int:
        """N."""
        return self.memory.clients

    @classmethod
    def initial(
        cls, model: Tensor, population: Population, folder: str | None, **fields: Any
    ) -> Self:
        """Return the state before round 0; `fields` are those that a subclass adds."""
        return cls(
            model=model,
            round=0,
            memory=ClientMemory.empty(population.clients, model, folder),
            total=torch.zeros_like(model, dtype=torch.float64),
            change=empty_sum(model, torch.float64),
            clients=no_updates(model)[0],
            **fields,
        )

    def store(self, clients: Tensor, rows: Tensor) -> Self:
        """Return the state with these rows, shape (S, d), as the latest of these clients."""
        change = self.memory.change_to(rows, clients).add_(self.change)
        return replace(
            self,
            memory=self.memory.write(clients, rows),
            change=change,
            clients=torch.cat([self.clients, clients]),
        )

    def finish_round(self, direction: Tensor, weight: float | Tensor) -> tuple[Self, RoundInfo]:
        """Return the result of `step` for a round that adds `direction` to the model.

        Args:
            direction: shape (d,), in any type.
            weight: the factor with which each of this round's updates entered it, or factors (S,).
        """
        direction = direction.to(self.model.dtype)
        weights = torch.zeros_like(self.clients, dtype=direction.dtype) + weight
        state = replace(
            self,
            model=self.model + direction,
            round=self.round + 1,
            total=self.total + self.change,
            change=empty_sum(self.model, torch.float64),
            clients=self.clients[:0],
        )
        return state, RoundInfo(self.clients, weights, direction)


LatestT = TypeVar("LatestT", bound=LatestUpdatesState)


class LatestUpdates(Algorithm[LatestT]):
    """Remembers the latest update of every client, in RAM or in a file in `memory_folder`."""

    memory_folder: str | None

    traits = Traits(uses_absent_clients=True, accepts_stale_updates=True)
    """A late update is newer than the one in memory."""
