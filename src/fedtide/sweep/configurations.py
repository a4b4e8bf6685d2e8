"""Configurations of a sweep (a method with a value for each field) and their runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedtide.errors import InvalidInputError
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.experiment_files import merge, set_fields
from fedtide.sweep.grid import Point
from fedtide.validation import require_folder_name, shorten_folder_name


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
    fields: Mapping[str, Any] = field(default_factory=dict)


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
        """Return the run of one seed; `name` labels a configuration without a label.

        Raises:
            InvalidInputError: an invalid value; the message says which part of the file set it.
        """
        if not self.label:
            require_folder_name("name", name)
        label = self.label or name
        plain = self.resolve() | {"seed": seed, "name": label.replace("/", " ")}
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
