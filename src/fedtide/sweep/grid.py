"""The configurations of a sweep: methods, the points of lists and grids, and their runs."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from fedtide.errors import InvalidInputError
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.experiment_files import merge, set_fields
from fedtide.spec import canonical
from fedtide.validation import require_folder_name, shorten_folder_name

_FOLDER_NAME = re.compile(r"[\w+.=-]+")
_MAX_LABEL_LENGTH = 60  # characters; the value of a longer label is replaced by its hash


@dataclass(frozen=True)
class Point:
    """A value for one or more fields of an experiment.

    Args:
        label: its folder name, such as "local.lr=0.1".
        changes: the value of each dotted field.
        shown: what the results show for each field: its value, or a label if it is not a scalar.
        source: the key of the file that it comes from.
    """

    label: str
    changes: Mapping[str, Any]
    shown: Mapping[str, Any]
    source: str = "grid"


def combine_points(grid: Any, listed: Any) -> list[tuple[Point, ...]]:
    """Return every combination of the entries of `list` and the values of `grid`.

    Raises:
        InvalidInputError: the grid or the list is malformed, or both set the same field.
    """
    axes = [] if listed is None else [_parse_list(listed)]
    if grid is not None:
        if not isinstance(grid, dict) or not grid:
            raise InvalidInputError(
                "grid: not a mapping from fields to values; write local.lr: [0.1, 0.3]"
            )
        axes += [_parse_axis(field, values) for field, values in grid.items()]
    uses = Counter(field for axis in axes for field in {f for p in axis for f in p.changes})
    for field, count in uses.items():
        if count > 1:
            raise InvalidInputError(f"grid.{field}: the list sets it as well; keep one of them")
    return list(product(*axes))


def _parse_axis(field: Any, values: Any) -> list[Point]:
    """Return the points of one field, given a list of values or a mapping from label to value."""
    _check_field("grid", field)
    if isinstance(values, dict) and values and "type" not in values:
        for name in map(str, values):
            require_folder_name(f"grid.{field}", name)
        return [Point(f"{field}={n}", {field: v}, {field: str(n)}) for n, v in values.items()]
    if not isinstance(values, list) or not values:
        raise InvalidInputError(
            f"grid.{field}: {values!r:.40} is not a list of values; write [0.1, 0.3]"
        )
    points = [_point(field, value) for value in values]
    _refuse_repeated(f"grid.{field}", [point.label for point in points])
    return points


def _parse_list(entries: Any) -> list[Point]:
    """Return the points of `list`: mappings from dotted fields to values, labelled by `name`."""
    if not isinstance(entries, list) or not entries:
        raise InvalidInputError("list: not a list of fields with values; write [{local.lr: 0.1}]")
    points = [_parse_entry(i, entry) for i, entry in enumerate(entries)]
    if any("name" in entry for entry in entries):
        points = [replace(point, shown={"name": point.label, **point.shown}) for point in points]
    _refuse_repeated("list", [point.label for point in points])
    return points


def _parse_entry(i: int, entry: Any) -> Point:
    if not isinstance(entry, dict) or not entry.keys() - {"name"}:
        raise InvalidInputError(f"list[{i}]: {entry!r:.40} sets no field; write {{local.lr: 0.1}}")
    changes = {field: value for field, value in entry.items() if field != "name"}
    for field in changes:
        _check_field(f"list[{i}]", field)
    points = [_point(field, value) for field, value in changes.items()]
    label = _shorten(",".join(point.label for point in points))
    if "name" in entry:
        label = str(entry["name"])
        require_folder_name(f"list[{i}].name", label)
    shown = {field: value for point in points for field, value in point.shown.items()}
    return Point(label, changes, shown, "list")


def shown_value(value: Any) -> Any:
    """Return what the results show for a value: a scalar itself, or a hash of anything else.

    >>> shown_value("1e-3"), shown_value({"type": "correlated", "alpha": 0.1})
    (0.001, 'correlated-cb5eed')
    """
    shown = _parse_number(value)
    return shown if shown is None or isinstance(shown, str | int | float) else _hash(value)


def _point(field: str, value: Any) -> Point:
    shown = shown_value(value)
    text = str(shown).lower() if shown is None or isinstance(shown, bool) else str(shown)
    return Point(_shorten(f"{field}={text}"), {field: value}, {field: shown})


def _parse_number(value: Any) -> Any:
    """Convert a string to a number, as YAML 1.1 reads 1e-3 as a string; else return the value."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _check_field(where: str, field: Any) -> None:
    if not isinstance(field, str) or not all(field.split(".")):
        raise InvalidInputError(f"{where}.{field}: not a dotted field name; write local.lr")
    if field in ("seed", "name", "seeds", "methods"):
        instead = "name the runs by `methods` or labels" if field == "name" else "use `seeds`"
        raise InvalidInputError(f"{where}.{field}: cannot be varied here; {instead}")


