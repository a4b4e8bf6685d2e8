"""A weighted sum of updates over a normaliser: what the averaging methods have in common."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from fedtide.algorithms.base import (
    Algorithm,
    ClientUpdates,
    RoundInfo,
    State,
    WeightedTotal,
    no_updates,
)
from fedtide.population import Population


@dataclass(frozen=True)
class WeightedSumState(State):
    """The state of a weighted sum.

    Args:
        population: N, the number of clients.
        total: Σ a_n Δ_n over this round's updates so far, shape (d,).
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
            total=torch.zeros_like(model),
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

    def weight_bound(self, state: SumT) -> float | None:
        """Return the largest a_n that this training can give; a_n is then at least 1, and D is N.

        None: there is no bound, a_n may be smaller, or D is not N. Where there is a bound, neither
        it nor a_n may depend on updates or on data of clients.
        """
        return None

    @abstractmethod
    def client_weights(self, state: SumT, updates: ClientUpdates) -> Tensor:
        """Return a_n of each update, shape (S,)."""

    @abstractmethod
    def normaliser(self, state: SumT) -> Tensor | float:
        """Return D for the updates of this round, of which there is at least one."""

    def absorb(self, state: SumT, updates: ClientUpdates) -> SumT:
        """Add Σ a_n Δ_n of this chunk."""
        weights = self._weights(state, updates)
        total = WeightedTotal(
            updates.clients, weights, weights.to(updates.deltas.device) @ updates.deltas
        )
        return WeightedSum.absorb_total(self, state, total)

    def weigh(self, state: SumT, updates: ClientUpdates) -> Tensor | None:
        """Return a_n; None for a method that takes more from the updates than their sum."""
        is_sum = type(self).absorb is WeightedSum.absorb and not self.weights_follow_updates
        return self._weights(state, updates) if is_sum else None

    def absorb_total(self, state: SumT, total: WeightedTotal) -> SumT:
        """Add the sum of this chunk."""
        return replace(
            state,
            total=state.total + total.total,
            clients=torch.cat([state.clients, total.clients]),
            weights=torch.cat([state.weights, total.weights]),
        )

    def step(self, state: SumT, lr: float) -> tuple[SumT, RoundInfo]:
        """Move the model by η / D times the sum; an empty round leaves it where it is."""
        empty = len(state.clients) == 0
        scale = 0.0 if empty else self.server_lr / self.normaliser(state)
        info = RoundInfo(state.clients, state.weights * scale, state.total * scale)
        clients, weights = no_updates(state.model)
        state = replace(
            state,
            model=state.model + info.direction,
            round=state.round + 1,
            total=torch.zeros_like(state.total),
            clients=clients,
            weights=weights,
        )
        return state, info

    def _weights(self, state: SumT, updates: ClientUpdates) -> Tensor:
        return self.client_weights(state, updates).to(state.model.dtype)
