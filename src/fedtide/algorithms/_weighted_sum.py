"""A weighted sum of updates over a normaliser: what the averaging methods have in common."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from fedtide.algorithms.base import Algorithm, ClientUpdates, RoundInfo, State, no_updates
from fedtide.population import Population


@dataclass(frozen=True)
class WeightedSumState(State):
    """The state of a weighted sum.

    Args:
        population: N, the number of clients.
        total: Σ a_n Δ_n over this round's updates so far, shape (d,); before the first of them a
            view of a single zero, which takes no memory.
        clients: ids of the clients absorbed in this round so far, shape (S,).
        weights: their a_n, shape (S,).
    """

    population: int
    total: Tensor
    clients: Tensor
    weights: Tensor

    @classmethod
    def initial(cls, model: Tensor, population: Population, **fields: Any) -> Self:
        """Return the state before round 0; `fields` are those that a subclass adds."""
        clients, weights = no_updates(model)
        return cls(
            model=model,
            round=0,
            population=population.clients,
            total=_no_sum(model),
            clients=clients,
            weights=weights,
            **fields,
        )


SumT = TypeVar("SumT", bound=WeightedSumState)


class WeightedSum(Algorithm[SumT]):
    """x ← x + η / D Σ_{n in S} a_n Δ_n.

    A method defines a_n (`client_weights`) and D (`normaliser`).
    """

    server_lr: float

    @property
    def averages_updates(self) -> bool:
        """Whether nothing else is kept of the updates."""
        return not self.keeps_gradients

    @abstractmethod
    def client_weights(self, state: SumT, updates: ClientUpdates) -> Tensor:
        """Return a_n of each update, shape (S,)."""

    @abstractmethod
    def normaliser(self, state: SumT) -> Tensor | float:
        """Return D for the updates of this round, of which there is at least one."""

    def absorb(self, state: SumT, updates: ClientUpdates) -> SumT:
        """Add Σ a_n Δ_n of this chunk."""
        weights = self.client_weights(state, updates).to(state.model.dtype)
        total = weights @ updates.deltas
        return replace(
            state,
            total=total.add_(state.total),
            clients=torch.cat([state.clients, updates.clients]),
            weights=torch.cat([state.weights, weights]),
        )

    def step(self, state: SumT, lr: float) -> tuple[SumT, RoundInfo]:
        """Move the model by η / D times the sum; an empty round leaves it where it is.

        The sum itself becomes the direction: models may be large.
        """
        if len(state.clients):
            scale = self.server_lr / self.normaliser(state)
            info = RoundInfo(state.clients, state.weights * scale, state.total.mul_(scale))
        else:
            info = RoundInfo(state.clients, state.weights, torch.zeros_like(state.model))
        clients, weights = no_updates(state.model)
        state = replace(
            state,
            model=state.model + info.direction,
            round=state.round + 1,
            total=_no_sum(state.model),
            clients=clients,
            weights=weights,
        )
        return state, info


def _no_sum(model: Tensor) -> Tensor:
    """Return zeros of the model's shape in the memory of one."""
    return model.new_zeros(()).expand_as(model)
