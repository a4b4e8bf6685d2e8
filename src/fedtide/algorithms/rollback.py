"""Undoing a round: the copies that a driver makes before it absorbs updates that may be invalid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedtide.algorithms._client_memory import ClientMemory
from fedtide.algorithms.base import StateT
from fedtide.import_paths import is_own

_ROWS_READ = 2**20
"""How many numbers of client rows are copied at a time for a check."""


@runtime_checkable
class WritesOtherRows(Protocol):
    """A state in which a round may also write rows of clients that do not report in it."""

    def rows_written(self, clients: Tensor) -> Mapping[str, Tensor]:
        """Return, by field, the clients whose rows may be written when these clients report."""


def remember(state: StateT, clients: Tensor, population: int) -> Callable[[], StateT]:
    """Return a function that restores a state after a round in which these clients reported.

    `absorb` and `step` reuse the memory of per-client rows, so keeping a reference to the state is
    not enough. Of rows as long as the model, only those of these clients are copied. Tensors of the
    model's shape belong to no client and are not changed in place, so they are not copied, except
    in user-defined states. A state that also writes rows of other clients is a `WritesOtherRows`.

    Args:
        state: at the start of a round.
        clients: their ids, shape (S,).
        population: N.

    >>> from fedtide.algorithms import ClientUpdates
    >>> from fedtide.algorithms.mifa import MIFA
    >>> from fedtide.population import Population
    >>> method, one = MIFA(), torch.ones(1)
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> restore = remember(state, torch.tensor([1]), population=2)
    >>> updates = ClientUpdates(torch.tensor([1]), one, one[:, None], lr=0.1, steps=one)
    >>> _ = method.step(method.absorb(state, updates), lr=0.1)
    >>> restore().memory.read(torch.tensor([1]))
    tensor([[0.]])
    """
    model = state.model

    def is_shared(part: Any, value: Tensor) -> bool:
        same = value.shape == model.shape and value.is_floating_point()
        # If N = d, it may hold a number for each client instead.
        return value is model or (same and len(model) != population and not is_own(type(part)))

    restore: Callable[[], StateT] = _remember_parts(state, clients, is_shared)
    return restore


def _remember_parts(
    part: Any, clients: Tensor, is_shared: Callable[[Any, Tensor], bool]
) -> Callable[[], Any]:
    # Not a nested function: one that calls itself is part of a reference cycle, which would keep
    # the model in memory until the garbage collector runs.
    parts: dict[str, Callable[[], Any]] = {}
    written = part.rows_written(clients) if isinstance(part, WritesOtherRows) else {}
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, ClientMemory):
            parts[field.name] = value.remember(written.get(field.name, clients))
        elif is_dataclass(value):
            parts[field.name] = _remember_parts(value, clients, is_shared)
        elif isinstance(value, Tensor) and not is_shared(part, value):
            parts[field.name] = value.clone().clone
    return lambda: replace(part, **{name: restore() for name, restore in parts.items()})


def is_bounded(state: Any, clients: Tensor) -> bool:
    """Return whether all sums of squares in a state are finite; of client rows, only these."""
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, ClientMemory):
            size = max(1, _ROWS_READ // max(1, value.rows.shape[1]))
            bounded = all(_is_finite(value.read(part)) for part in torch.split(clients, size))
        elif is_dataclass(value):
            bounded = is_bounded(value, clients)
        else:
            bounded = not isinstance(value, Tensor) or _is_finite(value)
        if not bounded:
            return False
    return True


def _is_finite(value: Tensor) -> bool:
    """Return whether the sum of squares is finite, as it always is for integers."""
    if not value.is_floating_point():
        return True
    return bool(torch.isfinite(torch.linalg.vector_norm(value)))
