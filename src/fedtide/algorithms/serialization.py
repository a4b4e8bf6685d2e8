"""Between states and flat dictionaries of tensors, the form in which checkpoints keep them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Packable(Protocol):
    """A part of a state that says itself what must survive."""

    def packed(self) -> Mapping[str, Tensor]:
        """Return what must survive, by name."""

    def unpacked(self, packed: Mapping[str, Tensor]) -> Self:
        """Return this part with what `packed` returned."""


def to_tensors(state: Any, prefix: str = "") -> dict[str, Tensor]:
    """Return every tensor and number in `state` by its dotted path, numbers as 0-d tensors.

    >>> from fedtide.algorithms.base import State
    >>> to_tensors(State(torch.zeros(2), 7))
    {'model': tensor([0., 0.]), 'round': tensor(7)}
    """
    packed: dict[str, Tensor] = {}
    for field in fields(state):
        value, path = getattr(state, field.name), prefix + field.name
        if isinstance(value, Packable):
            packed |= {f"{path}.{name}": tensor for name, tensor in value.packed().items()}
        elif is_dataclass(value):
            packed |= to_tensors(value, path + ".")
        elif isinstance(value, Tensor):
            packed[path] = value
        elif isinstance(value, bool | int):
            packed[path] = torch.tensor(int(value), dtype=torch.int64)
        elif isinstance(value, float):
            packed[path] = torch.tensor(value, dtype=torch.float64)
        elif value is not None:
            raise TypeError(f"{path} is a {type(value).__name__}, which a state cannot hold")
    return packed


def from_tensors(template: Any, packed: Mapping[str, Tensor], prefix: str = "") -> Any:
    """Return `template` (such as a fresh state) with the values of `packed`: the inverse of pack.

    >>> from fedtide.algorithms.base import State
    >>> old = State(torch.ones(2), 7)
    >>> from_tensors(State(torch.zeros(2), 0), to_tensors(old)).round
    7
    """
    changes: dict[str, Any] = {}
    for field in fields(template):
        value, path = getattr(template, field.name), prefix + field.name
        if isinstance(value, Packable):
            start = path + "."
            part = {n.removeprefix(start): t for n, t in packed.items() if n.startswith(start)}
            changes[field.name] = value.unpacked(part)
        elif is_dataclass(value):
            changes[field.name] = from_tensors(value, packed, path + ".")
        elif isinstance(value, Tensor):
            changes[field.name] = packed[path].to(value.device)
        elif value is not None:
            changes[field.name] = type(value)(packed[path].item())
    return replace(template, **changes)
