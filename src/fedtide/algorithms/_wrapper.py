"""Algorithms that build on another one: every call goes to `inner` unless it is overridden."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from fedtide.algorithms.base import (
    Algorithm,
    AlgorithmState,
    ClientUpdates,
    Cohort,
    Instructions,
    RoundInfo,
    Traits,
    WeightedTotal,
)
from fedtide.errors import InvalidInputError


@dataclass(frozen=True)
class WrapperState:
    """The state of a wrapper: the state of the inner algorithm, which holds the model.

    Args:
        inner: the state of the inner algorithm.
    """

    inner: AlgorithmState

    @property
    def model(self) -> Tensor:
        """x_t, shape (d,)."""
        return self.inner.model

    @property
    def round(self) -> int:
        """t, the number of completed rounds."""
        return self.inner.round


def require_one_model(inner: Algorithm[Any]) -> None:
    """Raise InvalidInputError unless all clients start from the model that a wrapper moves."""
    if inner.traits.clients_keep_models:
        raise InvalidInputError(
            "inner: its clients continue from models of their own, most of which the steps of this "
            "method would not reach; give one whose clients start from the server's model"
        )


WrapperT = TypeVar("WrapperT", bound=WrapperState)


class Wrapper(Algorithm[WrapperT]):
    """A method around another one, `inner`, which does whatever is not overridden.

    A subclass is a frozen dataclass with a field `inner`, whose `init` returns a `WrapperState`. If
    it moves the model, it passes the new one to `inner.with_model` and does not fit around methods
    whose trait `clients_keep_models` is true.
    """

    inner: Algorithm[Any]

    uses_directions_only = False
    """Whether it sees of the updates only the `direction` of the inner method's step."""

    @property
    def traits(self) -> Traits:
        """Those of `inner`; but what a step consists of, only a subclass can say."""
        inner = self.inner.traits
        amplified = inner.amplification and f"inner.{inner.amplification}"
        return replace(
            inner, averages_updates=False, scales_coordinates=False, amplification=amplified
        )

    def choose_cohort(self, state: WrapperT, cohort: Cohort) -> Cohort:
        return self.inner.choose_cohort(state.inner, cohort)

    def instruct(self, state: WrapperT, clients: Tensor) -> Instructions:
        return self.inner.instruct(state.inner, clients)

    def absorb(self, state: WrapperT, updates: ClientUpdates) -> WrapperT:
        return replace(state, inner=self.inner.absorb(state.inner, updates))

    def weigh(self, state: WrapperT, updates: ClientUpdates) -> Tensor | None:
        """Return the weights of `inner`, unless this method itself looks at the updates."""
        if type(self).absorb is not Wrapper.absorb:
            return None
        return self.inner.weigh(state.inner, updates)

    def absorb_total(self, state: WrapperT, total: WeightedTotal) -> WrapperT:
        return replace(state, inner=self.inner.absorb_total(state.inner, total))

    def step(self, state: WrapperT, lr: float) -> tuple[WrapperT, RoundInfo]:
        inner, info = self.inner.step(state.inner, lr)
        return replace(state, inner=inner), info

    def with_model(self, state: WrapperT, model: Tensor) -> WrapperT:
        return replace(state, inner=self.inner.with_model(state.inner, model))

    def output(self, state: WrapperT) -> Tensor:
        return self.inner.output(state.inner)
