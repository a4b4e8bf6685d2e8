"""Experiments as plain data even if they hold what no file can describe, for comparisons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from fedtide.configurable import is_equal, is_flat
from fedtide.content_hash import fingerprint
from fedtide.errors import InvalidInputError
from fedtide.simulation.experiment import BUILDER, Experiment


@dataclass(frozen=True, eq=False)
class Unnamed:
    """Stands in plain data for what has no name there, such as a class of a notebook.

    Two are equal if what they stand for is; networks if they have equal layers and values.

    Args:
        thing: the object, class or function.
        content: of a network, when this was made; None for anything else.
        number: tells those apart that have the same name but are not equal; 0: none other.
    """

    thing: object
    content: object = None
    number: int = 0

    @classmethod
    def of(cls, thing: object) -> Unnamed:
        """Return what stands for an object; a network may be changed afterwards."""
        return cls(thing, _read_network(thing) if isinstance(thing, nn.Module) else None)

    @property
    def name(self) -> str:
        """The name of the class or function, or that of the object's class."""
        return str(getattr(self.thing, "__name__", type(self.thing).__name__))

    def __str__(self) -> str:
        return f"{self.name} {self.number}" if self.number else self.name

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Unnamed) or type(self.thing) is not type(other.thing):
            return False
        if self.content is not None:
            return is_equal(self.content, other.content)
        # a class that is not a dataclass itself may inherit an equality that misses its attributes
        own, others = (getattr(one.thing, "__dict__", {}) for one in (self, other))
        return is_equal(self.thing, other.thing) and is_equal(dict(own), dict(others))

    __hash__ = None  # type: ignore[assignment]


def to_plain(experiment: Experiment) -> dict[str, Any]:
    """Return the experiment as plain data, with `Unnamed` for what these cannot describe."""
    plain: dict[str, Any] = BUILDER.to_dict(experiment, otherwise=Unnamed.of)
    return plain


def tell_apart(plains: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return plain data in which `Unnamed` with the same name, but not equal, have numbers."""
    given, known = list(plains), dict[str, list[Unnamed]]()

    def number(one: Unnamed) -> Unnamed:
        alike = known.setdefault(one.name, [])
        if one not in alike:
            alike.append(one)
        return replace(one, number=1 + alike.index(one))

    numbered = [replace_unnamed(plain, number) for plain in given]

    def drop_needless(one: Unnamed) -> Unnamed:
        return one if len(known[one.name]) > 1 else replace(one, number=0)

    return [replace_unnamed(plain, drop_needless) for plain in numbered]


def replace_unnamed(plain: Any, change: Callable[[Unnamed], Any]) -> Any:
    """Return plain data with `change(one)` for every `Unnamed`."""
    if isinstance(plain, Unnamed):
        return change(plain)
    if isinstance(plain, Mapping):
        return {key: replace_unnamed(value, change) for key, value in plain.items()}
    if isinstance(plain, list):
        if is_flat(plain):
            return plain
        return [replace_unnamed(value, change) for value in plain]
    return plain


def _read_network(network: nn.Module) -> object:
    """Return a network's layers with their settings, and the hash of its parameters and buffers."""
    try:
        values = fingerprint(dict(network.state_dict()))
    except InvalidInputError:  # a layer has a state of its own
        return None
    return [type(layer) for layer in network.modules()], str(network), values