def _refuse_repeated(where: str, names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise InvalidInputError(f"{where}: {name!r:.60} is given twice; remove or name one")


def _shorten(label: str) -> str:
    """Return the label, with the value replaced by its hash if it cannot be a folder name."""
    if _FOLDER_NAME.fullmatch(label.replace(",", "")) and len(label) <= _MAX_LABEL_LENGTH:
        return label
    return f"{label.partition('=')[0][: _MAX_LABEL_LENGTH - 10]}={_hash(label)}"


def _hash(value: Any) -> str:
    """Return six hexadecimal digits, after the `type` if there is one; equal in every sweep."""
    text = canonical(value)
    kind = f"{value['type']}-" if isinstance(value, dict) and "type" in value else ""
    return kind + hashlib.sha256(text.encode()).hexdigest()[:6]


def parse_methods(methods: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each method's name and the keys that it changes; a method set to false is left out.

    Raises:
        InvalidInputError: not a mapping from names to changed keys, no method is left, or a name
            cannot be a folder name.
    """
    given = methods if isinstance(methods, dict) else {}
    kept = {str(name): changes for name, changes in given.items() if changes is not False}
    if not kept or not all(isinstance(changes, dict) for changes in kept.values()):
        raise InvalidInputError(
            "methods: not a mapping from names to changed keys; write fedau: {algorithm: fedau}, "
            "or fedau: false to leave it out"
        )
    for method, changes in kept.items():
        require_folder_name("methods", method)
        for key, source in (("seed", "`seeds`"), ("name", "the method's name")):
            if key in changes:
                raise InvalidInputError(f"methods.{method}.{key}: set by {source}; remove it")
        yield method, changes


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Args:
        path: its folder below the sweep's; empty for a sweep of one run.
        experiment: what it runs.
        fields: the columns that identify it in the results: `method`, the swept fields, `seed`.
    """

    path: str
    experiment: Experiment
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Configuration:
    """One method with one value of each swept field; shared by the runs of all seeds.

    Args:
        method: the method's name; empty if the file names no methods.
        changes: the keys that the method changes.
        points: its points from the list, the grid and the strategy.
        base: the experiment as plain data, without its seed.
    """

    method: str
    changes: Mapping[str, Any]
    points: tuple[Point, ...]
    base: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The configuration's folder; empty if nothing is varied."""
        points = shorten_folder_name(",".join(point.label for point in self.points))
        return "/".join(filter(None, (self.method, points)))

    def with_point(self, point: Point) -> Configuration:
        """Return the configuration with further fields set."""
        return replace(self, points=(*self.points, point))

    def resolve(self) -> dict[str, Any]:
        """Return the experiment as plain data, with the method and all points applied.

        A field such as `local.lr` is set after the entry that contains it, here `local`.
        """
        changes = [change for point in self.points for change in point.changes.items()]
        ordered = sorted(changes, key=lambda change: change[0].count("."))
        return set_fields(merge(self.base, self.changes), dict(ordered))

    def to_method(self) -> dict[str, Any]:
        """Return the top-level keys that define this configuration, as an entry of `methods`."""
        resolved = self.resolve()
        fields = [field for point in self.points for field in point.changes]
        keys = dict.fromkeys([*self.changes, *(field.partition(".")[0] for field in fields)])
        return {key: resolved[key] for key in keys}

    def run(self, seed: Any, name: str) -> SweepRun:
        """Return the run of one seed; without a method, it has the `name` of its sweep.

        Raises:
            InvalidInputError: an invalid value; the message says which part of the file set it.
        """
        if not self.label:
            require_folder_name("name", name)
        label = self.label or name
        plain = self.resolve() | {"seed": seed, "name": self.method or name}
        try:
            experiment = Experiment.from_dict(plain)
        except InvalidInputError as error:
            raise self._locate(error) from None
        fields = {"method": self.method} if self.method else {}
        shown = {name: value for point in self.points for name, value in point.shown.items()}
        return SweepRun(f"{label}/seed-{seed}", experiment, fields | shown | {"seed": seed})

    def _locate(self, error: InvalidInputError) -> InvalidInputError:
        """Return the error prefixed with the part of the file that set the field."""
        named = str(error).partition(":")[0]
        key = named.partition(".")[0]
        for point in self.points:
            for swept in point.changes:
                if f"{named}.".startswith(f"{swept}.") or f"{swept}.".startswith(f"{named}."):
                    found = error.prefixed(point.source)
                    if key not in self.changes:
                        return found
                    return InvalidInputError(f"{found} (in methods.{self.method})")
        if self.method and ({named, key} & self.changes.keys() or key not in self.base):
            return error.prefixed(f"methods.{self.method}")
        return error
