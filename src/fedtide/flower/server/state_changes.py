"""Gives a method further clients, which a simulation never does.

It follows from the structure of the state; what does not, the method says (`AddsClients`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedtide.algorithms import Algorithm


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
    """Return the state of a method, and of those that it wraps; see `AddsClients`."""
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
