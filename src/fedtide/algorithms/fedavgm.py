"""FedAvgM: momentum on the server."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from fedtide.algorithms._wrapper import Wrapper, WrapperState, require_one_model
from fedtide.algorithms.base import Algorithm, RoundInfo
from fedtide.algorithms.fedavg import FedAvg
from fedtide.population import Population
from fedtide.spec import Positive, Within, spec

Convention = Literal["sum", "ema"]


@dataclass(frozen=True)
class MomentumState(WrapperState):
    """The state of FedAvgM.

    Args:
        m: the momentum, shape (d,).
    """

    m: Tensor


@spec
class FedAvgM(Wrapper[MomentumState]):
    """Server momentum (Hsu et al., 2019; Reddi et al., 2021), around any method.

    With D the step that the inner method proposes and m = 0 at first,

        sum:  m ← β m + D            (Hsu et al.)
        ema:  m ← β m + (1 - β) D    (Reddi et al.)
        x ← x + η m

    so that "sum" with η is "ema" with η / (1 - β). An empty round is a round with D = 0, in which
    m still moves x.

    Args:
        server_lr: η > 0.
        momentum: β in [0, 1).
        convention: "sum" or "ema".
        inner: the method whose steps are D.

    Raises:
        InvalidInputError: a number outside its range, an unknown convention, or an `inner`
            whose clients keep models of their own (FedAWE, FedPBC).

    >>> from fedtide.algorithms.base import ClientUpdates
    >>> method = FedAvgM(momentum=0.5)
    >>> state = method.init(torch.zeros(1), Population(1))
    >>> one = torch.ones(1)
    >>> updates = ClientUpdates(torch.tensor([0]), one, one[:, None], lr=0.1, steps=one)
    >>> for _ in range(2):
    ...     state, info = method.step(method.absorb(state, updates), lr=0.1)
    >>> state.model  # 1 + 1.5
    tensor([2.5000])
    """

    server_lr: Annotated[float, Positive] = 1.0
    momentum: Annotated[float, Within(0, 1, "[)")] = 0.9
    convention: Convention = "sum"
    inner: Algorithm[Any] = field(default_factory=FedAvg)

    def __post_init__(self) -> None:
        require_one_model(self.inner)

    uses_directions_only = True

    def init(self, model: Tensor, population: Population) -> MomentumState:
        return MomentumState(self.inner.init(model, population), m=torch.zeros_like(model))

    def step(self, state: MomentumState, lr: float) -> tuple[MomentumState, RoundInfo]:
        """Step along the momentum instead of the inner method's direction."""
        inner, info = self.inner.step(state.inner, lr)
        share = 1.0 if self.convention == "sum" else 1.0 - self.momentum
        m = self.momentum * state.m + share * info.direction
        direction = self.server_lr * m
        inner = self.inner.with_model(inner, state.model + direction)
        return MomentumState(inner, m), replace(info, direction=direction)
