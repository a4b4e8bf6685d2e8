"""The one walk over objects: what is in them, and of which kind it is.

The annotation of a field decides what its text means: `str | Path` is a file, `Callable` or `Code`
an import path, `Source` either; any other text is plain, even if a folder has its name.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from fedtide.import_paths import is_import_path
from fedtide.spec.annotations import is_flat, members, origin
from fedtide.spec.content import is_data, is_network, is_table
from fedtide.spec.fields import Field, fields


class Kind(Enum):
    """What a part of an object is.

    PLAIN: text, a number, None, or an array or flat list of them. SPEC: a dataclass object. FILE: a
    path. DATA: a table or data set in memory. CODE: a class, a function or a network, or an import
    path. OPAQUE: anything else; it equals only itself, and no file can describe it.
    """

    PLAIN = "plain"
    SPEC = "spec"
    FILE = "file"
    DATA = "data"
    CODE = "code"
    OPAQUE = "opaque"


class Meaning(Enum):
    """A mark of an annotation, as in `Annotated[str, Code]`: what text in the field means."""

    CODE = "an import path"
    SOURCE = "a path, or the import path of a function that returns data"


Code = Meaning.CODE
Source = Meaning.SOURCE

_PLAIN = (type(None), str, bytes, int, float, complex, np.generic, np.ndarray, Decimal)

ANYTHING = Field("", Any, (), None, "")


def visit(thing: Any, path: str = "", field: Field = ANYTHING) -> Iterator[tuple[str, Kind, Any]]:
    """Yield every part of an object with its dotted path and kind, outer ones before inner ones.

    Lists and mappings are not parts by themselves unless they are empty.

    Args:
        thing: the object.
        path: where it is.
        field: the field that holds it.

    >>> from fedtide.participation import Bernoulli
    >>> [(path, kind.name) for path, kind, _ in visit(Bernoulli(rates=[0.5, 1.0]))]
    [('', 'SPEC'), ('rates', 'PLAIN')]
    """
    kind = kind_of(thing, field)
    inner = [*children(thing, field)]
    if kind is Kind.SPEC or not inner:
        yield path, kind, thing
    for name, part, holder in inner:
        yield from visit(part, f"{path}.{name}" if path else name, holder)


def kind_of(thing: Any, field: Field = ANYTHING) -> Kind:
    """Return what an object in this field is; lists and mappings are PLAIN."""
    if isinstance(thing, str) and _holds_code(field) and is_import_path(thing):
        return Kind.CODE
    if isinstance(thing, Path) or (isinstance(thing, str) and _holds_files(field)):
        return Kind.FILE
    if isinstance(thing, _PLAIN) or is_tensor(thing):
        return Kind.PLAIN
    if isinstance(thing, type | types.FunctionType | types.BuiltinFunctionType):
        return Kind.CODE
    if is_network(thing):
        return Kind.CODE
    if is_data(thing) or _is_columns(thing, field):
        return Kind.DATA
    if dataclasses.is_dataclass(thing):
        return Kind.SPEC
    return Kind.PLAIN if isinstance(thing, Mapping | list | tuple) else Kind.OPAQUE


def children(thing: Any, field: Field = ANYTHING) -> Iterator[tuple[str, Any, Field]]:
    """Yield the name, the value and the field of everything directly inside an object."""
    if isinstance(thing, Mapping):
        if not _is_columns(thing, field):
            yield from ((str(key), value, field) for key, value in thing.items())
    elif isinstance(thing, list | tuple):
        if not is_flat(thing) or _holds_code(field) or _holds_files(field):
            yield from ((str(i), value, field) for i, value in enumerate(thing))
    elif dataclasses.is_dataclass(thing) and kind_of(thing, field) is Kind.SPEC:
        known = _fields_or_none(type(thing))
        for one in dataclasses.fields(thing):
            yield one.name, getattr(thing, one.name), known.get(one.name, ANYTHING)


def _fields_or_none(cls: type) -> Mapping[str, Field]:
    try:
        return fields(cls)
    except NameError:  # of an import for type checkers only
        return {}


def _holds_files(field: Field) -> bool:
    return Source in field.marks or Path in members(field.kind)


def _holds_code(field: Field) -> bool:
    if Code in field.marks or Source in field.marks:
        return True
    return any(origin(member) in (Callable, type) for member in members(field.kind))


def _is_columns(thing: Any, field: Field) -> bool:
    """Return whether a mapping holds the columns of a table."""
    takes_data = Source in field.marks or field.kind is Any
    return takes_data and isinstance(thing, Mapping) and is_table(thing)


def is_tensor(thing: Any) -> bool:
    """Return whether this is a PyTorch tensor, without importing PyTorch."""
    return type(thing).__module__.partition(".")[0] == "torch" and hasattr(thing, "tolist")
