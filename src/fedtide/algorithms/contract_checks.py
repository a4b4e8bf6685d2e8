"""Checks that a method of the user's own keeps the contract of algorithms."""

from __future__ import annotations

import math
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.algorithms.base import Algorithm, Cohort, Instructions, RoundInfo
from fedtide.errors import InvalidInputError
from fedtide.import_paths import is_own


def involves_own(algorithm: Algorithm[Any]) -> bool:
    """Return whether a method, or one that it is built on, is the user's own."""
    parts = (part for part in vars(algorithm).values() if isinstance(part, Algorithm))
    return is_own(type(algorithm)) or any(map(involves_own, parts))


class ContractCheck:
    """Follows the state of a method of the user's own, and refuses what breaks the contract.

    Others hold the model, too, so it must not change in place. A `RoundInfo` that does not say what
    happened misleads wrappers, reports and the influence of clients.

    Args:
        state: what `init` returned.
        model: what it was given, shape (d,).
        clients: N.

    Raises:
        InvalidInputError: anything but a state before round 0 with such a model.
    """

    def __init__(self, state: Any, model: Tensor, clients: int) -> None:
        is_state = is_dataclass(state) and isinstance(getattr(state, "model", None), Tensor)
        if not is_state or not hasattr(state, "round"):
            raise InvalidInputError(
                f"init: it returned {state!r:.60}; return a state, a frozen dataclass with `model` "
                "and `round`"
            )
        if state.round != 0:
            raise InvalidInputError(f"init: its state has round {state.round}; give it round 0")
        _check_tensor("init", "model", state.model, model)
        self._clients = clients
        self._begin_round(state)

    def after_choose_cohort(self, found: Any) -> None:
        """Check what `choose_cohort` returned.

        Raises:
            InvalidInputError: no cohort of different clients.
        """
        if not isinstance(found, Cohort):
            raise InvalidInputError(
                f"algorithm.choose_cohort: it returned {found!r:.60}; return a Cohort, such as "
                "cohort.select(positions)"
            )
        _check_ids("algorithm.choose_cohort: its Cohort", found.clients, found.weights)
        ids = found.clients.cpu().numpy()
        different = np.unique(ids)  # ascending
        outside = len(ids) > 0 and not 0 <= different[0] <= different[-1] < self._clients
        if outside or len(different) < len(ids):
            raise InvalidInputError(
                f"algorithm.choose_cohort: its Cohort has the clients {ids!s:.60}; give ids from 0 "
                f"to {self._clients - 1}, each at most once"
            )

    def after_instruct(self, clients: Tensor, found: Any) -> None:
        """Check what `instruct` returned for these clients, shape (S,).

        Raises:
            InvalidInputError: no instructions, or a model or correction of another shape or dtype.
        """
        if not isinstance(found, Instructions):
            raise InvalidInputError(
                f"algorithm.instruct: it returned {found!r:.60}; return Instructions(model, ...)"
            )
        _check_tensor("algorithm.instruct", "model", found.model, self._start)
        if found.correction is not None:
            rows = self._start.expand(len(clients), -1)
            _check_tensor("algorithm.instruct", "correction", found.correction, rows)

    def after_weigh(self, clients: Tensor, found: Any) -> None:
        """Check what `weigh` returned for these clients, shape (S,).

        Raises:
            InvalidInputError: neither None nor one weight for each in the dtype of the model.
        """
        if found is not None:
            like = torch.empty(len(clients), dtype=self._start.dtype)
            _check_tensor("algorithm.weigh", "result", found, like)

    def after_output(self, found: Any) -> None:
        """Check what `output` returned.

        Raises:
            InvalidInputError: no model of the shape and dtype of the first one.
        """
        _check_tensor("algorithm.output", "result", found, self._start)

    def after_absorb(self, before: Any, clients: Tensor, after: Any) -> None:
        """Check what `absorb` or `absorb_total` made of a state and the updates of these clients.

        Raises:
            InvalidInputError: no state, or a model that was changed in place.
        """
        self._resume(before)
        self._check_state("absorb", after)
        self._arrived.append(clients.cpu().numpy())
        self._state = after

    def after_step(self, before: Any, found: Any) -> None:
        """Check what `step` made of a state.

        Raises:
            InvalidInputError: no state of the next round, a model that was changed in place, or a
                `RoundInfo` that does not say what happened.
        """
        self._resume(before)
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], RoundInfo)):
            raise InvalidInputError(
                f"algorithm.step: it returned {found!r:.60}; return the next state and a RoundInfo"
            )
        state, info = found
        self._check_state("step", state)
        if state is before:
            raise InvalidInputError(
                "algorithm.step: it returned the state that it was given, which must not change; "
                "return a new one, such as dataclasses.replace(state, ...)"
            )
        if state.round != before.round + 1:
            raise InvalidInputError(
                f"algorithm.step: round {before.round} is followed by round {state.round}; return "
                "a state with round=state.round + 1"
            )
        _check_tensor("algorithm.step", "model", state.model, self._start)
        self._check_clients(info)
        _check_tensor("algorithm.step", "direction", info.direction, self._start)
        _check_direction(self._start, state.model, info.direction)
        self._begin_round(state)

    def _begin_round(self, state: Any) -> None:
        self._state, self._start, self._version = state, state.model, _version(state.model)
        self._arrived: list[NDArray[np.int64]] = []

    def _resume(self, state: Any) -> None:
        """Begin anew from a state that was set from outside, as from a checkpoint."""
        if state is not self._state:
            self._begin_round(state)

    def _check_state(self, function: str, found: Any) -> None:
        expected = type(self._state)
        if type(found) is not expected:
            raise InvalidInputError(
                f"algorithm.{function}: it returned {found!r:.60}; return the next state, of type "
                f"{expected.__name__}"
            )
        if _version(self._start) != self._version:
            raise InvalidInputError(
                f"algorithm.{function}: the model was changed in place, but others hold it, too; "
                "make a new one, such as state.model + change"
            )

    def _check_clients(self, info: RoundInfo) -> None:
        _check_ids("algorithm.step: its RoundInfo", info.clients, info.weights)
        listed = info.clients.cpu().numpy()
        arrived = np.concatenate([listed[:0], *self._arrived])
        if len(np.intersect1d(listed, arrived)) < len(listed):
            raise InvalidInputError(
                f"algorithm.step: its RoundInfo has the clients {listed!s:.60}, but the updates of "
                f"this round came from {arrived!s:.60}; list each of these at most once, and begin "
                "every round without clients"
            )


