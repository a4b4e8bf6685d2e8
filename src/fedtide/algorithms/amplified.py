"""Amplification: the change over a whole period, multiplied by a factor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from fedtide.algorithms._wrapper import Wrapper, WrapperState, require_one_model
from fedtide.algorithms.base import Algorithm, RoundInfo, Traits
from fedtide.algorithms.fedavg import FedAvg
from fedtide.population import Population
from fedtide.spec import AtLeast, Positive, spec


@dataclass(frozen=True)
class AmplifiedState(WrapperState):
    """The state of Amplified.

    Args:
        change: u, what the inner method added to the model in this period, shape (d,).
    """

    change: Tensor


@spec
class Amplified(Wrapper[AmplifiedState]):
    """Generalized FedAvg with amplified updates (Wang & Ji 2022, Algorithm 1), around any method.

    With x_{t0} the model at the beginning of a period of P rounds and η the factor,

        x ← x_{t0} + η (x - x_{t0})        at the end of every period counted from `start`

    A period then acts like one large step along the average of all clients that took part in it,
    with γ so small that their order does not matter; P should cover a whole cycle of availability.
    η < 1 damps. Before `start` nothing is amplified (the authors' warm-up of 2000 or 4000 rounds).

    The factor multiplies the noise of a period as well, and the first rounds of the next period
    average it out again. So evaluate, and end the run, just before an amplification step: after
    kP - 1 rounds from `start`, such as `rounds=449` with P = 50. Evaluations after multiples of P
    rounds (`every` = 10, say) see the model right after a step. With an ordinary γ, factors of 1.5
    to 2 are enough. For example, FedAU (cutoff 50) with P = 50 on digits (logistic regression, 100
    clients, a tenth of them in a round, γ = 0.1; test accuracy, mean over three seeds):

    ======  ================  ================
    factor  after 449 rounds  after 400 rounds
    ======  ================  ================
    1       94.2 %            94.1 %
    1.5     95.4 %            95.3 %
    2       95.6 %            92.9 %
    3       75.1 %            26.6 %
    ======  ================  ================

    The change u = x - x_{t0} is accumulated rather than computed as a difference, which would lose
    digits. Only the steps of the inner method are amplified, not those of wrappers around this
    one. The authors' program refuses η < 1 and otherwise does the same.

    Args:
        period: P >= 1, in rounds.
        factor: η > 0; 1 is the inner method.
        inner: the method whose steps are amplified.
        start: the round in which the first period begins.

    Raises:
        InvalidInputError: a period below 1, a factor not positive, a negative start, or an
            `inner` whose clients keep models of their own (FedAWE, FedPBC).

    >>> from fedtide.algorithms.base import ClientUpdates
    >>> method = Amplified(period=2, factor=3.0)
    >>> state = method.init(torch.zeros(1), Population(1))
    >>> one = torch.ones(1)
    >>> updates = ClientUpdates(torch.tensor([0]), one, one[:, None], lr=0.1, steps=one)
    >>> for _ in range(3):
    ...     state, info = method.step(method.absorb(state, updates), lr=0.1)
    ...     print(state.model.item())
    1.0
    6.0
    7.0
    """

    period: Annotated[int, AtLeast(1)]
    factor: Annotated[float, Positive]
    inner: Algorithm[Any] = field(default_factory=FedAvg)
    start: Annotated[int, AtLeast(0)] = 0

    def __post_init__(self) -> None:
        require_one_model(self.inner)

    @property
    def traits(self) -> Traits:
        """Those of `inner`, with its own amplification even if `inner` amplifies as well."""
        return replace(super().traits, amplification="factor")

    uses_directions_only = True

    def init(self, model: Tensor, population: Population) -> AmplifiedState:
        return AmplifiedState(self.inner.init(model, population), torch.zeros_like(model))

    def step(self, state: AmplifiedState, lr: float) -> tuple[AmplifiedState, RoundInfo]:
        """Step as the inner method does; at the end of a period, step by (η - 1) u more."""
        inner, info = self.inner.step(state.inner, lr)
        if state.round < self.start:
            return replace(state, inner=inner), info
        change = state.change + info.direction
        if (inner.round - self.start) % self.period:
            return AmplifiedState(inner, change), info
        extra = (self.factor - 1.0) * change
        inner = self.inner.with_model(inner, inner.model + extra)
        direction = info.direction + extra
        return AmplifiedState(inner, torch.zeros_like(change)), replace(info, direction=direction)
