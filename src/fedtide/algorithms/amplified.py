"""Amplification: what a whole period changed is done again, several times over."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedtide.algorithms._wrapper import Wrapper, WrapperState
from fedtide.algorithms.base import Algorithm, RoundInfo
from fedtide.algorithms.fedavg import FedAvg
from fedtide.population import Population
from fedtide.validation import at_least, positive


@dataclass(frozen=True)
class AmplifiedState(WrapperState):
    """The state of Amplified.

    Args:
        change: u, what the inner method added to the model in this period, shape (d,).
    """

    change: Tensor


@dataclass(frozen=True)
class Amplified(Wrapper):
    """Generalized FedAvg with amplified updates (paper 000, Algorithm 1), around any method.

    With x_{t0} the model at the beginning of a period of P rounds and η the factor,

        x ← x_{t0} + η (x - x_{t0})        at the end of every period counted from `start`

    Each period then acts like one large step along the average of all clients that came in it,
    while γ is small enough that the order in which they came does not matter: P should cover a
    whole cycle of availability. η < 1 damps. Before `start` nothing is amplified (the authors'
    warm-up of 2000 or 4000 rounds). The change u = x - x_{t0} is summed up rather than taken as a
    difference, so nothing cancels. Only the inner method's steps are amplified, not what wrappers
    around this one add. The authors' program refuses η < 1; otherwise it does the same.

    Args:
        period: P >= 1, in rounds.
        factor: η > 0; 1 is the inner method.
        inner: the method whose changes are amplified.
        start: the round in which the first period begins.

    Raises:
        InvalidInputError: a period below 1, a factor not positive, or a negative start.

    >>> from fedtide.algorithms.base import ClientUpdates
    >>> method = Amplified(period=2, factor=3.0)
    >>> state = method.init(torch.zeros(1), Population(1))
    >>> reports = ClientUpdates(torch.tensor([0]), torch.ones(1), torch.ones(1, 1), 0.1, torch.ones(1))
    >>> for _ in range(3):
    ...     state, info = method.step(method.absorb(state, reports), lr=0.1)
    ...     print(state.model.item())
    1.0
    6.0
    7.0
    """

    period: int
    factor: float
    inner: Algorithm = field(default_factory=FedAvg)
    start: int = 0

    def __post_init__(self) -> None:
        at_least("period", self.period, 1)
        positive("factor", self.factor)
        at_least("start", self.start, 0)

    def init(self, model: Tensor, population: Population) -> AmplifiedState:
        """Return the state before round 0."""
        return AmplifiedState(self.inner.init(model, population), torch.zeros_like(model))

    def step(self, state: AmplifiedState, lr: float) -> tuple[AmplifiedState, RoundInfo]:
        """Let the inner method step; at the end of a period, step (η - 1) u further."""
        inner, info = self.inner.step(state.inner, lr)
        if state.round < self.start:
            return replace(state, inner=inner), info
        change = state.change + info.direction
        if (inner.round - self.start) % self.period:
            return AmplifiedState(inner, change), info
        further = (self.factor - 1.0) * change
        inner = self.inner.with_model(inner, inner.model + further)
        direction = info.direction + further
        return AmplifiedState(inner, torch.zeros_like(change)), replace(info, direction=direction)
