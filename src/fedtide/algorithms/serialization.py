"""Conversion of states to flat dictionaries of tensors, as checkpoints store them, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from fedtide.errors import InvalidInputError, list_names


@runtime_checkable
class TensorConvertible(Protocol):
    """A part of a state that defines its own stored form."""

    def to_tensors(self) -> Mapping[str, Tensor]:
        """Return the tensors to store, by name."""

    def from_tensors(self, stored: Mapping[str, Tensor]) -> Self:
        """Return this part with the stored tensors."""


def _walk(state: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted path and the value of everything stored of a state."""
    for field in fields(state):
        value, path = getattr(state, field.name), prefix + field.name
        if is_dataclass(value) and not isinstance(value, TensorConvertible):
            yield from _walk(value, path + ".")
        elif isinstance(value, TensorConvertible | Tensor | bool | int | float):
            yield path, value
        elif value is not None:
            raise InvalidInputError(
                f"algorithm: its state holds {path}, a {type(value).__name__}, which cannot be "
                "stored; let states hold only tensors, Python numbers and nested states"
            )


def to_tensors(state: Any) -> dict[str, Tensor]:
    """Return every tensor and number in `state` by its dotted path, numbers as 0-d tensors.

    No two of the tensors share memory, which the file format would not allow.

    Raises:
        InvalidInputError: a field of a type that cannot be stored.

    >>> from fedtide.algorithms.base import State
    >>> to_tensors(State(torch.zeros(2), 7))
    {'model': tensor([0., 0.]), 'round': tensor(7)}
    """
    stored: dict[str, Tensor] = {}
    for path, value in _walk(state):
        if isinstance(value, TensorConvertible):
            stored |= {f"{path}.{name}": tensor for name, tensor in value.to_tensors().items()}
        elif isinstance(value, Tensor):
            stored[path] = value.contiguous()  # a file cannot hold a view of a single number
        else:
            dtype = torch.float64 if isinstance(value, float) else torch.int64
            stored[path] = torch.tensor(value, dtype=dtype)
    storages = set()
    for path, tensor in stored.items():
        storage = tensor.device, tensor.untyped_storage().data_ptr()
        if storage in storages:
            stored[path] = tensor.clone()
        storages.add(storage)
    return stored


def from_tensors(template: Any, stored: Mapping[str, Tensor]) -> Any:
    """Return `template`, such as an initial state, with the values of `stored`.

    A number is restored as the number, or the tensor, that was stored.

    Raises:
        InvalidInputError: the template and `stored` have different fields.

    >>> from fedtide.algorithms.base import State
    >>> old = State(torch.ones(2), 7)
    >>> from_tensors(State(torch.zeros(2), 0), to_tensors(old)).round
    7
    """
    unused = dict(stored)
    restored = _restore(template, unused, "")
    if unused:
        raise _other_fields(sorted(unused))
    return restored


def _restore(template: Any, stored: dict[str, Tensor], prefix: str) -> Any:
    """Return `template` with the stored values, which are removed from `stored`."""
    changes: dict[str, Any] = {}
    for field in fields(template):
        value, path = getattr(template, field.name), prefix + field.name
        if isinstance(value, TensorConvertible):
            start = path + "."
            names = [name for name in stored if name.startswith(start)]
            part = {name.removeprefix(start): stored.pop(name) for name in names}
            try:
                changes[field.name] = value.from_tensors(part)
            except KeyError as error:
                raise _other_fields([f"{path}.{error.args[0]}"]) from None
        elif is_dataclass(value):
            changes[field.name] = _restore(value, stored, path + ".")
        elif value is not None and path not in stored:
            raise _other_fields([path])
        elif isinstance(value, Tensor):
            changes[field.name] = stored.pop(path).to(value.device)
        elif value is not None:
            tensor = stored.pop(path)
            number = tensor if tensor.ndim else tensor.item()
            changes[field.name] = bool(number) if isinstance(value, bool) else number
    return replace(template, **changes)


def _other_fields(names: list[str]) -> InvalidInputError:
    return InvalidInputError(
        f"state: {list_names(names)} is either in the checkpoint or in the method's initial state, "
        "not in both; resume with the method and the version of fedtide that started the run"
    )
