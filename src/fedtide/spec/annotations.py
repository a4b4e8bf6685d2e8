"""What the annotation of a field takes: whether a value fits, and what to say if it does not."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from numbers import Integral, Real
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np

from fedtide.errors import did_you_mean

_WORDS = {
    bool: ("True or False", "True or False"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a string", "strings"),
    np.ndarray: ("an array", "arrays"),
    Mapping: ("a mapping", "mappings"),
    Callable: ("a function", "functions"),
    type(None): ("None", "None"),
}
"""What a field of each type takes, in words: singular and plural."""

_DECIMAL_COMMA = re.compile(r"[+-]?(?![1-9]\d{0,2},\d{3}\b)\d*,\d+")  # 1,234 may mean 1234
_PER_CENT = re.compile(r"([+-]?\d*\.?\d+) ?%")

_DTYPES = {bool: "b", int: "iu", float: "iuf", str: "UOT"}
"""The kinds of NumPy arrays that count as a list of each type."""


def is_union(kind: Any) -> bool:
    """Return whether an annotation is a union, such as `int | None`."""
    return get_origin(kind) in (Union, types.UnionType)


def members(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union; of anything else, itself."""
    return get_args(kind) if is_union(kind) else (kind,)


def origin(kind: Any) -> Any:
    """Return the class of an annotation, such as Sequence of `Sequence[float]`."""
    return get_origin(kind) or kind


