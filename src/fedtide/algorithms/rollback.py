"""Undoing a round: what a driver keeps of a state before it absorbs updates that may ruin it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedtide.algorithms._client_memory import ClientMemory
from fedtide.algorithms.base import StateT


def remember(state: StateT, clients: Tensor) -> Callable[[], StateT]:
    """Return a function that restores a state after a round in which these clients reported.

    `absorb` and `step` reuse the memory of per-client rows, so that a reference to the state does
    not suffice. Only the rows of these clients are copied, and all that does not grow with N × d.

    >>> from fedtide.algorithms import ClientUpdates
    >>> from fedtide.algorithms.mifa import MIFA
    >>> from fedtide.population import Population
    >>> method, one = MIFA(), torch.ones(1)
    >>> state = method.init(torch.zeros(1), Population(2))
    >>> restore = remember(state, torch.tensor([1]))
    >>> updates = ClientUpdates(torch.tensor([1]), one, one[:, None], lr=0.1, steps=one)
    >>> _ = method.step(method.absorb(state, updates), lr=0.1)
    >>> restore().memory.read(torch.tensor([1]))
    tensor([[0.]])
    """
    parts: dict[str, Callable[[], Any]] = {}
    for field in fields(state):  # type: ignore[arg-type]
        value = getattr(state, field.name)
        if isinstance(value, ClientMemory):
            parts[field.name] = value.remember(clients)
        elif is_dataclass(value):
            parts[field.name] = remember(value, clients)
        elif isinstance(value, Tensor) and field.name != "model":  # never changed in place
            parts[field.name] = value.clone().clone

    def restore() -> StateT:
        restored: StateT = replace(state, **{name: part() for name, part in parts.items()})  # type: ignore[type-var]
        return restored

    return restore


def is_bounded(state: Any, clients: Tensor) -> bool:
    """Return whether all of a state has finite sums of squares: of client rows, only these."""
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, ClientMemory):
            value = value.read(clients)
        elif is_dataclass(value) and not is_bounded(value, clients):
            return False
        number = isinstance(value, Tensor) and value.is_floating_point()
        if number and not bool(torch.isfinite(value.square().sum())):
            return False
    return True
