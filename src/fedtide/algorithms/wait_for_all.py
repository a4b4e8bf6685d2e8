"""Waiting for all clients before each step: the baselines of Wang & Ji (2022), in both readings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedtide.algorithms._weighted_sum import WeightedSumState
from fedtide.algorithms.base import (
    Algorithm,
    ClientUpdates,
    Cohort,
    Instructions,
    RoundInfo,
    Traits,
)
from fedtide.device_copies import to_device_of
from fedtide.population import Population
from fedtide.spec import AtLeast, spec

Mode = Literal["steps", "gradient"]
Batch = Literal["minibatch", "full"]


@dataclass(frozen=True)
class WaitState(WeightedSumState):
    """The state of WaitForAll; `total` and `weight` accumulate over a period.

    Args:
        weight: the sum of the weights in `total`, a scalar.
    """

    weight: Tensor


@spec
class WaitForAll(Algorithm[WaitState]):
    """One server step in every period of P rounds (wait-minibatch and wait-full of Wang & Ji 2022).

    steps (the authors' program): in the last round of each period all N clients, available or not,
    make I local steps; no client trains in the other rounds. If updates are lost, the step is the
    mean of the others.

        x ← x + 1/N Σ_n Δ_n

    gradient (the paper's section 5): clients that take part send their mean gradient at x, which
    does not change within a period; one SGD step along their weighted mean ends the period.

        x ← x - γ_t Σ_s Σ_n q_s^n ḡ_s^n / Σ_s Σ_n q_s^n

    Periods are counted from round 0. A period without updates leaves x where it is.

    Args:
        period: P >= 1, in rounds.
        mode: "steps" or "gradient".
        batch: "minibatch", or "full" for gradients over all of a client's samples.

    Raises:
        InvalidInputError: a period below 1, an unknown mode or batch.

    >>> method = WaitForAll(period=2)
    >>> state = method.init(torch.zeros(1), Population(3))
    >>> present = Cohort.uniform(torch.tensor([1]))
    >>> method.choose_cohort(state, present).clients
    tensor([], dtype=torch.int64)
    >>> state, info = method.step(state, lr=0.1)
    >>> method.choose_cohort(state, present).clients
    tensor([0, 1, 2])
    """

    period: Annotated[int, AtLeast(1)]
    mode: Mode = "steps"
    batch: Batch = "minibatch"

    @property
    def traits(self) -> Traits:
        """Absent clients train, too ("steps"), or their earlier gradients count ("gradient")."""
        gradient = self.mode == "gradient"  # whose weights depend on the numbers of steps
        return Traits(
            requires_plain_sgd=gradient, weights_follow_updates=gradient, uses_absent_clients=True
        )

    def init(self, model: Tensor, population: Population) -> WaitState:
        return WaitState.initial(model, population, weight=torch.zeros((), dtype=model.dtype))

    def choose_cohort(self, state: WaitState, cohort: Cohort) -> Cohort:
        """Return the cohort ("gradient"), or all clients when a period ends ("steps")."""
        if self.mode == "gradient":
            return cohort
        size = state.population if self._is_due(state) else 0
        return Cohort.uniform(torch.arange(size))

    def instruct(self, state: WaitState, clients: Tensor) -> Instructions:
        """Return how to train: with all gradients at x for "gradient"."""
        at_start, full = self.mode == "gradient", self.batch == "full"
        return Instructions(state.model, gradients_at_start=at_start, full_batch=full)

    def absorb(self, state: WaitState, updates: ClientUpdates) -> WaitState:
        """Add the updates, or the gradients (negated) times their weights."""
        if self.mode == "gradient":
            rows, weights = -updates.mean_gradients(), updates.weights
        else:
            rows, weights = updates.deltas, torch.ones_like(updates.weights)
        weights = weights.to(state.model.dtype)
        return replace(
            state,
            total=state.total + to_device_of(weights, rows) @ rows,
            weight=state.weight + weights.sum(),
            clients=torch.cat([state.clients, updates.clients]),
            weights=torch.cat([state.weights, self._factors(updates, weights)]),
        )

    def step(self, state: WaitState, lr: float) -> tuple[WaitState, RoundInfo]:
        """Move the model in the last round of a period."""
        ended = replace(
            state, round=state.round + 1, clients=state.clients[:0], weights=state.weights[:0]
        )
        if not self._is_due(state):
            none = torch.zeros_like(state.weights)
            return ended, RoundInfo(state.clients, none, torch.zeros_like(state.total))
        rate = lr if self.mode == "gradient" else 1.0
        scale = torch.where(state.weight > 0, rate / state.weight, 0.0)
        info = RoundInfo(state.clients, scale * state.weights, scale * state.total)
        return replace(
            ended,
            model=state.model + info.direction,
            total=torch.zeros_like(state.total),
            weight=torch.zeros_like(state.weight),
        ), info

    def _is_due(self, state: WaitState) -> bool:
        return (state.round + 1) % self.period == 0

    def _factors(self, updates: ClientUpdates, weights: Tensor) -> Tensor:
        """Return the factor of each update in the sum."""
        if self.mode == "steps":
            return weights
        return weights / (updates.lr * updates.steps).to(weights.dtype)
