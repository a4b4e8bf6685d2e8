"""The decorator of every class that an experiment can configure, and the description of fields."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cache
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeVar, dataclass_transform, get_type_hints

import numpy as np

from fedtide.errors import InvalidInputError
from fedtide.spec.annotations import (
    explain_mismatch,
    fits,
    is_flat,
    is_list,
    is_union,
    members,
    name_kind,
    origin,
    split_annotation,
    to_array,
)
from fedtide.spec.constraints import Constraint

T = TypeVar("T")

_ARGUMENTS = re.compile(r"^Args:\n((?:    .*\n?|\n)+)", re.MULTILINE)

_COPIED = (Sequence, list, tuple, Mapping, np.ndarray)
"""The types of which a field's values are copied."""


class Field(NamedTuple):
    """A field that the constructor of a class takes.

    Args:
        name: its name.
        kind: its annotation, without what `Annotated` adds.
        marks: what `Annotated` adds: constraints, and what text in the field means.
        default: returns its default; None: it is required.
        meaning: what the docstring says about it.
    """

    name: str
    kind: Any
    marks: tuple[Any, ...]
    default: Callable[[], Any] | None
    meaning: str

    @property
    def is_required(self) -> bool:
        """Whether the field has no default."""
        return self.default is None

    def describe(self) -> str:
        """Return what the field takes: its meaning, after its type unless that is a union.

        >>> from fedtide.problems import Dirichlet
        >>> fields(Dirichlet)["alpha"].describe()
        'a number: α > 0; small: few classes per client, large: all clients alike'
        """
        sentence = re.split(r"\.(?:\s|$)", self.meaning)[0]
        if sentence and is_union(self.kind):
            return sentence
        return ": ".join(filter(None, (name_kind(self.kind), sentence)))


@dataclass_transform(frozen_default=True)
def spec(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass whose constructor checks its fields.

    The annotations say what a field takes, and with `Annotated` which constraints its numbers
    satisfy. Both are checked before `__post_init__`, which is for rules between fields. NumPy
    numbers and arrays count as numbers and lists, a whole number is a number, and True and False
    are not. Single numbers of other libraries are converted to Python's, so that code can tell
    them from strings and None by type. Elements of a list are checked, unless the field also takes
    arrays: then the class checks the array.

    Lists, mappings and arrays are copied if the annotation names them, so that changing them later
    does not change the object; arrays are then read-only, and columns and tensors become arrays.
    Data that only `Any` or the name of their class allows, such as tables and networks, are not
    copied, as they may be large. A pandas column whose index is not 0, 1, ... is a mapping, if the
    field takes one.

    Two objects are equal if their fields are: arrays by value, and data without plain equality
    (tables of pandas or Polars) only if they are the same object.

    Raises:
        InvalidInputError: (by the constructor) a field has the wrong type, or a number is out of
            range; says what the field takes.

    >>> @spec
    ... class Rate:
    ...     value: float | None = None
    >>> Rate(0.5)
    Rate(value=0.5)
    >>> Rate("0.5")
    Traceback (most recent call last):
    fedtide.errors.InvalidInputError: value: '0.5' is of type str; give a number or None
    """
    check_rules = getattr(cls, "__post_init__", None)

    def __post_init__(self: T) -> None:
        for field in fields(cls).values():
            value = getattr(self, field.name)
            if not fits(field.kind, value):
                raise InvalidInputError(explain_mismatch(field.name, field.kind, value))
            value = _take(field, value)
            object.__setattr__(self, field.name, value)
            for constraint in field.marks:
                if isinstance(constraint, Constraint):
                    constraint.check(field.name, value)
        if check_rules is not None:
            check_rules(self)

    def __eq__(self: T, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        names = (field.name for field in dataclasses.fields(self))  # type: ignore[arg-type]
        return all(equal(getattr(self, name), getattr(other, name)) for name in names)

    for method in (__post_init__, __eq__):
        setattr(cls, method.__name__, method)
    return dataclass(frozen=True)(cls)


def fields(cls: type) -> dict[str, Field]:
    """Return the fields that the constructor of a dataclass takes, by name.

    Raises:
        NameError: an annotation cannot be evaluated, such as an import for type checkers only.
    """
    return _fields(cls)


@cache
def _fields(cls: Any) -> dict[str, Field]:
    hints, meanings = get_type_hints(cls, include_extras=True), field_meanings(cls)
    found = {}
    for field in dataclasses.fields(cls):
        if field.init:
            default = _default(field)
            kind, marks = split_annotation(hints[field.name])
            meaning = meanings.get(field.name, "")
            found[field.name] = Field(field.name, kind, marks, default, meaning)
    return found


def _default(field: dataclasses.Field[Any]) -> Callable[[], Any] | None:
    if field.default_factory is not MISSING:
        return field.default_factory
    return None if field.default is MISSING else lambda: field.default


@cache
def field_meanings(cls: type) -> dict[str, str]:
    """Return what the docstring of a class, or of a base class, says about each argument.

    >>> class Rate:
    ...     '''A rate.
    ...
    ...     Args:
    ...         value, share: of all
    ...             clients.
    ...     '''
    >>> field_meanings(Rate)
    {'value': 'of all clients.', 'share': 'of all clients.'}
    """
    meanings: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        block = _ARGUMENTS.search(inspect.cleandoc(base.__doc__ or ""))
        for entry in re.split(r"\n(?=    \S)", block[1]) if block else ():
            names, _, meaning = entry.strip().partition(": ")
            meanings |= {name: " ".join(meaning.split()) for name in re.split(r",\s*", names)}
    return meanings


def _take(field: Field, value: Any) -> Any:
    """Return a value as the object keeps it: lists and columns copied, numbers as Python's.

    A pandas column becomes a mapping where that is allowed, unless its index only numbers its rows.
    """
    index: Any = getattr(value, "index", None)
    is_column = hasattr(value, "to_dict") and getattr(value, "ndim", 0) == 1
    takes_names = is_column and Mapping in map(origin, members(field.kind))
    if takes_names and not np.array_equal(index, np.arange(len(index))):
        value = value.to_dict()
    copied = [kind for kind in members(field.kind) if origin(kind) in _COPIED]
    if copied:
        is_array = hasattr(value, "__array__") and not hasattr(value, "columns") and is_list(value)
        is_array = is_array and any(fits(kind, value) for kind in copied)
        value = _copy(to_array(value) if is_array else value)
    return _to_python(value)


def _copy(value: Any) -> Any:
    """Return a copy of a list, mapping or array and of those in it; anything else as it is.

    Objects of derived classes, such as a named tuple, keep their class, and what they hold.
    """
    if isinstance(value, np.ndarray):
        copied = value.copy(order="K")
        copied.flags.writeable = False
        return copied
    if type(value) is dict:
        return {key: _copy(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(value if is_flat(value) else map(_copy, value))
    return copy.copy(value) if isinstance(value, dict | list) else value


def _to_python(value: Any) -> Any:
    """Convert a number or boolean of another library to Python's; return anything else as it is."""
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, int | float) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal, always as a bool; never raises."""
    if one is other:
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(equal, one, other))
    try:
        found = one == other
        if isinstance(found, bool | np.bool_):
            return bool(found)
        return one.shape == other.shape and bool(found.all())
    except Exception:  # such as tables of different columns
        return False
