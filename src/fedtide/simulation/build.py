"""Between plain data (what a YAML file holds) and the objects of an experiment.

Every configured thing is a frozen dataclass. A room's table names its classes; the annotations of
the fields say what goes where. So a new method, process or partition needs no code here.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from torch import Tensor

from fedtide.errors import BadInput, did_you_mean

Families = Mapping[type, Mapping[str, type]]
"""The tables: for each base class, its classes by the name that `type:` takes."""


class Builder:
    """Builds objects from plain data, and plain data from objects.

    Args:
        families: the tables of all rooms.
    """

    def __init__(self, families: Families) -> None:
        self._families = families
        self._names = {cls: name for table in families.values() for name, cls in table.items()}

    def build(self, kind: Any, value: Any, path: str = "") -> Any:
        """Return what `value` describes, as `kind` (an annotation) asks for.

        Args:
            kind: a base class with a table, a dataclass, or any annotation that pydantic knows.
            value: plain data, or an object that is ready.
            path: where in the experiment the value stands, for complaints.

        Raises:
            BadInput: with the path of the field and the mend.
        """
        for member in get_args(kind) if _is_union(kind) else (kind,):
            if not isinstance(member, type):
                continue
            if member in self._families and isinstance(value, (str, Mapping, member)):
                return self._of_family(member, value, path)
            if is_dataclass(member) and isinstance(value, member):
                return value
            if is_dataclass(member) and isinstance(value, Mapping):
                return self._of_class(member, value, path)
        return _leaf(kind, value, path)

    def plain(self, thing: Any) -> Any:
        """Return the plain data from which `build` makes the same object again."""
        if is_dataclass(thing) and not isinstance(thing, type):
            name = self._names.get(type(thing))
            head = {} if name is None else {"type": name}
            return head | {f.name: self.plain(getattr(thing, f.name)) for f in fields(thing)}
        if isinstance(thing, np.ndarray | Tensor | np.generic):
            return thing.tolist()
        if isinstance(thing, Mapping):
            return {key: self.plain(value) for key, value in thing.items()}
        if isinstance(thing, list | tuple):
            return [self.plain(value) for value in thing]
        return thing

    def _of_family(self, base: type, value: Any, path: str) -> Any:
        """Return one of the classes of a table: from an object, a type name, or a mapping."""
        if isinstance(value, base):
            return value
        value = {"type": value} if isinstance(value, str) else dict(value)
        table = self._families[base]
        name = value.pop("type", None)
        if name is None:
            raise BadInput(f"{_join(path, 'type')}: missing; {did_you_mean('', table)}")
        if name not in table:
            raise BadInput(
                f"{_join(path, 'type')}: unknown {name!r}; {did_you_mean(str(name), table)}"
            )
        return self._of_class(table[name], value, path)

    def _of_class(self, cls: type, value: Mapping[str, Any], path: str) -> Any:
        """Return the dataclass with these fields."""
        hints = get_type_hints(cls)
        known = {field.name: field for field in fields(cls) if field.init}
        for key in value:
            if key not in known:
                raise BadInput(f"{_join(path, key)}: unknown key; {did_you_mean(str(key), known)}")
        for name, field in known.items():
            required = field.default is MISSING and field.default_factory is MISSING
            if required and name not in value:
                raise BadInput(f"{_join(path, name)}: missing; give it a value")
        built = {key: self.build(hints[key], v, _join(path, key)) for key, v in value.items()}
        try:
            return cls(**built)
        except BadInput as error:
            raise (error.at(path) if path else error) from None


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def _leaf(kind: Any, value: Any, path: str) -> Any:
    """Return a value of a plain type, converted as pydantic converts (`"1e-3"` is a float)."""
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        what = error.errors()[0]["msg"]
        raise BadInput(f"{path}: {what[0].lower()}{what[1:]} (got {value!r:.60})") from None


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
