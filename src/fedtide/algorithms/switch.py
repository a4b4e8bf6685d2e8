"""One method first, then another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

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
        if self.first.centralised != self.second.centralised:
            raise InvalidInputError(
                "second: one method pools all data and the other does not; give two of the same "
                "kind"
            )
        for name in ("first", "second"):
            if getattr(self, name).client_form:
                raise InvalidInputError(
                    f"{name}: clients cannot change the form of their updates during a run; give "
                    "the method without ClientSideMemory"
                )

    @property
    def centralised(self) -> bool:
        """Whether both methods pool the data."""
        return self.first.centralised

    @property
    def requires_plain_sgd(self) -> bool:
        """Whether one of the methods does."""
        return self.first.requires_plain_sgd or self.second.requires_plain_sgd

    @property
    def keeps_gradients(self) -> bool:
        """Whether one of the methods does."""
        return self.first.keeps_gradients or self.second.keeps_gradients

    @property
    def weights_follow_updates(self) -> bool:
        """Whether the weights of one of the methods do."""
        return self.first.weights_follow_updates or self.second.weights_follow_updates

    @property
    def uses_local_lr(self) -> bool:
        """Whether one of the methods does."""
        return self.first.uses_local_lr or self.second.uses_local_lr

    @property
    def uses_absent_clients(self) -> bool:
        """Whether one of the methods does."""
        return self.first.uses_absent_clients or self.second.uses_absent_clients

    @property
    def accepts_stale_updates(self) -> bool:
        """Whether both methods do."""
        return self.first.accepts_stale_updates and self.second.accepts_stale_updates

    @property
    def clients_keep_models(self) -> bool:
        """Whether the clients of one of the methods do."""
        return self.first.clients_keep_models or self.second.clients_keep_models

    @property
    def message_vectors(self) -> int:
        """The larger number of the two methods."""
        return max(self.first.message_vectors, self.second.message_vectors)

    @property
    def simulation_only(self) -> str:
        """What one of the methods needs."""
        return self.first.simulation_only or self.second.simulation_only

    @property
    def amplification(self) -> Amplification | None:
        """The amplification of the second method, which begins at round `at`."""
        found = self.second.amplification
        if found is None:
            return None
        return replace(found.prefixed("second"), start=self.at + found.start)

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

    def add_clients(self, state: SwitchState, first: int) -> SwitchState:
        return replace(
            super().add_clients(state, first),
            first=self.first.add_clients(state.first, first),
            second=self.second.add_clients(state.second, first),
        )

    def with_model(self, state: SwitchState, model: Tensor) -> SwitchState:
        return _with_active(state, self._active(state).with_model(state.active, model))

    def output(self, state: SwitchState) -> Tensor:
        return self._active(state).output(state.active)

    def _active(self, state: SwitchState) -> Algorithm[Any]:
        return self.second if state.switched else self.first


def _with_active(state: SwitchState, active: AlgorithmState) -> SwitchState:
    """Return the state with another state of the active method."""
    return replace(state, second=active) if state.switched else replace(state, first=active)
