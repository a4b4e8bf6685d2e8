"""What a sweep varies: the points of its methods, lists and grids, each with a readable label."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from fedtide.errors import InvalidInputError
from fedtide.simulation.experiment import put

_READABLE = re.compile(r"[\w+.=-]+")
_LONGEST = 60  # characters of a label; a longer one becomes a fingerprint


@dataclass(frozen=True)
class Point:
    """One choice for some fields of an experiment.

    Args:
        label: for people and folders, such as "local.lr=0.1".
        changes: the value of each dotted field.
        shown: what a table says of each field: its value, or the label of one that is no scalar.
        source: the key of the file that it comes from.
    """

    label: str
    changes: Mapping[str, Any]
    shown: Mapping[str, Any]
    source: str = "grid"


def applied(plain: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain data with these values at these dotted fields.

    >>> applied({"local": {"lr": 1}, "rounds": 5}, {"local.lr": 2})
    {'local': {'lr': 2}, 'rounds': 5}
    """
    changed = dict(plain)
    for field, value in changes.items():
        put(changed, field.split("."), value)
    return changed


def points(grid: Any, listed: Any) -> list[tuple[Point, ...]]:
    """Return every combination of the entries of `list` and the values of `grid`.

    Raises:
        InvalidInputError: one of the two is not what it should be.
    """
    axes = [_listed(listed)] if listed is not None else []
    if grid is not None:
        axes += [_axis(field, values) for field, values in _grid(grid).items()]
    twice = [field for i, axis in enumerate(axes) for field in _fields(axis) & _rest(axes[i + 1 :])]
    if twice:
        raise InvalidInputError(f"grid.{twice[0]}: the list gives it, too; keep one of them")
    return list(product(*axes))


def _fields(axis: list[Point]) -> set[str]:
    return {field for point in axis for field in point.changes}


def _rest(axes: list[list[Point]]) -> set[str]:
    return {field for axis in axes for field in _fields(axis)}


def _grid(grid: Any) -> Mapping[str, Any]:
    if not isinstance(grid, dict) or not grid:
        raise InvalidInputError("grid: not fields with their values, such as local.lr: [0.1, 0.3]")
    return grid


def _axis(field: Any, values: Any) -> list[Point]:
    """Return the points of one field: of a list of values, or of a mapping from label to value."""
    _check_field("grid", field)
    if isinstance(values, dict) and values and "type" not in values:
        named = {_label(f"grid.{field}", name): value for name, value in values.items()}
        return [Point(f"{field}={n}", {field: v}, {field: n}) for n, v in named.items()]
    if not isinstance(values, list) or not values:
        raise InvalidInputError(
            f"grid.{field}: {values!r:.40} is no list of values; write [0.1, 0.3]"
        )
    found = [_valued(field, value) for value in values]
    if len({point.label for point in found}) < len(found):
        raise InvalidInputError(f"grid.{field}: a value comes twice; give each once")
    return found


def _valued(field: str, value: Any) -> Point:
    shown = _number(value)
    if not (shown is None or isinstance(shown, str | int | float)):
        shown = _fingerprint(value)
    return Point(_short(f"{field}={_said(shown)}"), {field: value}, {field: shown})


def _number(value: Any) -> Any:
    """Return the number that YAML took for a word, such as 1e-3, and any other value as it is."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _listed(entries: Any) -> list[Point]:
    """Return the points of `list`: mappings from dotted fields to values, labelled by `name`."""
    if not isinstance(entries, list) or not entries:
        raise InvalidInputError("list: not a list of fields with values, such as [{local.lr: 0.1}]")
    found = [_entry(i, entry) for i, entry in enumerate(entries)]
    if len({point.label for point in found}) < len(found):
        raise InvalidInputError("list: two entries are alike; give each another `name` or value")
    return found


def _entry(i: int, entry: Any) -> Point:
    if not isinstance(entry, dict) or not entry.keys() - {"name"}:
        raise InvalidInputError(
            f"list[{i}]: {entry!r:.40} gives no field a value; write {{local.lr: 0.1}}"
        )
    changes = {field: value for field, value in entry.items() if field != "name"}
    for field in changes:
        _check_field(f"list[{i}]", field)
    valued = [_valued(field, value) for field, value in changes.items()]
    label = _short(",".join(point.label for point in valued))
    if "name" in entry:
        label = _label(f"list[{i}].name", entry["name"])
    shown = {field: value for point in valued for field, value in point.shown.items()}
    return Point(label, changes, shown, "list")


def _check_field(where: str, field: Any) -> None:
    if not isinstance(field, str) or not all(field.split(".")):
        raise InvalidInputError(
            f"{where}.{field}: not the dotted name of a field, such as local.lr"
        )
    if field in ("seed", "name", "seeds", "methods"):
        instead = "name the runs by `methods` or labels" if field == "name" else "use `seeds`"
        raise InvalidInputError(f"{where}.{field}: it cannot be varied here; {instead}")


def _label(where: str, name: Any) -> str:
    text = str(name)
    if not _READABLE.fullmatch(text) or text.startswith(".") or len(text) > _LONGEST:
        raise InvalidInputError(
            f"{where}: {text!r:.80} cannot be part of a folder's name; choose another"
        )
    return text


def _said(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _short(label: str) -> str:
    """Return the label, or one made of a fingerprint where it cannot name a folder."""
    if _READABLE.fullmatch(label.replace(",", "")) and len(label) <= _LONGEST:
        return label
    return f"{label.partition('=')[0][: _LONGEST - 10]}={_fingerprint(label)}"


def _fingerprint(value: Any) -> str:
    """Return a few letters that stand for a value, the same ones in every sweep."""
    text = json.dumps(value, sort_keys=True, default=str)
    named = f"{value['type']}-" if isinstance(value, dict) and "type" in value else ""
    return named + hashlib.sha256(text.encode()).hexdigest()[:6]


def method_points(methods: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each method's name and the keys that it changes.

    Raises:
        InvalidInputError: not names with changes, or a name that cannot be that of a folder.
    """
    usable = isinstance(methods, dict) and all(
        isinstance(changes, dict) for changes in methods.values()
    )
    if not usable or not methods:
        raise InvalidInputError(
            "methods: not names with the keys that each changes, such as fedau: {...}"
        )
    for method, changes in methods.items():
        method = str(method)
        if not method or "/" in method or method.startswith("."):
            raise InvalidInputError(
                f"methods: {method!r} cannot be the name of a folder; choose another"
            )
        for key, source in (("seed", "`seeds`"), ("name", "the method's own name")):
            if key in changes:
                raise InvalidInputError(
                    f"methods.{method}.{key}: it comes from {source}; leave it out"
                )
        yield method, changes


def merged(plain: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain data with changes: mappings without a `type` are merged.

    >>> merged({"local": {"lr": 1, "steps": 2}}, {"local": {"lr": 3}})
    {'local': {'lr': 3, 'steps': 2}}
    """
    changed = dict(plain)
    for key, value in changes.items():
        old = changed.get(key)
        merge = isinstance(old, dict) and isinstance(value, dict) and "type" not in value
        changed[key] = merged(old, value) if merge and isinstance(old, dict) else value
    return changed
