"""What the averaging methods share: a sum of updates with a weight each, over a divisor."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedtide.algorithms.base import Algorithm, ClientUpdates, RoundInfo, State, no_updates
from fedtide.population import Population


@dataclass(frozen=True)
class WeightedSumState(State):
    """The state of a weighted sum.

    Args:
        population: N, the number of clients.
        total: Σ a_n Δ_n over this round's reports so far, shape (d,).
        clients: who reported in this round so far, shape (S,).
        weights: their a_n, shape (S,).
    """

    population: int
    total: Tensor
    clients: Tensor
    weights: Tensor

    @classmethod
    def initial(cls, model: Tensor, population: Population, **further: Any) -> Any:
        """Return the state before round 0; `further` are the fields that a subclass adds."""
        clients, weights = no_updates(model)
        return cls(
            model=model,
            round=0,
            population=population.clients,
            total=torch.zeros_like(model),
            clients=clients,
            weights=weights,
            **further,
        )


class WeightedSum(Algorithm):
    """x ← x + η / D Σ_{n in S} a_n Δ_n; a method says what a_n (`client_weights`) and D (`normaliser`) are."""

    server_lr: float

    def init(self, model: Tensor, population: Population) -> Any:
        """Return the state before round 0."""
        return WeightedSumState.initial(model, population)

    @abstractmethod
    def client_weights(self, state: Any, reports: ClientUpdates) -> tuple[Any, Tensor]:
        """Return (the state with these clients noted, their a_n of shape (S,))."""

    @abstractmethod
    def normaliser(self, state: Any) -> Tensor | float:
        """Return D for the reports of this round, of which there is at least one."""

    def absorb(self, state: Any, reports: ClientUpdates) -> Any:
        """Add Σ a_n Δ_n of this chunk."""
        state, weights = self.client_weights(state, reports)
        weights = weights.to(state.model.dtype)
        return replace(
            state,
            total=state.total + weights @ reports.updates,
            clients=torch.cat([state.clients, reports.clients]),
            weights=torch.cat([state.weights, weights]),
        )

    def step(self, state: Any, lr: float) -> tuple[Any, RoundInfo]:
        """Move the model by η / D times the sum; leave it where nobody reported."""
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
