"""What the methods share that build on another method."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedtide.algorithms.base import Algorithm, ClientUpdates, Instructions, RoundInfo
from fedtide.population import Population


@dataclass(frozen=True)
class WrapperState:
    """The state of a wrapper: the inner method's state, which holds the model, and its own.

    Args:
        inner: the state of the inner method.
    """

    inner: Any

    @property
    def model(self) -> Tensor:
        """x_t, shape (d,)."""
        model: Tensor = self.inner.model
        return model

    @property
    def round(self) -> int:
        """t, the number of rounds that have ended."""
        ended: int = self.inner.round
        return ended


class Wrapper(Algorithm):
    """A method that does as its inner method does, but for what it says itself."""

    if TYPE_CHECKING:  # a field of most wrappers, a property of the others

        @property
        def inner(self) -> Algorithm:
            """The method inside."""

    @property
    def centralised(self) -> bool:
        """Whether the inner method is."""
        return self.inner.centralised

    @property
    def requires_plain_sgd(self) -> bool:
        """Whether the inner method needs them."""
        return self.inner.requires_plain_sgd

    def init(self, model: Tensor, population: Population) -> Any:
        """Return the state before round 0."""
        return WrapperState(self.inner.init(model, population))

    def cohort(self, state: Any, clients: Tensor) -> Tensor:
        """Return whom the inner method trains."""
        return self.inner.cohort(state.inner, clients)

    def instruct(self, state: Any, clients: Tensor) -> Instructions:
        """Return how the inner method trains."""
        return self.inner.instruct(state.inner, clients)

    def absorb(self, state: Any, reports: ClientUpdates) -> Any:
        """Hand the reports to the inner method."""
        return replace(state, inner=self.inner.absorb(state.inner, reports))

    def step(self, state: Any, lr: float) -> tuple[Any, RoundInfo]:
        """Step as the inner method does."""
        inner, info = self.inner.step(state.inner, lr)
        return replace(state, inner=inner), info

    def with_model(self, state: Any, model: Tensor) -> Any:
        """Move the inner method's model."""
        return replace(state, inner=self.inner.with_model(state.inner, model))

    def output(self, state: Any) -> Tensor:
        """Return what the inner method recommends."""
        return self.inner.output(state.inner)
