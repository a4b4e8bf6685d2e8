"""Steps whose coordinates are scaled by the sizes of past steps, around any method."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedtide.algorithms._wrapper import Wrapper, WrapperState, require_one_model
from fedtide.algorithms.base import Algorithm, RoundInfo
from fedtide.algorithms.fedavg import FedAvg
from fedtide.population import Population
from fedtide.spec import spec

_FLOOR = 0.1
"""Added to the relative size of a coordinate's steps before they are divided by it."""

_LARGEST_FACTOR = 10.0
"""The largest factor by which a coordinate is scaled up."""


@dataclass(frozen=True)
class ScaledState(WrapperState):
    """The state of Scaled.

    Args:
        squares: v, the sum of the squares of the inner method's steps, shape (d,).
    """

    squares: Tensor


@spec
class Scaled(Wrapper[ScaledState]):
    """Any method, with steps in which all coordinates move about equally far, as in `Auto`.

    With D the inner method's step, v = 0 at first and c such that the mean of (c s / (s + 1/10))²
    is 1, elementwise:

        v ← v + D²,    s = √(v / mean(v)),    P = min(10, c / (s + 1/10))
        x ← x + P D

    The coordinates together move as far as without P, unless few have moved much farther than all
    others. P has no unit, and changes ever more slowly, as in AdaGrad (Duchi et al., 2011).

    Args:
        inner: the method whose steps are scaled.

    Raises:
        InvalidInputError: an `inner` whose clients keep models of their own (FedAWE, FedPBC).

    >>> from fedtide.algorithms.base import ClientUpdates
    >>> method = Scaled()
    >>> state = method.init(torch.zeros(2), Population(1))
    >>> delta, one = torch.tensor([[1.0, 3.0]]), torch.ones(1)
    >>> updates = ClientUpdates(torch.tensor([0]), one, delta, lr=0.1, steps=one)
    >>> method.step(method.absorb(state, updates), lr=0.1)[0].model
    tensor([2.0866, 2.3761])
    """

    inner: Algorithm[Any] = field(default_factory=FedAvg)

    uses_directions_only = True

    def __post_init__(self) -> None:
        require_one_model(self.inner)

    def init(self, model: Tensor, population: Population) -> ScaledState:
        return ScaledState(self.inner.init(model, population), torch.zeros_like(model))

    def step(self, state: ScaledState, lr: float) -> tuple[ScaledState, RoundInfo]:
        """Step as the inner method does, and scale the step."""
        inner, info = self.inner.step(state.inner, lr)
        squares = state.squares + info.direction.square()
        direction = info.direction * scales(squares)
        inner = self.inner.with_model(inner, state.model + direction)
        return ScaledState(inner, squares), replace(info, direction=direction)


def scales(squares: Tensor) -> Tensor:
    """Return P, shape (d,), given v; 1 before the first step."""
    mean = squares.mean()
    sizes = (squares / mean).sqrt()
    factors = 1 / (sizes + _FLOOR)
    factors = (factors / (factors * sizes).square().mean().sqrt()).clamp(max=_LARGEST_FACTOR)
    return torch.where(mean > 0, factors, 1.0)  # decided on the device, without waiting for it
