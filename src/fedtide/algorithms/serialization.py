"""Conversion of states to flat dictionaries of tensors, as checkpoints store them, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class TensorConvertible(Protocol):
    """A part of a state that defines its own stored form."""

    def to_tensors(self) -> Mapping[str, Tensor]:
        """Return the tensors to store, by name."""

    def from_tensors(self, stored: Mapping[str, Tensor]) -> Self:
        """Return this part with the stored tensors."""


def to_tensors(state: Any, prefix: str = "") -> dict[str, Tensor]:
    """Return every tensor and number in `state` by its dotted path, numbers as 0-d tensors.

    >>> from fedtide.algorithms.base import State
    >>> to_tensors(State(torch.zeros(2), 7))
    {'model': tensor([0., 0.]), 'round': tensor(7)}
    """
    stored: dict[str, Tensor] = {}
    for field in fields(state):
        value, path = getattr(state, field.name), prefix + field.name
        if isinstance(value, TensorConvertible):
            stored |= {f"{path}.{name}": tensor for name, tensor in value.to_tensors().items()}
        elif is_dataclass(value):
            stored |= to_tensors(value, path + ".")
        elif isinstance(value, Tensor):
            stored[path] = value.contiguous()  # a file cannot hold a view of a single number
        elif isinstance(value, bool | int):
            stored[path] = torch.tensor(int(value), dtype=torch.int64)
        elif isinstance(value, float):
            stored[path] = torch.tensor(value, dtype=torch.float64)
        elif value is not None:
            raise TypeError(f"{path} is a {type(value).__name__}, which a state cannot hold")
    return stored


def from_tensors(template: Any, stored: Mapping[str, Tensor], prefix: str = "") -> Any:
    """Return `template`, such as an initial state, with the values of `stored`.

    >>> from fedtide.algorithms.base import State
    >>> old = State(torch.ones(2), 7)
    >>> from_tensors(State(torch.zeros(2), 0), to_tensors(old)).round
    7
    """
    changes: dict[str, Any] = {}
    for field in fields(template):
        value, path = getattr(template, field.name), prefix + field.name
        if isinstance(value, TensorConvertible):
            start = path + "."
            part = {n.removeprefix(start): t for n, t in stored.items() if n.startswith(start)}
            changes[field.name] = value.from_tensors(part)
        elif is_dataclass(value):
            changes[field.name] = from_tensors(value, stored, path + ".")
        elif isinstance(value, Tensor):
            changes[field.name] = stored[path].to(value.device)
        elif value is not None:
            changes[field.name] = type(value)(stored[path].item())
    return replace(template, **changes)
