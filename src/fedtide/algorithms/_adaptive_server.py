"""Adaptive server optimizers: what FedAdam and FedYogi have in common."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from fedtide.algorithms._wrapper import Wrapper, WrapperState, require_one_model
from fedtide.algorithms.base import Algorithm, RoundInfo
from fedtide.algorithms.fedavg import FedAvg
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.spec import AtLeast, Positive, Within


@dataclass(frozen=True)
class AdaptiveState(WrapperState):
    """The state of an adaptive server optimizer.

    Args:
        m: the first moment of the inner method's steps, shape (d,).
        v: the second moment, shape (d,).
    """

    m: Tensor
    v: Tensor


@dataclass(frozen=True)
class AdaptiveServer(Wrapper[AdaptiveState]):
    """x ← x + η m / (√v + τ); a method defines the update of v by Δ² (`second_moment`)."""

    server_lr: Annotated[float, Positive] = 0.1
    beta1: Annotated[float, Within(0, 1, "[)")] = 0.9
    beta2: Annotated[float, Within(0, 1, "[)")] = 0.99
    tau: Annotated[float, Positive] = 1e-3
    v0: Annotated[float, AtLeast(0)] | None = None
    inner: Algorithm[Any] = field(default_factory=FedAvg)

    def __post_init__(self) -> None:
        require_one_model(self.inner)

    @property
    def uses_directions_only(self) -> bool:
        return True

    @abstractmethod
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the next v, given the last and Δ²."""

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
