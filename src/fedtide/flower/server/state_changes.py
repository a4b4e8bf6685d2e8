"""What a deployment does to the state of a method and a simulation does not.

It undoes a round whose updates were invalid, and it gives the method further clients. Both follow
from the structure of the state; what does not, the method says (`WritesOtherRows`, `AddsClients`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedtide.algorithms import Algorithm, ClientMemory
from fedtide.algorithms.base import StateT

_ROWS_READ = 2**20
"""How many numbers of client rows are copied at a time for a check."""


@runtime_checkable
class WritesOtherRows(Protocol):
    """A state in which a round may also write rows of clients that do not report in it."""

    def rows_written(self, clients: Tensor) -> Mapping[str, Tensor]:
        """Return, by field, the clients whose rows may be written when these clients report."""


@runtime_checkable
class AddsClients(Protocol):
    """A method whose state depends on N, or on the round, through more than values per client.

    Such as a mean over all clients, or the round in which each client was last seen.
    """

    def add_clients(self, state: Any, first: int) -> Any:
        """Return the state after clients have joined between two rounds.

        They begin as all clients did before round 0.

        Args:
            state: of all clients, with the values from `init` for the new ones; may be reused.
            first: the id of the first new client.

        Raises:
            InvalidInputError: the method does not allow new clients.
        """


def add_clients(algorithm: Algorithm[Any], state: Any, first: int) -> Any:
    """Return the state of a method, and of those that it wraps, after clients have joined.

    Args:
        algorithm: the method.
        state: of all clients, with the values from `init` for the new ones; may be reused.
        first: the id of the first new client.

    Raises:
        InvalidInputError: the method does not allow new clients.
    """
    if isinstance(algorithm, AddsClients):
        state = algorithm.add_clients(state, first)
    parts = {
        name: add_clients(part, getattr(state, name), first)
        for name, part in vars(algorithm).items()
        if isinstance(part, Algorithm) and hasattr(state, name)
    }
    return replace(state, **parts) if parts else state


def with_further_clients(
    stored: Mapping[str, Tensor], initial: Mapping[str, Tensor], first: int
) -> dict[str, Tensor]:
    """Return the stored tensors, extended to more clients with the values of an initial state.

    Tensors with one row per client get the initial state's further rows, and a number `population`
    gets its value.

    Args:
        stored: what `to_tensors` returned for N clients.
        initial: the same for the state before round 0 of more clients, of which these are the
            first N.
        first: N, the id of the first new client.

    >>> with_further_clients({"paid": torch.ones(2)}, {"paid": torch.zeros(3)}, first=2)
    {'paid': tensor([1., 1., 0.])}
    """
    completed = dict(stored)
    for name, tensor in initial.items():
        if tensor.ndim == 0:
            if name.split(".")[-1] == "population":
                completed[name] = tensor
        elif name in stored and stored[name].shape == (first, *tensor.shape[1:]):
            completed[name] = torch.cat([stored[name], tensor[first:].to(stored[name])])
    return completed


def remember(state: StateT, clients: Tensor, population: int) -> Callable[[], StateT]:
    """Return a function that restores a state after a round in which these clients reported.

    `absorb` and `step` reuse the memory of per-client rows, so keeping a reference to the state is
    not enough. Of rows as long as the model, only those of these clients are copied. Tensors of the
    model's shape belong to no client and are not changed in place, so they are not copied.

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

    def is_shared(value: Tensor) -> bool:
        same = value.shape == model.shape and value.is_floating_point()
        # If N = d, it may hold a number for each client instead.
        return value is model or (same and len(model) != population)

    restore: Callable[[], StateT] = _remember_parts(state, clients, is_shared)
    return restore


def _remember_parts(
    part: Any, clients: Tensor, is_shared: Callable[[Tensor], bool]
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
        elif isinstance(value, Tensor) and not is_shared(value):
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