def split_annotation(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return an annotation without what `Annotated` adds at any of its levels, and these additions.

    >>> split_annotation(Annotated[float, "positive"] | None)
    (typing.Optional[float], ('positive',))
    """
    if get_origin(kind) is Annotated:
        inner, added = split_annotation(kind.__origin__)
        return inner, (*added, *kind.__metadata__)
    if is_union(kind):
        parts = [split_annotation(member) for member in get_args(kind)]
        added = tuple(mark for _, marks in parts for mark in marks)
        return (Union[tuple(part for part, _ in parts)] if added else kind), added  # noqa: UP007
    return kind, ()


def fits(kind: Any, value: Any) -> bool:
    """Return whether a value is of the type that an annotation describes."""
    if is_union(kind):
        return any(fits(member, value) for member in get_args(kind))
    if kind is None:
        return value is None
    base = origin(kind)
    if base is Literal:
        return any(type(value) is type(option) and value == option for option in get_args(kind))
    if base in (bool, int, float):
        return _is_number(base, value)
    if base is np.ndarray:
        array = to_array(value) if is_list(value) else None
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


def is_list(value: Any) -> bool:
    """Return whether this is a list, or an array, tensor or column of a table."""
    if hasattr(value, "__array__"):
        return len(getattr(value, "shape", (0,))) > 0 and to_array(value) is not None
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def to_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return a NumPy array; None for lists of unequal lengths and tensors with a gradient."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def is_flat(values: Iterable[Any]) -> bool:
    """Return whether all are plain values of Python, which need not be looked at one by one."""
    return {*map(type, values)} <= {bool, int, float, str, type(None)}


def _is_list_of(kind: Any, value: Any) -> bool:
    if isinstance(value, str):  # a list of strings: its characters
        return kind is str
    if not is_list(value):
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


def convert(kind: Any, value: Any) -> Any:
    """Return a value of plain data as an annotation wants it; what does not fit is unchanged.

    Whole numbers become decimal ones and vice versa, text becomes a number where text does not
    fit (YAML reads 1e-3 as text), lists become tuples, and arrays lists unless the field takes
    arrays.

    >>> convert(float, "1e-3"), convert(int | None, 5.0), convert(tuple[float, ...], [1, 2])
    (0.001, 5, (1.0, 2.0))
    >>> convert(float, -(10**30))
    -1e+30
    """
    options = members(kind)
    classes = {*map(origin, options)}
    is_array = hasattr(value, "tolist") and not hasattr(value, "to_dict")  # no column of pandas
    if is_array and Sequence in classes and np.ndarray not in classes:
        value = value.tolist()
    if isinstance(value, bool) or any(_is_exact(option, value) for option in options):
        return value
    for option in options:
        base = origin(option)
        if base in (int, float) and isinstance(value, str | int | float):
            with suppress(ValueError, OverflowError):
                number = base(value)
                if base is float or isinstance(value, str) or number == value:
                    return number
        if base in (Sequence, list, tuple) and isinstance(value, list | tuple):
            inner, kinds = (*get_args(option), Any)[0], {*map(type, value)}
            if inner is Any or kinds <= {inner}:  # a long list of numbers takes no time
                parts = list(value)
            elif inner is float and kinds <= {int, float}:
                parts = [float(part) if fits(float, part) else part for part in value]
            else:
                parts = [convert(inner, part) for part in value]
            if fits(option, parts):
                return tuple(parts) if base is tuple or isinstance(value, tuple) else parts
        if base is Mapping and isinstance(value, Mapping):
            inner = (*get_args(option), Any, Any)[1]
            return {key: convert(inner, part) for key, part in value.items()}
    return value


def _is_exact(kind: Any, value: Any) -> bool:
    """Return whether a value that fits needs no conversion."""
    base = origin(kind)
    if base is Any or isinstance(value, list | tuple | Mapping):
        return False
    return fits(kind, value) and not (base is float and type(value) is int)


def explain_mismatch(name: str, kind: Any, value: Any) -> str:
    """Explain why a value does not fit an annotation, and what would.

    >>> explain_mismatch("rates", float | Sequence[float], {"ann": 0.5})
    "rates: {'ann': 0.5} is of type dict; give a number or a list of numbers"
    >>> explain_mismatch("lr", float, "0,3"), explain_mismatch("rates", float, "30 %")
    ("lr: '0,3' is not a number; write 0.3", "rates: '30 %' is not a number; write 0.3")
    """
    given = " ".join(f"{value!r:.60}".split())
    options = [o for m in members(kind) if get_origin(m) is Literal for o in get_args(m)]
    if isinstance(value, str) and options:
        return f"{name}: unknown {given}; {did_you_mean(value, options)}"
    for member in members(kind):
        if get_origin(member) is Sequence and isinstance(value, list | tuple):
            item = get_args(member)[0]
            i = next(i for i, part in enumerate(value) if not fits(item, part))
            return explain_mismatch(f"{name}[{i}]", item, value[i])
    if isinstance(value, str) and float in members(kind):
        if _DECIMAL_COMMA.fullmatch(value):
            return f"{name}: {given} is not a number; write {float(value.replace(',', '.')):g}"
        if share := _PER_CENT.fullmatch(value):
            return f"{name}: {given} is not a number; write {float(share[1]) / 100:g}"
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if is_integer and {int, float} & {*members(kind)}:
        return f"{name}: {given} is too large; give a number below 2**63"
    return f"{name}: {given} is of type {type(value).__name__}; give {name_kind(kind)}"


def name_kind(kind: Any, plural: bool = False) -> str:
    """Return the type that an annotation describes, in words.

    >>> name_kind(float | Sequence[int] | None)
    'a number, a list of whole numbers or None'
    """
    if is_union(kind):
        *others, last = (name_kind(member, plural) for member in get_args(kind))
        return f"{', '.join(others)} or {last}"
    base = origin(kind)
    if base is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if base in (Sequence, list, tuple):
        items = name_kind((*get_args(kind), Any)[0], plural=True)
        return f"lists of {items}" if plural else f"a list of {items}"
    if base in _WORDS:
        return _WORDS[base][plural]
    if base is Any or not isinstance(base, type):
        return "values" if plural else "a value"
    word = base.__name__
    if plural:
        return f"{word} objects"
    return f"{'an' if word[0] in 'AEIOUaeiou' else 'a'} {word}"
