"""FedAdam and FedYogi: adaptive optimizers on the server."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from fedtide.algorithms._wrapper import Wrapper, WrapperState, require_one_model
from fedtide.algorithms.base import Algorithm, RoundInfo
from fedtide.algorithms.fedavg import FedAvg
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.spec import AtLeast, Positive, Within, spec


@dataclass(frozen=True)
class AdaptiveState(WrapperState):
    """The state of an adaptive server optimizer.

    Args:
        m: the first moment of the inner method's steps, shape (d,).
        v: the second moment, shape (d,).
    """

    m: Tensor
    v: Tensor


@spec
class FedAdam(Wrapper[AdaptiveState]):
    """Adam on the server (Reddi et al., 2021, Algorithm 2), around any method.

    With D the step that the inner method proposes, elementwise,

        m ← β1 m + (1 - β1) D,        m = 0 at first
        v ← β2 v + (1 - β2) D²
        x ← x + η m / (√v + τ)

    without bias correction. An empty round is a round with D = 0, in which m still moves x.

    Args:
        server_lr: η > 0; each coordinate of x moves by about η a round.
        beta1: β1 in [0, 1).
        beta2: β2 in [0, 1).
        tau: τ > 0: coordinates with steps far below τ move like FedAvg with η / τ.
        v0: v at first, >= 0; None: τ², the least that the paper allows.
        inner: the method whose steps are D.

    Raises:
        InvalidInputError: a number outside its range, or an `inner` whose clients keep models of
            their own (FedAWE, FedPBC).

    >>> from fedtide.algorithms.base import ClientUpdates
    >>> method = FedAdam(server_lr=0.1, beta1=0.5, beta2=0.5, tau=1.0)
    >>> state = method.init(torch.zeros(1), Population(1))
    >>> one = torch.ones(1)
    >>> updates = ClientUpdates(torch.tensor([0]), one, one[:, None], lr=0.1, steps=one)
    >>> method.step(method.absorb(state, updates), lr=0.1)[0].model  # m = 1/2, v = 1
    tensor([0.0250])
    """

    server_lr: Annotated[float, Positive] = 0.1
    beta1: Annotated[float, Within(0, 1, "[)")] = 0.9
    beta2: Annotated[float, Within(0, 1, "[)")] = 0.99
    tau: Annotated[float, Positive] = 1e-3
    v0: Annotated[float, AtLeast(0)] | None = None
    inner: Algorithm[Any] = field(default_factory=FedAvg)

    uses_directions_only = True

    def __post_init__(self) -> None:
        require_one_model(self.inner)

    def init(self, model: Tensor, population: Population) -> AdaptiveState:
        v0 = self.tau * self.tau if self.v0 is None else self.v0
        if v0 > torch.finfo(model.dtype).max:
            name = "tau" if self.v0 is None else "v0"
            raise InvalidInputError(f"{name}: {getattr(self, name)} is too large for {model.dtype}")
        inner = self.inner.init(model, population)
        return AdaptiveState(inner, m=torch.zeros_like(model), v=torch.full_like(model, v0))

    def step(self, state: AdaptiveState, lr: float) -> tuple[AdaptiveState, RoundInfo]:
        """Take the adaptive step instead of the inner method's."""
        inner, info = self.inner.step(state.inner, lr)
        m = self.beta1 * state.m + (1.0 - self.beta1) * info.direction
        v = self.second_moment(state.v, info.direction**2)
        direction = self.server_lr * m / (v.sqrt() + self.tau)
        inner = self.inner.with_model(inner, state.model + direction)
        return AdaptiveState(inner, m, v), replace(info, direction=direction)

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the next v, given the last and D²."""
        return self.beta2 * v + (1.0 - self.beta2) * square


@spec
class FedYogi(FedAdam):
    """Yogi on the server (Reddi et al., 2021, Algorithm 2), around any method.

    `FedAdam`, with the same parameters, but v moves by a share of D² only, elementwise,

        v ← v - (1 - β2) D² sign(v - D²)

    so that it falls slowly after large steps.

    >>> from fedtide.algorithms.base import ClientUpdates
    >>> method = FedYogi(server_lr=0.1, beta1=0.5, beta2=0.5, tau=1.0)
    >>> state = method.init(torch.zeros(1), Population(1))
    >>> one = torch.ones(1)
    >>> updates = ClientUpdates(torch.tensor([0]), one, one[:, None], lr=0.1, steps=one)
    >>> method.step(method.absorb(state, updates), lr=0.1)[0].model  # m = 1/2, v = 1
    tensor([0.0250])
    """

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1.0 - self.beta2) * square * (v - square).sign()
