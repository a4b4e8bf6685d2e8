"""Between plain data (what a YAML file holds) and the objects of an experiment.

Every configured thing is a frozen dataclass. A room's table names its classes; the annotations of
the fields say what goes where. So a new method, process or partition needs no code here.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from torch import Tensor

from fedtide.errors import InvalidInputError, did_you_mean

Families = Mapping[type, Mapping[str, type]]
"""The tables: for each base class, its classes by the name that `type:` takes."""


class Builder:
    """Builds objects from plain data, and plain data from objects.

    Args:
        families: the tables of all rooms.
        built_elsewhere: further classes by the name that `type:` takes, whose own room builds them.
    """

    def __init__(
        self, families: Families, built_elsewhere: Mapping[str, type] = types.MappingProxyType({})
    ) -> None:
        self._families = families
        tables = (*families.values(), built_elsewhere)
        self._names = {cls: name for table in tables for name, cls in table.items()}

    def build(self, kind: Any, value: Any, path: str = "") -> Any:
        """Return what `value` describes, as `kind` (an annotation) asks for.

        Args:
            kind: a base class with a table, a dataclass, or any annotation that pydantic knows.
            value: plain data, or an object that is ready.
            path: where in the experiment the value stands, for complaints.

        Raises:
            InvalidInputError: with the path of the field and the mend.
        """
        members = get_args(kind) if _is_union(kind) else (kind,)
        for member in members:
            if not isinstance(member, type):
                continue
            if member in self._families and (len(members) == 1 or _names_one(member, value)):
                return self._of_family(member, value, path)
            if is_dataclass(member) and isinstance(value, member):
                return value
            if is_dataclass(member) and isinstance(value, Mapping):
                return self._of_class(member, value, path)
            if is_dataclass(member) and len(members) == 1:
                keys = ", ".join(field.name for field in fields(member))
                raise InvalidInputError(
                    f"{path}: {value!r:.60} is no mapping; give its keys ({keys})"
                )
        return _leaf(kind, value, path)

    def to_dict(self, thing: Any) -> Any:
        """Return the plain data from which `build` makes the same object again.

        Raises:
            InvalidInputError: an object that a file cannot describe.
        """
        if is_dataclass(thing) and not isinstance(thing, type):
            name = self._names.get(type(thing))
            head = {} if name is None else {"type": name}
            return head | {f.name: self.to_dict(getattr(thing, f.name)) for f in fields(thing)}
        if isinstance(thing, np.ndarray | Tensor | np.generic):
            return thing.tolist()
        if isinstance(thing, Mapping):
            return {key: self.to_dict(value) for key, value in thing.items()}
        if isinstance(thing, list | tuple):
            return [self.to_dict(value) for value in thing]
        if isinstance(thing, Path):
            return str(thing)
        if thing is None or isinstance(thing, str | int | float):
            return thing
        raise InvalidInputError(
            f"out: a {type(thing).__name__} object cannot be written to an experiment file; "
            "describe it by name, or run without a folder"
        )

    def _of_family(self, base: type, value: Any, path: str) -> Any:
        """Return one of the classes of a table: from an object, a type name, or a mapping."""
        if isinstance(value, base):
            return value
        table = self._families[base]
        if not isinstance(value, str | Mapping):
            raise InvalidInputError(
                f"{path}: {value!r:.60} is not a `type`; {did_you_mean('', table)}"
            )
        value = {"type": value} if isinstance(value, str) else dict(value)
        name = value.pop("type", None)
        if name is None:
            raise InvalidInputError(f"{_join(path, 'type')}: missing; {did_you_mean('', table)}")
        if not isinstance(name, str) or name not in table:
            raise InvalidInputError(
                f"{_join(path, 'type')}: unknown {name!r:.60}; {did_you_mean(str(name), table)}"
            )
        return self._of_class(table[name], value, path)

    def _of_class(self, cls: type, value: Mapping[str, Any], path: str) -> Any:
        """Return the dataclass with these fields."""
        hints = get_type_hints(cls)
        known = {field.name: field for field in fields(cls) if field.init}
        for key in value:
            if key not in known:
                raise InvalidInputError(
                    f"{_join(path, key)}: unknown key; {did_you_mean(str(key), known)}"
                )
        for name, field in known.items():
            required = field.default is MISSING and field.default_factory is MISSING
            if required and name not in value:
                raise InvalidInputError(f"{_join(path, name)}: missing; give it a value")
        built = {key: self.build(hints[key], v, _join(path, key)) for key, v in value.items()}
        try:
            return cls(**built)
        except InvalidInputError as error:
            raise (error.prefixed(path) if path else error) from None


def _join(path: str, key: Any) -> str:
    """Return the dotted path of a key; a key that does not fit one line is written as Python does.

    >>> _join("local", "lr"), _join("", "l\\n")
    ('local.lr', "'l\\\\n'")
    """
    name = str(key)
    if not name.strip() or not name.isprintable() or len(name) > 60:
        name = f"{key!r:.60}"
    return f"{path}.{name}" if path else name


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def _names_one(base: type, value: Any) -> bool:
    """Say whether a value for a union with other things is meant for the table of `base`."""
    return isinstance(value, base | Mapping) or (isinstance(value, str) and not _is_number(value))


def _is_number(text: str) -> bool:
    """Say whether a string is a number that YAML did not take for one, such as 1e-3."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _leaf(kind: Any, value: Any, path: str) -> Any:
    """Return a value of a plain type, converted as pydantic converts (`"1e-3"` is a float)."""
    try:
        built = _adapter(kind).validate_python(value)
    except ValidationError as error:
        what = error.errors()[0]["msg"]
        raise InvalidInputError(
            f"{path}: {what[0].lower()}{what[1:]} (got {value!r:.60})"
        ) from None
    if isinstance(value, bool) and type(built) in (int, float):
        raise InvalidInputError(f"{path}: input should be a number (got {value!r})")
    _refuse_huge(built, path)
    return built


def _refuse_huge(value: Any, path: str) -> None:
    """Refuse whole numbers of more than 64 bits, which no array can hold."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InvalidInputError(
            f"{path}: {value!r:.60} is too large a number; give one below 2**63"
        )
    if isinstance(value, list | tuple):
        for part in value:
            _refuse_huge(part, path)


@lru_cache(maxsize=512)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return pydantic's reader of an annotation; classes it does not know are checked as such."""
    try:
        return TypeAdapter(_known(kind), config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticSchemaGenerationError:
        return TypeAdapter(Any)


def _known(kind: Any) -> Any:
    """Return the annotation with every NumPy array type replaced by the bare class."""
    if get_origin(kind) is np.ndarray:
        return np.ndarray
    if _is_union(kind):
        return Union[tuple(_known(member) for member in get_args(kind))]  # noqa: UP007
    return kind
