"""Algorithms that build on another one: every call goes to `inner` unless it is overridden."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from fedtide.algorithms.base import (
    Algorithm,
    AlgorithmState,
    Amplification,
    ClientUpdates,
    Cohort,
    Instructions,
    RoundInfo,
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
    if inner.clients_keep_models:
        raise InvalidInputError(
            "inner: its clients continue from models of their own, most of which the steps of this "
            "method would not reach; give one whose clients start from the server's model"
        )


WrapperT = TypeVar("WrapperT", bound=WrapperState)


class Wrapper(Algorithm[WrapperT]):
    """A method around another one, `inner`, which does whatever is not overridden.

    A subclass is a frozen dataclass with a field `inner`, whose `init` returns a `WrapperState`. If
    it moves the model, it passes the new one to `inner.with_model` and does not fit around methods
    with `clients_keep_models`.
    """

    inner: Algorithm[Any]

    @property
    def uses_directions_only(self) -> bool:
        """Whether it sees of the updates only the `direction` of the inner method's step."""
        return False

    @property
    def centralised(self) -> bool:
        return self.inner.centralised

    @property
    def requires_plain_sgd(self) -> bool:
        return self.inner.requires_plain_sgd

    @property
    def keeps_gradients(self) -> bool:
        return self.inner.keeps_gradients

    @property
    def weights_follow_updates(self) -> bool:
        return self.inner.weights_follow_updates

    @property
    def uses_local_lr(self) -> bool:
        return self.inner.uses_local_lr

    @property
    def uses_absent_clients(self) -> bool:
        return self.inner.uses_absent_clients

    @property
    def accepts_stale_updates(self) -> bool:
        return self.inner.accepts_stale_updates

    @property
    def clients_keep_models(self) -> bool:
        return self.inner.clients_keep_models

    @property
    def simulation_only(self) -> str:
        return self.inner.simulation_only

    @property
    def client_form(self) -> str:
        return self.inner.client_form

    @property
    def message_vectors(self) -> int:
        return self.inner.message_vectors

    @property
    def amplification(self) -> Amplification | None:
        found = self.inner.amplification
        return None if found is None else found.prefixed("inner")

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

    def add_clients(self, state: WrapperT, first: int) -> WrapperT:
        inner = self.inner.add_clients(state.inner, first)
        return replace(super().add_clients(state, first), inner=inner)

    def with_model(self, state: WrapperT, model: Tensor) -> WrapperT:
        return replace(state, inner=self.inner.with_model(state.inner, model))

    def is_finished(self, state: WrapperT) -> bool:
        return self.inner.is_finished(state.inner)

    def output(self, state: WrapperT) -> Tensor:
        return self.inner.output(state.inner)
