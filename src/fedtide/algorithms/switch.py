"""One method first, then another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedtide.algorithms.base import Algorithm, ClientUpdates, Instructions, RoundInfo
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.validation import at_least


@dataclass(frozen=True)
class SwitchState:
    """The state of Switch.

    Args:
        round: t, the number of rounds that have ended.
        first: the state of the first method.
        second: the state of the second, which waits in its round 0 until the switch.
        begun: whether the second method is at work.
    """

    round: int
    first: Any
    second: Any
    begun: bool

    @property
    def active(self) -> Any:
        """The state of the method at work."""
        return self.second if self.begun else self.first

    @property
    def model(self) -> Tensor:
        """x_t, shape (d,)."""
        model: Tensor = self.active.model
        return model


@dataclass(frozen=True)
class Switch(Algorithm):
    """One method until round `at`, then another, which goes on from the model that it finds.

    The second method starts afresh: its round 0 is round `at`, from which it counts periods and
    absences. So a warm-up of plain averaging (paper 000) or of FedAvg before FedLaAvg (paper 003)
    is `Switch(first=FedAvg(), second=..., at=2000)`.

    Args:
        first: the method of the rounds before `at`.
        second: the method of round `at` and after.
        at: the round in which the second begins; 0 is the second alone.

    Raises:
        InvalidInputError: `at` negative, or one method that pools all data and one that does not.

    >>> import torch
    >>> from fedtide.algorithms.fedavg import FedAvg
    >>> method = Switch(first=FedAvg(), second=FedAvg(server_lr=10.0), at=1)
    >>> state = method.init(torch.zeros(1), Population(1))
    >>> reports = ClientUpdates(torch.tensor([0]), torch.ones(1), torch.ones(1, 1), 0.1, torch.ones(1))
    >>> for _ in range(3):
    ...     state, info = method.step(method.absorb(state, reports), lr=0.1)
    >>> state.model
    tensor([21.])
    """

    first: Algorithm
    second: Algorithm
    at: int

    def __post_init__(self) -> None:
        at_least("at", self.at, 0)
        if self.first.centralised != self.second.centralised:
            raise InvalidInputError(
                "second: one method pools all data and one does not; choose two alike"
            )

    @property
    def centralised(self) -> bool:
        """Whether both methods are."""
        return self.first.centralised

    @property
    def requires_plain_sgd(self) -> bool:
        """Whether one of the methods needs them."""
        return self.first.requires_plain_sgd or self.second.requires_plain_sgd

    def init(self, model: Tensor, population: Population) -> SwitchState:
        """Return the state before round 0."""
        first = self.first.init(model, population)
        second = self.second.init(model.clone(), population)
        return SwitchState(0, first, second, begun=self.at == 0)

    def cohort(self, state: SwitchState, clients: Tensor) -> Tensor:
        """Return whom the method at work trains."""
        return self._active(state).cohort(state.active, clients)

    def instruct(self, state: SwitchState, clients: Tensor) -> Instructions:
        """Return how the method at work trains."""
        return self._active(state).instruct(state.active, clients)

    def absorb(self, state: SwitchState, reports: ClientUpdates) -> SwitchState:
        """Hand the reports to the method at work."""
        return _with_active(state, self._active(state).absorb(state.active, reports))

    def step(self, state: SwitchState, lr: float) -> tuple[SwitchState, RoundInfo]:
        """Let the method at work step; hand its model over when the time has come."""
        active, info = self._active(state).step(state.active, lr)
        state = replace(_with_active(state, active), round=state.round + 1)
        if state.round != self.at:
            return state, info
        second = self.second.with_model(state.second, state.model.clone())
        return replace(state, second=second, begun=True), info

    def with_model(self, state: SwitchState, model: Tensor) -> SwitchState:
        """Move the model of the method at work."""
        return _with_active(state, self._active(state).with_model(state.active, model))

    def output(self, state: SwitchState) -> Tensor:
        """Return what the method at work recommends."""
        return self._active(state).output(state.active)

    def _active(self, state: SwitchState) -> Algorithm:
        return self.second if state.begun else self.first


def _with_active(state: SwitchState, active: Any) -> SwitchState:
    """Return the state with another state of the method at work."""
    return replace(state, second=active) if state.begun else replace(state, first=active)
