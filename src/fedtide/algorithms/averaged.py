"""The mean of the iterates as the output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor

from fedtide.algorithms._wrapper import Wrapper, WrapperState
from fedtide.algorithms.base import Algorithm, RoundInfo
from fedtide.algorithms.fedavg import FedAvg
from fedtide.population import Population
from fedtide.spec import AtLeast, spec


@dataclass(frozen=True)
class AveragedState(WrapperState):
    """The state of Averaged.

    Args:
        mean: the weighted mean of x_1, ..., x_t, shape (d,), float64, so that late iterates still
            count; x_0 before the end of the first round.
    """

    mean: Tensor


@spec
class Averaged(Wrapper[AveragedState]):
    """Any method, with a mean of its iterates x_1, ..., x_T as output.

        x̄_1 = x_1,    x̄_t = x̄_{t-1} + (1 + q) / (t + q) (x_t - x̄_{t-1})

    With q = 0 it is the plain mean, which the theory of FedLaAvg (Yan et al. 2020, Theorem 2, whose
    mean begins with x_0) and of agnostic FedAvg (Rahimi & Kalogerias 2025, Algorithm 1) asks for.
    With q > 0 the weight of x_t grows as t^q, so early iterates are forgotten (Shamir and Zhang,
    2013); with q = 2 it is t (t + 1), as in `Auto`. Training is that of the inner method;
    evaluations and the final model use the mean.

    Args:
        inner: the method whose iterates are averaged.
        power: q >= 0.

    Raises:
        InvalidInputError: a negative power.

    >>> import torch
    >>> from fedtide.algorithms.base import ClientUpdates
    >>> method = Averaged()
    >>> state = method.init(torch.zeros(1), Population(1))
    >>> one = torch.ones(1)
    >>> updates = ClientUpdates(torch.tensor([0]), one, one[:, None], lr=0.1, steps=one)
    >>> for _ in range(2):
    ...     state, info = method.step(method.absorb(state, updates), lr=0.1)
    >>> state.model, method.output(state)
    (tensor([2.]), tensor([1.5000]))
    """

    inner: Algorithm[Any] = field(default_factory=FedAvg)
    power: Annotated[float, AtLeast(0)] = 0.0

    uses_directions_only = True

    def init(self, model: Tensor, population: Population) -> AveragedState:
        mean = model.to(torch.float64, copy=True)
        return AveragedState(self.inner.init(model, population), mean)

    def step(self, state: AveragedState, lr: float) -> tuple[AveragedState, RoundInfo]:
        """Step as the inner method does, and update the mean."""
        inner, info = self.inner.step(state.inner, lr)
        mean = state.mean.lerp(inner.model.double(), last_share(inner.round, self.power))
        return AveragedState(inner, mean), info

    def with_model(self, state: AveragedState, model: Tensor) -> AveragedState:
        """Replace the last iterate, also in the mean."""
        share = last_share(max(state.round, 1), self.power)
        mean = state.mean + share * (model.double() - state.model)
        return AveragedState(self.inner.with_model(state.inner, model), mean)

    def output(self, state: AveragedState) -> Tensor:
        """Return the mean of the iterates."""
        return state.mean.to(state.model.dtype)


def last_share(rounds: int, power: float) -> float:
    """Return the weight of the last iterate in a mean of so many, (1 + q) / (t + q)."""
    return (1 + power) / (rounds + power)
