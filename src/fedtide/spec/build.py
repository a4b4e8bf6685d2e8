"""Plain data (the content of a YAML file) as objects.

Registries map `type` names to classes; any other class is named by its import path. The
annotations of the fields say what they take, so a new method or process needs no code here.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import is_dataclass
from functools import partial
from typing import Any

from fedtide.errors import InvalidInputError, did_you_mean, error_prefix
from fedtide.import_paths import import_object, is_import_path
from fedtide.spec.annotations import (
    convert,
    members,
    origin,
    split_annotation,
)
from fedtide.spec.fields import fields
from fedtide.spec.plain import to_plain

Registries = Mapping[type, Mapping[str, type]]
"""For each base class, the classes derived from it by their `type` name."""


_NAMED = 4  # types that the message on a missing field names


class Builder:
    """The names of classes in plain data.

    Args:
        registries: the derived classes of each base class, by `type` name.
        named_only: further classes with a `type` name, which are not built here.
    """

    def __init__(
        self, registries: Registries, named_only: Mapping[str, type] = types.MappingProxyType({})
    ) -> None:
        self.registries = registries
        tables = (*registries.values(), named_only)
        self._names = {cls: name for table in tables for name, cls in table.items()}

    def build(self, kind: Any, value: Any, path: str = "") -> Any:
        """Return the object that `value` describes, of the type that `kind` asks for.

        Args:
            kind: a registered base class, a dataclass, or any other annotation.
            value: plain data, or a finished object.
            path: where in the experiment the value stands, for error messages.

        Raises:
            InvalidInputError: a key or `type` is unknown or missing, or an object refuses its
                fields; names their path. A plain value that does not fit is returned as it is: the
                object that takes it checks it.
        """
        if isinstance(value, Mapping) and "in_memory" in value:
            raise InvalidInputError(
                f"{path}: given in memory ({value['in_memory']!s:.60}), which no file holds; run "
                "it from Python with the same object"
            )
        kind, _ = split_annotation(kind)
        options = members(kind)
        takes_mapping = Mapping in map(origin, options)
        if takes_mapping and isinstance(value, Mapping) and "type" not in value:
            return convert(kind, value)
        for option in map(origin, options):
            if not isinstance(option, type):
                continue
            if option in self.registries and (len(options) == 1 or _is_registered(option, value)):
                return self._build_registered(option, value, path)
            if is_dataclass(option) and isinstance(value, option):
                return value
            if is_dataclass(option) and isinstance(value, Mapping):
                return self._build_dataclass(option, value, path)
            if is_dataclass(option) and len(options) == 1:
                keys = ", ".join(fields(option))
                raise InvalidInputError(
                    f"{path}: {value!r:.60} is not a mapping; give its keys ({keys})"
                )
        return convert(kind, value)

    def to_plain(self, thing: Any, in_memory: bool = False) -> Any:
        """Return plain data from which `build` makes an equal object; see `plain.to_plain`."""
        return to_plain(thing, self.name_type, in_memory)

    def name_type(self, cls: type) -> Any:
        """Return the `type` of a class; None if the field that holds it implies the class."""
        if cls in self._names:
            return self._names[cls]
        is_implied = cls.__module__.partition(".")[0] == "fedtide"
        return None if is_implied and not issubclass(cls, tuple(self.registries)) else cls

    def find_key(self, cls: type, name: str) -> list[str]:
        """Return the dotted keys that end in `name` at the shallowest level below a dataclass.

        The search covers all classes that fields may hold, down to two levels.
        """
        level = [("", cls)]
        for _ in range(3):
            below = [(path, field) for path, one in level for field in fields(one).values()]
            if found := {f"{path}{name}" for path, field in below if field.name == name}:
                return sorted(found)
            level = [
                (f"{path}{field.name}.", inner)
                for path, field in below
                for inner in self._classes_of(field.kind)
            ]
        return []

    def describe(self, cls: type, name: str) -> str:
        """Return what a field of a dataclass takes, with a few of its registered types."""
        field = fields(cls)[name]
        known = [*self.registries.get(origin(field.kind), ())][:_NAMED]
        return ", such as ".join(filter(None, (field.describe(), ", ".join(map(repr, known)))))

    def _classes_of(self, kind: Any) -> list[type]:
        """Return the dataclasses whose objects a field with this annotation may hold."""
        found: list[type] = []
        for option in map(origin, members(kind)):
            if option in self.registries:
                found += self.registries[option].values()
            elif isinstance(option, type) and is_dataclass(option):
                found.append(option)
        return found

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
        known = fields(cls)
        refuse_unknown_keys(value, known, path)
        required = [name for name, field in known.items() if field.is_required]
        refuse_missing_keys(value, required, path, partial(self.describe, cls))
        built = {
            key: self.build(known[key].kind, one, _join(path, key)) for key, one in value.items()
        }
        with error_prefix(path) if path else nullcontext():
            return cls(**built)


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
            place = _join(path, key) or repr(key)
            raise InvalidInputError(
                f"{place}: unknown key; {hint or did_you_mean(str(key), known)}"
            )


def refuse_missing_keys(
    given: Collection[Any],
    required: Iterable[str],
    path: str,
    describe: Callable[[str], str],
) -> None:
    """Raise InvalidInputError if the mapping at this path lacks required keys.

    Args:
        given: the keys of the mapping.
        required: the keys that it must have.
        path: of the mapping.
        describe: returns what a key takes.
    """
    if missing := [name for name in required if name not in given]:
        first, *others = (_join(path, name) for name in missing)
        hint = f"values to it and to {', '.join(others)}" if others else describe(missing[0])
        raise InvalidInputError(f"{first}: missing; give {hint}")


def _join(path: str, key: Any) -> str:
    """Return the dotted path of a key.

    >>> _join("local", "lr"), _join("", "rounds")
    ('local.lr', 'rounds')
    """
    return f"{path}.{key}" if path else str(key)


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
