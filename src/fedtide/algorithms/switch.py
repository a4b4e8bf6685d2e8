"""One method first, then another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

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
from fedtide.population import Population
from fedtide.spec import AtLeast, spec


@dataclass(frozen=True)
class SwitchState:
    """The state of Switch.

    Args:
        round: t, the number of completed rounds.
        first: the state of the first method.
        second: the state of the second, which stays at its round 0 until the switch.
        switched: whether the second method is active.
    """

    round: int
    first: AlgorithmState
    second: AlgorithmState
    switched: bool

    @property
    def active(self) -> AlgorithmState:
        """The state of the active method."""
        return self.second if self.switched else self.first

    @property
    def model(self) -> Tensor:
        """x_t, shape (d,)."""
        return self.active.model


@spec
class Switch(Algorithm[SwitchState]):
    """One method until a given round, then another, which continues from the current model.

    The second method starts without history: its round 0 is round `at`, from which it counts
    periods and absences. A warm-up with FedAvg, as used by Wang & Ji 2022 before amplification and
    by Yan et al. 2020 before FedLaAvg, is `Switch(first=FedAvg(), second=..., at=2000)`.

    Args:
        first: the method of the rounds before `at`.
        second: the method of round `at` and after.
        at: the round in which the second begins; 0 is the second alone.

    Raises:
        InvalidInputError: `at` negative, only one of the methods pools the data, or one of them
            keeps its memory on the clients.

    >>> import torch
    >>> from fedtide.algorithms.fedavg import FedAvg
    >>> method = Switch(first=FedAvg(), second=FedAvg(server_lr=10.0), at=1)
    >>> state = method.init(torch.zeros(1), Population(1))
    >>> one = torch.ones(1)
    >>> updates = ClientUpdates(torch.tensor([0]), one, one[:, None], lr=0.1, steps=one)
    >>> for _ in range(3):
    ...     state, info = method.step(method.absorb(state, updates), lr=0.1)
    >>> state.model
    tensor([21.])
    """

    first: Algorithm[Any]
    second: Algorithm[Any]
    at: Annotated[int, AtLeast(0)]

    def __post_init__(self) -> None:
        if self.first.traits.centralised != self.second.traits.centralised:
            raise InvalidInputError(
                "second: one method pools all data and the other does not; give two of the same "
                "kind"
            )
        for name in ("first", "second"):
            if getattr(self, name).traits.client_form:
                raise InvalidInputError(
                    f"{name}: clients cannot change the form of their updates during a run; give "
                    "the method without ClientSideMemory"
                )

    @property
    def traits(self) -> Traits:
        """What holds for one of the methods, or for both."""
        first, second = self.first.traits, self.second.traits
        amplified = second.amplification and f"second.{second.amplification}"
        either = {
            name: getattr(first, name) or getattr(second, name)
            for name in (
                "requires_plain_sgd",
                "uses_local_lr",
                "keeps_gradients",
                "uses_absent_clients",
                "weights_follow_updates",
                "clients_keep_models",
                "simulation_only",
            )
        }
        return Traits(
            centralised=first.centralised,
            accepts_stale_updates=first.accepts_stale_updates and second.accepts_stale_updates,
            message_vectors=max(first.message_vectors, second.message_vectors),
            amplification=amplified,
            **either,
        )

    def init(self, model: Tensor, population: Population) -> SwitchState:
        first = self.first.init(model, population)
        second = self.second.init(model.clone(), population)
        return SwitchState(0, first, second, switched=self.at == 0)

    def choose_cohort(self, state: SwitchState, cohort: Cohort) -> Cohort:
        return self._active(state).choose_cohort(state.active, cohort)

    def instruct(self, state: SwitchState, clients: Tensor) -> Instructions:
        return self._active(state).instruct(state.active, clients)

    def absorb(self, state: SwitchState, updates: ClientUpdates) -> SwitchState:
        return _with_active(state, self._active(state).absorb(state.active, updates))

    def weigh(self, state: SwitchState, updates: ClientUpdates) -> Tensor | None:
        return self._active(state).weigh(state.active, updates)

    def absorb_total(self, state: SwitchState, total: WeightedTotal) -> SwitchState:
        return _with_active(state, self._active(state).absorb_total(state.active, total))

    def step(self, state: SwitchState, lr: float) -> tuple[SwitchState, RoundInfo]:
        """Step as the active method does; after round `at` - 1, pass its model to the second."""
        active, info = self._active(state).step(state.active, lr)
        state = replace(_with_active(state, active), round=state.round + 1)
        if state.round != self.at:
            return state, info
        second = self.second.with_model(state.second, state.model.clone())
        return replace(state, second=second, switched=True), info

    def with_model(self, state: SwitchState, model: Tensor) -> SwitchState:
        return _with_active(state, self._active(state).with_model(state.active, model))

    def output(self, state: SwitchState) -> Tensor:
        return self._active(state).output(state.active)

    def _active(self, state: SwitchState) -> Algorithm[Any]:
        return self.second if state.switched else self.first


def _with_active(state: SwitchState, active: AlgorithmState) -> SwitchState:
    """Return the state with another state of the active method."""
    return replace(state, second=active) if state.switched else replace(state, first=active)
