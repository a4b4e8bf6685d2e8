"""Checks that a user-defined method keeps the contract of algorithms."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.algorithms.base import Algorithm, Cohort, Instructions, RoundInfo
from fedtide.errors import InvalidInputError
from fedtide.import_paths import is_own

_logger = logging.getLogger("fedtide")
_LARGE = 1000
"""Of longer containers only the length is compared."""
_NUMPY_ROUNDS = 10
"""The number of rounds in which the use of NumPy's global generator is checked."""

_MAY_REUSE_MEMORY = ("absorb", "absorb_total", "step")
"""The functions of a method that are not pure."""


def find_own(algorithm: Algorithm[Any]) -> Iterator[Algorithm[Any]]:
    """Yield the user-defined ones among a method and the methods that it wraps."""
    if is_own(type(algorithm)):
        yield algorithm
    for part in vars(algorithm).values():
        if isinstance(part, Algorithm):
            yield from find_own(part)


class ContractCheck:
    """Follows the state of a user-defined method, and raises an error if it breaks the contract.

    The model must not change in place, because others hold it, too. A wrong `RoundInfo` would
    mislead wrappers, reports and the computation of influences. A method that draws from a global
    generator or stores something in itself only causes a warning: a resumed run may then differ.

    Args:
        own: the user-defined ones among the method and the methods that it wraps.
        state: what `init` returned.
        model: the model that `init` was given, shape (d,).
        clients: N.

    Raises:
        InvalidInputError: `state` is not a state before round 0 with such a model.
    """

    def __init__(
        self, own: Iterable[Algorithm[Any]], state: Any, model: Tensor, clients: int
    ) -> None:
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
        self._attributes = [(method, _attributes(method)) for method in own]
        self._warned: set[str] = set()
        self._begin_round(state)

    def call(self, name: str, function: Callable[..., Any], state: Any, *args: Any) -> Any:
        """Return what the function of this name returns; warn if it uses a global generator.

        Raises:
            InvalidInputError: it changed a state that it may only read.
        """
        versions, t = _versions(state), state.round
        generators = _generators(t)
        found = function(state, *args)
        if _generators(t) != generators:
            self._warn(
                f"algorithm.{name}: it used the global random generator of torch or NumPy; if what "
                "it returns depends on that, no run can be repeated or resumed: draw from "
                "fedtide.randomness.generator(seed, purpose, state.round)"
            )
        if name not in _MAY_REUSE_MEMORY and _versions(state) != versions:
            raise InvalidInputError(
                f"algorithm.{name}: it changed a tensor of the state in place, which only absorb "
                "and step may do; make a new one"
            )
        return found

    def _warn(self, sentence: str) -> None:
        """Log a warning once."""
        if sentence not in self._warned:
            self._warned.add(sentence)
            _logger.warning(sentence)

    def after_choose_cohort(self, found: Any) -> None:
        """Check what `choose_cohort` returned.

        Raises:
            InvalidInputError: it is not a cohort of distinct clients.
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

    def after_instruct(self, clients: Tensor, found: Any, vectors: int) -> None:
        """Check what `instruct` returned for these clients, shape (S,).

        Args:
            clients: their ids.
            found: what it returned.
            vectors: the `message_vectors` of the method.

        Raises:
            InvalidInputError: not instructions, a model or correction of another shape or dtype, or
                a μ that is not a finite number.
        """
        if not isinstance(found, Instructions):
            raise InvalidInputError(
                f"algorithm.instruct: it returned {found!r:.60}; return Instructions(model, ...)"
            )
        rows = self._start.expand(len(clients), -1)
        own = isinstance(found.model, Tensor) and found.model.ndim == 2
        _check_tensor("algorithm.instruct", "model", found.model, rows if own else self._start)
        if found.correction is not None:
            _check_tensor("algorithm.instruct", "correction", found.correction, rows)
        mu: Any = found.mu
        is_number = isinstance(mu, Real) or (isinstance(mu, Tensor) and mu.numel() == 1)
        if not is_number or not math.isfinite(mu):
            raise InvalidInputError(
                f"algorithm.instruct: its mu is {mu!r:.60}; give one finite number"
            )
        sent = 2 + sum([found.correction is not None, found.gradients, found.end_gradients])
        if sent > vectors:
            self._warn(
                f"algorithm.message_vectors: it is {vectors}, but with the correction or the "
                f"gradients of instruct, {sent} vectors are sent; override it, or reports show too "
                "few bytes"
            )

    def after_weigh(self, clients: Tensor, found: Any) -> None:
        """Check what `weigh` returned for these clients, shape (S,).

        Raises:
            InvalidInputError: neither None nor one weight per client in the dtype of the model.
        """
        if found is not None:
            like = torch.empty(len(clients), dtype=self._start.dtype)
            _check_tensor("algorithm.weigh", "result", found, like)

    def after_output(self, found: Any) -> None:
        """Check what `output` returned.

        Raises:
            InvalidInputError: not a model of the shape and dtype of the first one.
        """
        _check_tensor("algorithm.output", "result", found, self._start)

    def after_absorb(self, before: Any, clients: Tensor, after: Any) -> None:
        """Check the state that `absorb` or `absorb_total` returned for updates of these clients.

        Raises:
            InvalidInputError: not a state, or the model was changed in place.
        """
        self._resume(before)
        self._check_state("absorb", after)
        self._arrived.append(clients.cpu().numpy())
        self._state = after

    def after_step(self, before: Any, found: Any) -> None:
        """Check what `step` returned for the state `before`.

        Raises:
            InvalidInputError: not a state of the next round, a model that was changed in place, or
                a `RoundInfo` that contradicts what happened.
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
        self._check_finite(info)
        _check_direction(self._start, state.model, info.direction)
        self._warn_of_storage()
        self._begin_round(state)

    def _begin_round(self, state: Any) -> None:
        self._state, self._start, self._version = state, state.model, _version(state.model)
        self._arrived: list[NDArray[np.int64]] = []

    def _resume(self, state: Any) -> None:
        """Start again from a state that was set from outside, as from a checkpoint."""
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

    def _warn_of_storage(self) -> None:
        """Warn if something was stored in the method itself, which checkpoints do not contain."""
        for method, before in self._attributes:
            after = _attributes(method)
            for name in before.keys() | after.keys():
                if before.get(name) != after.get(name):
                    self._warn(
                        f"algorithm: something was stored in its {name}, which a resumed run "
                        "lacks; if rounds depend on it, keep it in the state"
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

    def _check_finite(self, info: RoundInfo) -> None:
        """Refuse numbers that are not finite unless a step size may be the reason."""
        if not bool(info.direction.isfinite().all()):
            if not any(map(len, self._arrived)):
                raise InvalidInputError(
                    "algorithm.step: in a round without updates its direction is not finite; "
                    "divide by max(1, their number), or leave the model where it is"
                )
        elif not bool(info.weights.isfinite().all()):
            raise InvalidInputError(
                f"algorithm.step: its RoundInfo has the weights {info.weights.tolist()!s:.60}; "
                "give finite numbers"
            )


def _version(model: Tensor) -> int:
    """Return how often a tensor was changed in place; inference tensors do not count this."""
    return 0 if model.is_inference() else model._version


def _versions(state: Any) -> list[Any]:
    """Return how often each tensor of a state, or of a part of it, was changed in place."""
    values = (getattr(state, field.name) for field in fields(state))
    return [
        _version(value) if isinstance(value, Tensor) else _versions(value)
        for value in values
        if isinstance(value, Tensor) or is_dataclass(value)
    ]


def _generators(t: int) -> tuple[bytes, Any]:
    """Return the states of the global generators in round t: of torch, on the CPU, and of NumPy.

    Reading NumPy's state is slow, so that is done in the first rounds only.
    """
    generator = np.random.get_state(legacy=False) if t < _NUMPY_ROUNDS else None  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), _freeze(generator)


