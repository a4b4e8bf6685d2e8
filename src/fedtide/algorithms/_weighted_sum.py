"""A weighted sum of updates divided by a normaliser: the common part of the averaging methods."""

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
    Traits,
    WeightedTotal,
    empty_sum,
    no_updates,
)
from fedtide.device_copies import to_device_of
from fedtide.population import Population

_TRAITS = Traits(averages_updates=True)
_BLOCK = 2**16
"""How many numbers of a single update are added to the sum at a time."""


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
            total=empty_sum(model),
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
    def traits(self) -> Traits:
        """Nothing but their sum is kept of the updates."""
        return _TRAITS

    def weight_bound(self, state: SumT) -> float | None:
        """Return the largest a_n possible in this training, if every a_n >= 1 and D = N.

        None: there is no such bound, some a_n may be below 1, or D is not N. If there is a bound,
        neither it nor a_n may depend on updates or on data of clients.
        """
        return None

    def least_weights(self, state: SumT) -> Tensor | float:
        """Return a lower bound of all later a_n, one per client, shape (N,), or one for all.

        It holds as long as nobody takes part; ∞ for a client that can never take part. With a
        `weight_bound`, training under a privacy budget ends when no client has enough left for a
        weight this small. A subclass with other weights must override it as well.
        """
        return 1.0

    @abstractmethod
    def client_weights(self, state: SumT, updates: ClientUpdates) -> Tensor:
        """Return a_n of each update, shape (S,)."""

    @abstractmethod
    def normaliser(self, state: SumT) -> Tensor | float:
        """Return D for the updates of this round, of which there is at least one."""

    def absorb(self, state: SumT, updates: ClientUpdates) -> SumT:
        """Add Σ a_n Δ_n of this chunk."""
        weights = self._weights(state, updates)
        factors = to_device_of(weights.to(updates.deltas.dtype), updates.deltas)
        if len(weights) == 1 and len(state.clients):
            # Large models arrive one by one; adding in blocks avoids a temporary of a model's size.
            totals = torch.split(state.total, _BLOCK)
            blocks = torch.split(updates.deltas, _BLOCK, dim=1)
            for total, deltas in zip(totals, blocks, strict=True):
                total.add_(factors @ deltas)
            return _add_cohort(state, updates.clients, weights)
        total = factors @ updates.deltas
        return WeightedSum.absorb_total(self, state, WeightedTotal(updates.clients, weights, total))

    def weigh(self, state: SumT, updates: ClientUpdates) -> Tensor | None:
        """Return a_n; None for a method that takes more from the updates than their sum.

        Weights computed from updates that have no values yet have none either.
        """
        if type(self).absorb is not WeightedSum.absorb or self.traits.weights_follow_updates:
            return None
        weights = self._weights(state, updates)
        return None if weights.is_meta else weights

    def absorb_total(self, state: SumT, total: WeightedTotal) -> SumT:
        """Add the sum of this chunk."""
        state = replace(state, total=total.total.add_(state.total))
        return _add_cohort(state, total.clients, total.weights)

    def record_cohort(self, state: SumT) -> SumT:
        """Return the state with the round's participants recorded, at the end of the round."""
        return state

    def step(self, state: SumT, lr: float) -> tuple[SumT, RoundInfo]:
        """Move the model by η / D times the sum; an empty round leaves it where it is.

        The sum is scaled in place to become the direction, because models may be large.
        """
        state = self.record_cohort(state)
        if len(state.clients):
            scale = self.server_lr / self.normaliser(state)
            info = RoundInfo(state.clients, state.weights * scale, state.total.mul_(scale))
        else:
            info = RoundInfo(state.clients, state.weights, torch.zeros_like(state.model))
        return _next_round(state, state.model + info.direction), info

    def advance(self, state: SumT, lr: float) -> tuple[SumT, Tensor, Tensor]:
        """Move the model as `step` does; the sum is turned into the next model in place."""
        if type(self).step is not WeightedSum.step or not len(state.clients):
            state, info = self.step(state, lr)
            return state, info.clients, info.weights
        state = self.record_cohort(state)
        scale = self.server_lr / self.normaliser(state)
        model = state.total.mul_(scale).add_(state.model)
        return _next_round(state, model), state.clients, state.weights * scale

    def _weights(self, state: SumT, updates: ClientUpdates) -> Tensor:
        return self.client_weights(state, updates).to(state.model.dtype)


def _add_cohort(state: SumT, clients: Tensor, weights: Tensor) -> SumT:
    """Return the state with these clients, shape (S,), and their a_n among those absorbed."""
    return replace(
        state,
        clients=torch.cat([state.clients, clients]),
        weights=torch.cat([state.weights, weights]),
    )


def _next_round(state: SumT, model: Tensor) -> SumT:
    """Return the state at the start of the next round, with this model in the old one's dtype.

    The updates may have been summed in float64, as with `PrivateSum`.
    """
    model = model.to(state.model.dtype)
    clients, weights = no_updates(model)
    return replace(
        state,
        model=model,
        round=state.round + 1,
        total=empty_sum(model),
        clients=clients,
        weights=weights,
    )