def _version(model: Tensor) -> int:
    """Return how often a tensor was changed in place; inference tensors do not count it."""
    return 0 if model.is_inference() else model._version


def _check_ids(field: str, clients: Any, weights: Any) -> None:
    """Refuse what are not the ids of some clients, int64, and a weight for each."""
    for name, value in {"clients": clients, "weights": weights}.items():
        if not isinstance(value, Tensor):
            raise InvalidInputError(f"{field} has {name} {value!r:.60}; give a tensor")
    if clients.dtype != torch.int64:
        raise InvalidInputError(
            f"{field} has clients of dtype {clients.dtype}; give their ids, of dtype torch.int64"
        )
    if clients.ndim != 1 or weights.shape != clients.shape:
        raise InvalidInputError(
            f"{field} has weights of shape {tuple(weights.shape)} for clients of shape "
            f"{tuple(clients.shape)}; give one for each client"
        )


def _check_tensor(field: str, name: str, found: Any, like: Tensor) -> None:
    if not isinstance(found, Tensor):
        raise InvalidInputError(f"{field}: its {name} is {found!r:.60}; return a tensor")
    if found.shape != like.shape or found.dtype != like.dtype:
        raise InvalidInputError(
            f"{field}: its {name} has shape {tuple(found.shape)} and dtype {found.dtype}; return "
            f"one of shape {tuple(like.shape)} and dtype {like.dtype}"
        )


def _check_direction(before: Tensor, after: Tensor, direction: Tensor) -> None:
    """Refuse a direction that differs from the change of the model by more than rounding."""
    size = torch.linalg.vector_norm
    error = after - before
    change = float(size(error))
    error -= direction
    rounding = math.sqrt(torch.finfo(after.dtype).eps) * float(size(before) + size(after))
    if rounding < float(size(error)) < math.inf:  # not finite: the run says so itself
        raise InvalidInputError(
            f"algorithm.step: its RoundInfo has a direction of norm {float(size(direction)):.3g}, "
            f"which is not the change of the model, of norm {change:.3g}; give the difference of "
            "the new model and the former one, and change no model in place"
        )