def _freeze(state: Any) -> Any:
    """Return a generator's state in a form that can be compared."""
    if isinstance(state, dict):
        return {name: _freeze(value) for name, value in state.items()}
    return state.tobytes() if isinstance(state, np.ndarray) else state


def _attributes(method: Algorithm[Any]) -> dict[str, list[int]]:
    """Return the identities of the objects that a method holds, except cached values."""
    kind = type(method)
    return {
        name: _contents(value)
        for name, value in vars(method).items()
        if not isinstance(getattr(kind, name, None), cached_property)
    }


def _contents(value: Any) -> list[int]:
    """Return the identities of a value and, if it is a mutable container, of its elements."""
    if not isinstance(value, dict | list | set):
        return [id(value)]
    if len(value) > _LARGE:
        return [id(value), len(value)]
    parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    return [id(value), *map(id, parts)]


def _check_ids(field: str, clients: Any, weights: Any) -> None:
    """Refuse anything but client ids, int64, with one weight each."""
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
    if found.requires_grad:
        raise InvalidInputError(f"{field}: its {name} requires a gradient; return its detach()")


def _check_direction(before: Tensor, after: Tensor, direction: Tensor) -> None:
    """Refuse a direction that differs from the change of the model by more than rounding."""
    size = torch.linalg.vector_norm
    error = after - before
    change = float(size(error))
    error -= direction
    rounding = math.sqrt(torch.finfo(after.dtype).eps) * float(size(before) + size(after))
    if rounding < float(size(error)) < math.inf:  # a run reports non-finite models itself
        raise InvalidInputError(
            f"algorithm.step: its RoundInfo has a direction of norm {float(size(direction)):.3g}, "
            f"which is not the change of the model, of norm {change:.3g}; give the difference of "
            "the new model and the former one, and change no model in place"
        )
