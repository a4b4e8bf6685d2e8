"""Conversion of plain data (the content of a YAML file) to the objects of an experiment, and back.

Every configurable object is a frozen dataclass. Registries map `type` names to classes; any other
class is named by its import path. The annotations of the fields say what they take, so a new method
or process needs no code here.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from torch import Tensor

from fedtide.configurable import (
    describe_field,
    explain_mismatch,
    field_types,
    fits,
    is_flat,
    is_union,
    label_to_mapping,
)
from fedtide.content_hash import describe, fingerprint
from fedtide.errors import InvalidInputError, did_you_mean, first_line
from fedtide.import_paths import import_object, import_path_of, is_import_path, is_own

Registries = Mapping[type, Mapping[str, type]]
"""For each base class, the classes derived from it by their `type` name."""

_LISTED = 10_000
"""Arrays with more numbers are described by a fingerprint where no object is built from them."""


class Builder:
    """Builds objects from plain data, and plain data from objects.

    Args:
        registries: the derived classes of each base class, by `type` name.
        named_only: further classes with a `type` name, which are not built here.
    """

    def __init__(
        self, registries: Registries, named_only: Mapping[str, type] = types.MappingProxyType({})
    ) -> None:
        self.registries = registries
        self._bases = tuple(registries)
        tables = (*registries.values(), named_only)
        self._names = {cls: name for table in tables for name, cls in table.items()}

    def build(self, kind: Any, value: Any, path: str = "") -> Any:
        """Return the object that `value` describes, of the type that `kind` asks for.

        Args:
            kind: a registered base class, a dataclass, or any annotation that pydantic supports.
            value: plain data, or a finished object.
            path: where in the experiment the value stands, for error messages.

        Raises:
            InvalidInputError: the value does not fit; names the path of the field.
        """
        if isinstance(value, Mapping) and "in_memory" in value:
            raise InvalidInputError(
                f"{path}: given in memory ({value['in_memory']!s:.60}), which no file holds; run "
                "it from Python with the same object"
            )
        members = get_args(kind) if is_union(kind) else (kind,)
        takes_mapping = any(get_origin(member) is Mapping for member in members)
        if takes_mapping and isinstance(value, Mapping) and "type" not in value:
            return _convert(kind, value, path)
        for annotation in members:
            member = get_origin(annotation) or annotation
            if not isinstance(member, type):
                continue
            if member in self.registries and (len(members) == 1 or _is_registered(member, value)):
                return self._build_registered(member, value, path)
            if is_dataclass(member) and isinstance(value, member):
                return value
            if is_dataclass(member) and isinstance(value, Mapping):
                return self._build_dataclass(member, value, path)
            if is_dataclass(member) and len(members) == 1:
                keys = ", ".join(field.name for field in fields(member))
                raise InvalidInputError(
                    f"{path}: {value!r:.60} is not a mapping; give its keys ({keys})"
                )
        return _convert(kind, value, path)

    def to_dict(self, thing: Any, otherwise: Callable[[Any], Any] | None = None) -> Any:
        """Return plain data from which `build` makes an equal object.

        Functions, and classes without a `type` name, are written as import paths. Tables, data
        sets, networks and mappings of arrays are described by a fingerprint, which is equal for
        equal data but which `build` refuses.

        Args:
            thing: the object.
            otherwise: returns what stands for an object, class or function that plain data cannot
                describe, and large arrays are described by a fingerprint. None: such an object is
                refused.

        Raises:
            InvalidInputError: an object that plain data cannot describe.
        """
        try:
            return self._describe(thing, otherwise)
        except Exception:  # a user's class may raise anything as it is described
            if otherwise is None:
                raise
            return otherwise(thing)

    def _describe(self, thing: Any, otherwise: Callable[[Any], Any] | None) -> Any:
        if (about := describe(thing)) is not None:
            return about
        if is_dataclass(thing) and not isinstance(thing, type):
            name = self._type_name(type(thing), otherwise)
            head = {} if name is None else {"type": name}
            values = {f.name: getattr(thing, f.name) for f in fields(thing)}
            return head | {name: self.to_dict(value, otherwise) for name, value in values.items()}
        if isinstance(thing, np.ndarray | Tensor | np.generic):
            if otherwise is not None and np.size(thing) > _LISTED:
                return {"in_memory": type(thing).__name__, "sha256": fingerprint(thing)}
            return thing.tolist()
        if isinstance(thing, Mapping):
            return {
                key.item() if isinstance(key, np.generic) else key: self.to_dict(value, otherwise)
                for key, value in thing.items()
            }
        if isinstance(thing, list | tuple):
            if is_flat(thing):
                return list(thing)
            return [self.to_dict(value, otherwise) for value in thing]
        if isinstance(thing, Path):
            return str(thing)
        if thing is None or isinstance(thing, str | int | float):
            return thing
        if isinstance(thing, type | types.FunctionType | types.BuiltinFunctionType):
            return import_path_of(thing)
        raise InvalidInputError(
            f"out: a {type(thing).__name__} object cannot be written to an experiment file; "
            "describe it by name, or run without a folder"
        )

    def find_key(self, cls: type, name: str) -> list[str]:
        """Return the dotted keys that end in `name` at the shallowest level below a dataclass.

        The search covers all classes that fields may hold, down to two levels.
        """
        level = [("", cls)]
        for _ in range(3):
            fields_of = [(path, *item) for path, one in level for item in field_types(one).items()]
            if found := [f"{path}{name}" for path, field, _ in fields_of if field == name]:
                return sorted(set(found))
            level = [
                (f"{path}{field}.", inner)
                for path, field, kind in fields_of
                for inner in self._classes_of(kind)
            ]
        return []

    def _classes_of(self, kind: Any) -> list[type]:
        """Return the dataclasses whose objects a field with this annotation may hold."""
        found: list[type] = []
        for annotation in get_args(kind) if is_union(kind) else (kind,):
            member = get_origin(annotation) or annotation
            if member in self.registries:
                found += self.registries[member].values()
            elif isinstance(member, type) and is_dataclass(member):
                found.append(member)
        return found

    def _type_name(self, cls: type, otherwise: Callable[[Any], Any] | None) -> Any:
        """Return the `type` of a class; None if the field that holds it implies the class."""
        if cls in self._names:
            return self._names[cls]
        if not is_own(cls) and not issubclass(cls, self._bases):
            return None
        # without a decorator of its own, its fields may not be all that its objects hold
        is_described = "__dataclass_fields__" in vars(cls)
        return self.to_dict(cls, otherwise if is_described else None)

    def _build_registered(self, base: type, value: Any, path: str) -> Any:
        """Return an object of a registered or imported class from itself, a name or a mapping."""
        if isinstance(value, base):
            return value
        table = self.registries[base]
        if isinstance(value, type):
            name = value.__name__
            hint = f"write {name}()" if issubclass(value, base) else _derive(base)
            raise InvalidInputError(f"{path}: {name} is a class, not an object; {hint}")
        if not isinstance(value, str | Mapping) and type(value).__module__ != "builtins":
            raise InvalidInputError(
                f"{path}: the class {type(value).__name__} is not derived from {base.__name__}; "
                f"{_derive(base)}"
            )
        if not isinstance(value, str | Mapping):
            raise InvalidInputError(
                f"{path}: {value!r:.60} is not a `type`; {did_you_mean('', table)}"
            )
        value = {"type": value} if isinstance(value, str) else dict(value)
        name = value.pop("type", None)
        if name is None:
            raise InvalidInputError(f"{_join(path, 'type')}: missing; {did_you_mean('', table)}")
        if is_import_path(name):
            return self._build_dataclass(_import_class(name, base, path), value, path)
        if not isinstance(name, str) or name not in table:
            raise InvalidInputError(
                f"{_join(path, 'type')}: unknown {name!r:.60}; {did_you_mean(str(name), table)}"
            )
        return self._build_dataclass(table[name], value, path)

    def _build_dataclass(self, cls: type, value: Mapping[str, Any], path: str) -> Any:
        """Return an object of this dataclass with these fields."""
        if is_import_path(value.get("type")):
            cls = _import_class(value["type"], cls, path)
            value = {key: v for key, v in value.items() if key != "type"}
        hints = field_types(cls)
        known = {field.name: field for field in fields(cls) if field.init}
        refuse_unknown_keys(value, known, path)
        required = [
            name
            for name, field in known.items()
            if field.default is MISSING and field.default_factory is MISSING
        ]
        refuse_missing_keys(value, required, path, cls)
        built = {key: self.build(hints[key], v, _join(path, key)) for key, v in value.items()}
        try:
            return cls(**built)
        except InvalidInputError as error:
            raise (error.prefixed(path) if path else error) from None
        except Exception as error:  # a user's class may raise anything
            if not is_own(cls):
                raise
            raise InvalidInputError(
                f"{path}: {cls.__name__} cannot be created ({first_line(error, with_type=True)}); "
                "correct the class or its values"
            ) from error


def refuse_unknown_keys(
    given: Iterable[Any],
    known: Collection[str],
    path: str = "",
    find: Callable[[str], Sequence[str]] = lambda name: (),
) -> None:
    """Raise InvalidInputError if a key of the mapping at this path is unknown.

    Args:
        given: the keys of the mapping.
        known: the keys that it may have.
        path: of the mapping.
        find: returns the dotted keys that end in a given name, for the hint.
    """
    for key in given:
        if key not in known:
            is_number = isinstance(key, int | float) and not isinstance(key, bool)
            hint = "write decimals with a point, such as 0.1" if is_number else ""
            if found := find(str(key)):
                hint = f"did you mean {' or '.join(map(repr, found))}?"
            raise InvalidInputError(
                f"{_join(path, key)}: unknown key; {hint or did_you_mean(str(key), known)}"
            )


def refuse_missing_keys(
    given: Collection[Any], required: Iterable[str], path: str = "", cls: type | None = None
) -> None:
    """Raise InvalidInputError if the mapping at this path lacks required fields of `cls`."""
    if missing := [name for name in required if name not in given]:
        first, *others = (_join(path, name) for name in missing)
        hint = f"values to it and to {', '.join(others)}"
        if not others:
            hint = "a value" if cls is None else describe_field(cls, missing[0])
        raise InvalidInputError(f"{first}: missing; give {hint}")


def _join(path: str, key: Any) -> str:
    """Return the dotted path of a key; unprintable and long keys are quoted.

    >>> _join("local", "lr"), _join("", "l\\n")
    ('local.lr', "'l\\\\n'")
    """
    name = str(key)
    if not name.strip() or not name.isprintable() or len(name) > 60:
        name = f"{key!r:.60}"
    return f"{path}.{name}" if path else name


def _derive(base: type) -> str:
    return f"derive it from {base.__module__}.{base.__qualname__}"


def _import_class(name: str, base: type, path: str) -> type:
    """Return the class at an import path.

    Raises:
        InvalidInputError: it cannot be imported, or is not a dataclass derived from `base`.
    """
    field = _join(path, "type")
    cls = import_object(name, field)
    if not (isinstance(cls, type) and issubclass(cls, base) and is_dataclass(cls)):
        is_derived = isinstance(cls, type) and issubclass(cls, base)
        hint = "decorate it with @dataclass(frozen=True)" if is_derived else _derive(base)
        raise InvalidInputError(
            f"{field}: {name!r:.60} is not a dataclass derived from {base.__name__}; {hint}"
        )
    try:
        field_types(cls)
    except NameError as error:
        raise InvalidInputError(
            f"{field}: an annotation of {name!r:.60} cannot be evaluated ({error}); import what it "
            "names"
        ) from None
    return cls


def _is_registered(base: type, value: Any) -> bool:
    """Return whether a value of a union type describes an object of a registered class."""
    return isinstance(value, base | Mapping) or (
        isinstance(value, str) and not _means_number(value)
    )


def _means_number(text: str) -> bool:
    """Return whether a string is a number, such as 1e-3, or meant as one, such as 30%."""
    try:
        float(text)
    except ValueError:
        return text.lstrip(" +-.,")[:1].isdigit()
    return True


def _convert(kind: Any, value: Any, path: str) -> Any:
    """Return a value of a plain type, converted by pydantic (`"1e-3"` becomes a float)."""
    value = label_to_mapping(path, kind, value)
    try:
        built = _adapter(kind).validate_python(value)
    except ValidationError as error:
        if isinstance(value, np.ndarray | Tensor):  # for a field that takes only lists
            return _convert(kind, value.tolist(), path)
        if not fits(kind, value):
            raise InvalidInputError(explain_mismatch(path, kind, value)) from None
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
        raise InvalidInputError(f"{path}: {value!r:.60} is too large; give a number below 2**63")
    if isinstance(value, list | tuple):
        for part in value:
            _refuse_huge(part, path)


@lru_cache(maxsize=512)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return pydantic's adapter of an annotation; unknown classes are checked by isinstance."""
    try:
        return TypeAdapter(
            _without_array_types(kind), config=ConfigDict(arbitrary_types_allowed=True)
        )
    except PydanticSchemaGenerationError:
        return TypeAdapter(Any)


def _without_array_types(kind: Any) -> Any:
    """Return the annotation with NumPy array types replaced by the class `np.ndarray`."""
    if get_origin(kind) is np.ndarray:
        return np.ndarray
    if is_union(kind):
        return Union[tuple(_without_array_types(member) for member in get_args(kind))]  # noqa: UP007
    return kind
