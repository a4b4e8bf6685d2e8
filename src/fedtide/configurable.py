"""The decorator of every class that an experiment can configure."""

from __future__ import annotations

import copy
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from numbers import Integral, Real
from typing import (
    Any,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from fedtide.errors import InvalidInputError, did_you_mean

T = TypeVar("T")

_WORDS = {
    bool: ("True or False", "True or False"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a string", "strings"),
    np.ndarray: ("an array", "arrays"),
    Mapping: ("a mapping", "mappings"),
    Callable: ("a function", "functions"),
}
"""What a field of each type takes, in words: singular and plural."""

_ARGUMENTS = re.compile(r"^Args:\n((?:    .*\n?|\n)+)", re.MULTILINE)

_DECIMAL_COMMA = re.compile(r"[+-]?(?![1-9]\d{0,2},\d{3}\b)\d*,\d+")  # 1,234 may mean 1234
_PER_CENT = re.compile(r"([+-]?\d*\.?\d+) ?%")

_COPIED = (Sequence, list, tuple, Mapping, np.ndarray)
"""The types of which a field's values are copied."""

_DTYPES = {bool: "b", int: "iu", float: "iuf", str: "UOT"}
"""The kinds of NumPy arrays that count as a list of each type."""


@dataclass_transform(frozen_default=True)
def configurable(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass whose constructor checks the types of its fields.

    The annotations say what a field takes; this is checked before `__post_init__`, which checks
    values. NumPy numbers and arrays count as numbers and lists, a whole number is a number, and
    True and False are not. Single numbers of other libraries are converted to Python's, so that
    code can tell them from strings and None by type. Elements of a list are checked, unless the
    field also takes arrays: then the class checks the array.

    Lists, mappings and arrays are copied if the annotation names them, so that changing them later
    does not change the object; arrays are then read-only, and columns and tensors become arrays.
    Data that only `Any` or the name of their class allows, such as tables and networks, are not
    copied, as they may be large.

    If a field takes a list or a mapping by name, a pandas column whose index is not 0, 1, ... is a
    mapping. If the index has other numbers, it must be named (as `value_counts` does), because
    otherwise it may just number the rows of a table.

    Two objects are equal if their fields are: arrays by value, and data without plain equality
    (tables of pandas or Polars) only if they are the same object.

    Raises:
        InvalidInputError: (by the constructor) a field has the wrong type; says what it takes.

    >>> @configurable
    ... class Rate:
    ...     value: float | None = None
    >>> Rate(0.5)
    Rate(value=0.5)
    >>> Rate("0.5")
    Traceback (most recent call last):
    fedtide.errors.InvalidInputError: value: '0.5' is of type str; give a number or None
    """
    check_values = getattr(cls, "__post_init__", None)

    def __post_init__(self: T) -> None:
        check_types(self, cls)
        for name, value in _to_plain(self, cls).items():
            object.__setattr__(self, name, value)
        if check_values is not None:
            check_values(self)

    def __eq__(self: T, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        names = (field.name for field in fields(self))  # type: ignore[arg-type]
        return all(is_equal(getattr(self, name), getattr(other, name)) for name in names)

    for method in (__post_init__, __eq__):
        setattr(cls, method.__name__, method)
    return dataclass(frozen=True)(cls)


def check_types(thing: object, cls: type) -> None:
    """Check an object's fields that the dataclass `cls` defines against their annotations.

    Raises:
        InvalidInputError: a field has the wrong type; says what it takes.
    """
    for name, kind in field_types(cls).items():
        value = getattr(thing, name)
        if not fits(kind, value):
            raise InvalidInputError(explain_mismatch(name, kind, value))


@cache
def field_types(cls: type) -> dict[str, Any]:
    """Return the evaluated annotation of every field that a dataclass's constructor takes."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls) if field.init}


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


def describe_field(cls: type, name: str) -> str:
    """Return what a field takes: its docstring entry, after its type unless that is a union.

    >>> from fedtide.problems import Dirichlet
    >>> describe_field(Dirichlet, "alpha")
    'a number: α > 0; small: few classes per client, large: all clients alike'
    """
    sentence = re.split(r"\.(?:\s|$)", field_meanings(cls).get(name, ""))[0]
    kind = field_types(cls)[name]
    if sentence and is_union(kind):
        return sentence
    return ": ".join(filter(None, (_name(kind), sentence)))


def is_union(kind: Any) -> bool:
    """Return whether an annotation is a union, such as `int | None`."""
    return get_origin(kind) in (Union, types.UnionType)


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if is_union(kind) else (kind,)


def fits(kind: Any, value: Any) -> bool:
    """Return whether a value is of the type that an annotation describes."""
    if is_union(kind):
        members = get_args(kind)
        return any(fits(member, value) for member in members)
    if kind is None:
        return value is None
    base = get_origin(kind) or kind
    if base is Literal:
        return any(type(value) is type(option) and value == option for option in get_args(kind))
    if base in (bool, int, float):
        return _is_number(base, value)
    if base is np.ndarray:
        array = _to_array(value) if _is_list(value) else None
        return array is not None and array.dtype.kind != "O"
    if base in (Sequence, list, tuple):
        return _is_list_of((*get_args(kind), Any)[0], value)
    if base is Callable:
        return callable(value)
    with suppress(TypeError):  # type variables and protocols
        return isinstance(value, base)
    return True


def _is_number(kind: type, value: Any) -> bool:
    if kind is bool or isinstance(value, bool | np.bool_):
        return kind is bool and isinstance(value, bool | np.bool_)
    if kind is int:
        return isinstance(value, Integral) and -(2**63) <= int(value) < 2**63
    try:
        return isinstance(value, Real) and isinstance(float(value), float)
    except OverflowError:
        return False


def _to_plain(thing: object, cls: type) -> dict[str, Any]:
    """Return an object's attributes: lists and arrays copied, numbers as Python's.

    Labelled columns become mappings, and other columns arrays.
    """
    kinds, found = field_types(cls), {}
    for name, value in vars(thing).items():
        value = label_to_mapping(name, kinds.get(name), value)
        copied = [kind for kind in _members(kinds.get(name)) if _origin(kind) in _COPIED]
        if copied:
            is_list = _is_column(value) and any(fits(kind, value) for kind in copied)
            value = _copy(_to_array(value) if is_list else value)
        found[name] = _to_python(value)
    return found


def label_to_mapping(name: str, kind: Any, value: Any) -> Any:
    """Return a pandas column with labels as a mapping, if the annotation `kind` takes one.

    Anything else is returned as it is.

    Raises:
        InvalidInputError: labels that may only number rows, or that are not unique.
    """
    if Mapping not in map(_origin, _members(kind)) or not _is_labelled(value):
        return value
    if value.index.name is None and value.index.dtype.kind in "iuf":
        raise InvalidInputError(
            f"{name}: its index may number rows or clients; give its to_numpy() if it is "
            "in the order of the ids, or its to_dict() if the index names the clients"
        )
    if not value.index.is_unique:
        raise InvalidInputError(f"{name}: its index has a name twice; give each client one value")
    return value.to_dict()


def _origin(kind: Any) -> Any:
    return get_origin(kind) or kind


def _is_column(value: Any) -> bool:
    """Return whether this is a tensor, or a column of a table."""
    return hasattr(value, "__array__") and not hasattr(value, "columns") and _is_list(value)


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


def is_flat(values: Iterable[Any]) -> bool:
    """Return whether all are plain values of Python, which need not be looked at one by one."""
    return {*map(type, values)} <= {bool, int, float, str, type(None)}


def _to_python(value: Any) -> Any:
    """Convert a number or boolean of another library to Python's; return anything else as it is."""
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, int | float) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _is_labelled(value: Any) -> bool:
    """Return whether this is a pandas column whose index is not just its positions."""
    index: Any = getattr(value, "index", None)
    has_index = hasattr(value, "to_dict") and hasattr(index, "is_unique")
    if not has_index or getattr(value, "ndim", 0) != 1:
        return False
    return index.name is not None or not np.array_equal(index, np.arange(len(index)))


def _is_list(value: Any) -> bool:
    """Return whether this is a list, or an array, tensor or column of a table."""
    if hasattr(value, "__array__"):
        return len(getattr(value, "shape", (0,))) > 0 and _to_array(value) is not None
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _to_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return a NumPy array; None for lists of unequal lengths and tensors with a gradient."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def _is_list_of(kind: Any, value: Any) -> bool:
    if isinstance(value, str):  # a list of strings: its characters
        return kind is str
    if not _is_list(value):
        return False
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype.kind != "O":
            return _is_array_of(kind, array)
        value = array.tolist()
    if kind in _DTYPES and {*map(type, value)} == {int}:
        value = min(value), max(value)
    elif kind in _DTYPES:  # one value of each type is enough
        value = {type(part): part for part in value}.values()
    return all(fits(kind, part) for part in value)


def _is_array_of(kind: Any, array: np.ndarray[Any, Any]) -> bool:
    """Return whether the rows of an array have this type."""
    if get_origin(kind) is Sequence:
        return array.ndim > 1 and _is_array_of(get_args(kind)[0], array[0] if len(array) else array)
    if kind in _DTYPES:
        return array.ndim == 1 and array.dtype.kind in _DTYPES[kind]
    return kind is Any


def explain_mismatch(name: str, kind: Any, value: Any) -> str:
    """Explain why a value does not fit an annotation, and what would.

    >>> explain_mismatch("rates", float | Sequence[float], {"ann": 0.5})
    "rates: {'ann': 0.5} is of type dict; give a number or a list of numbers"
    >>> explain_mismatch("lr", float, "0,3"), explain_mismatch("rates", float, "30 %")
    ("lr: '0,3' is not a number; write 0.3", "rates: '30 %' is not a number; write 0.3")
    """
    given = " ".join(f"{value!r:.60}".split())
    options = [o for m in _members(kind) if get_origin(m) is Literal for o in get_args(m)]
    if isinstance(value, str) and options:
        return f"{name}: unknown {given}; {did_you_mean(value, options)}"
    for member in _members(kind):
        if get_origin(member) is Sequence and isinstance(value, list | tuple):
            item = get_args(member)[0]
            i = next(i for i, part in enumerate(value) if not fits(item, part))
            return explain_mismatch(f"{name}[{i}]", item, value[i])
    if isinstance(value, str) and float in _members(kind):
        if _DECIMAL_COMMA.fullmatch(value):
            return f"{name}: {given} is not a number; write {float(value.replace(',', '.')):g}"
        if share := _PER_CENT.fullmatch(value):
            return f"{name}: {given} is not a number; write {float(share[1]) / 100:g}"
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if is_integer and {int, float} & {*_members(kind)}:
        return f"{name}: {given} is too large; give a number below 2**63"
    return f"{name}: {given} is of type {_class_name(type(value))}; give {_name(kind)}"


def _name(kind: Any, plural: bool = False) -> str:
    """Return the type that an annotation describes, in words.

    >>> _name(float | Sequence[int] | None)
    'a number, a list of whole numbers or None'
    """
    if is_union(kind):
        *others, last = (_name(member, plural) for member in get_args(kind))
        return f"{', '.join(others)} or {last}"
    base = get_origin(kind) or kind
    if base is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if base is type(None):
        return "None"
    if base in (Sequence, list, tuple):
        items = _name((*get_args(kind), Any)[0], plural=True)
        return f"lists of {items}" if plural else f"a list of {items}"
    if base in _WORDS:
        return _WORDS[base][plural]
    if base is Any or not isinstance(base, type):
        return "values" if plural else "a value"
    word = _class_name(base)
    if plural:
        return f"{word} objects"
    return f"{'an' if word[0] in 'AEIOUaeiou' else 'a'} {word}"


def _class_name(cls: type) -> str:
    """Return the name of a class, with its package if it is neither Python's nor fedtide's."""
    package = cls.__module__.partition(".")[0]
    known = package == "fedtide" or package in sys.stdlib_module_names
    if cls.__module__.startswith("torch.nn."):
        package = "torch.nn"
    return cls.__name__ if known else f"{package}.{cls.__name__}"


def is_equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal, always as a bool; never raises."""
    if one is other:
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(is_equal, one, other))
    try:
        equal = one == other
        if isinstance(equal, bool | np.bool_):
            return bool(equal)
        return one.shape == other.shape and bool(equal.all())
    except Exception:  # such as tables of different columns
        return False
