"""Plain data of experiment files: read, overridden, merged, and listed by dotted keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedtide.errors import InvalidInputError, first_line
from fedtide.validation import expand_home
from fedtide.yaml_text import YamlError, parse


def read_yaml(
    path: str | Path, hint: str = "an experiment begins with `problem:`"
) -> dict[str, Any]:
    """Return the mapping in a YAML file; `hint` tells what belongs in such a file.

    Raises:
        InvalidInputError: no such file, not YAML, or not a mapping.
    """
    try:
        plain = parse(expand_home(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(
            f"{path}: cannot be read ({error.strerror}); check the path"
        ) from None
    except ValueError as error:  # not YAML, or not UTF-8
        raise InvalidInputError(f"{path}: {first_line(error)}; correct the file") from None
    if not isinstance(plain, dict):
        raise InvalidInputError(f"{path}: not a mapping; {hint}")
    return plain


def override(plain: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return the plain data with `KEY=VALUE`s applied; keys are dotted, values are YAML.

    >>> override({"algorithm": "fedau"}, ["algorithm.cutoff=20", "rounds=5"])
    {'algorithm': {'type': 'fedau', 'cutoff': 20}, 'rounds': 5}
    """
    for text in overrides:
        key, value = read_override(text)
        put(plain, key.split("."), value)
    return plain


def read_override(text: str) -> tuple[str, Any]:
    """Return the dotted key and the value of a `KEY=VALUE`; the value is YAML.

    Raises:
        InvalidInputError: not KEY=VALUE, or not YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InvalidInputError(f"{text}: not KEY=VALUE; write for example rounds=50")
    try:
        return key, parse(value)
    except YamlError:
        raise InvalidInputError(f"{key}: the value {value!r:.60} is not YAML; quote it") from None


def put(plain: dict[str, Any], keys: list[str], value: Any) -> None:
    """Set plain[k_1]...[k_n] = value, creating mappings (a bare name becomes a `type`)."""
    for key in keys[:-1]:
        inner = plain.get(key)
        if isinstance(inner, str):
            inner = {"type": inner}
        plain[key] = dict(inner) if isinstance(inner, dict) else {}
        plain = plain[key]
    plain[keys[-1]] = value


def flatten(plain: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of every field.

    >>> dict(flatten({"local": {"lr": 0.1}, "seed": 3}))
    {'local.lr': 0.1, 'seed': 3}
    """
    for key, value in plain.items():
        name = f"{path}{key}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{name}.")
        else:
            yield name, value


def set_fields(plain: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain data with these values at these dotted fields.

    >>> set_fields({"local": {"lr": 1}, "rounds": 5}, {"local.lr": 2})
    {'local': {'lr': 2}, 'rounds': 5}
    """
    changed = dict(plain)
    for field, value in changes.items():
        put(changed, field.split("."), value)
    return changed


def merge(plain: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain data with changes merged in; a mapping with a `type` replaces the old one.

    >>> merge({"local": {"lr": 1, "steps": 2}}, {"local": {"lr": 3}})
    {'local': {'lr': 3, 'steps': 2}}
    """
    changed = dict(plain)
    for key, value in changes.items():
        old = changed.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and "type" not in value:
            value = merge(old, value)
        changed[key] = value
    return changed
