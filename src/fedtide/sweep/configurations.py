"""The runs of a sweep: what all seeds of one have in common, and each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedtide.errors import InvalidInputError
from fedtide.simulation.experiment import Experiment
from fedtide.sweep.grid import Point, applied, merged


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Args:
        path: its folder below the sweep's; empty for a sweep of one run.
        experiment: what it runs.
        fields: what it is known by: `method`, the swept fields, `seed`.
    """

    path: str
    experiment: Experiment
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Configuration:
    """What the seeds of a sweep have in common: one method with one value of each field.

    Args:
        method: its name; empty where the file names no methods.
        changes: the keys that the method changes.
        chosen: the points of the list, the grid and the strategy.
        plain: the experiment as plain data, without its seed.
    """

    method: str
    changes: Mapping[str, Any]
    chosen: tuple[Point, ...]
    plain: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The setting's folder; empty where nothing is varied."""
        return "/".join(filter(None, (self.method, ",".join(p.label for p in self.chosen))))

    def at(self, point: Point) -> Configuration:
        """Return the setting with further fields."""
        return replace(self, chosen=(*self.chosen, point))

    def resolved(self) -> dict[str, Any]:
        """Return the plain data with everything that was chosen."""
        plain = merged(self.plain, self.changes)
        for point in self.chosen:
            plain = applied(plain, point.changes)
        return plain

    def patch(self) -> dict[str, Any]:
        """Return the keys of the experiment that make this setting, to be listed as a method."""
        resolved = self.resolved()
        fields = [field for point in self.chosen for field in point.changes]
        keys = dict.fromkeys([*self.changes, *(field.partition(".")[0] for field in fields)])
        return {key: resolved[key] for key in keys}

    def member(self, seed: Any, name: str) -> SweepRun:
        """Return the run of one seed.

        Raises:
            InvalidInputError: a value that cannot be used; the sentence says what brought it in.
        """
        label = self.label or name
        plain = self.resolved() | {"seed": seed, "name": label.replace("/", " ")}
        try:
            experiment = Experiment.from_dict(plain)
        except InvalidInputError as error:
            raise self._blamed(error) from None
        fields = {"method": self.method} if self.method else {}
        shown = {name: value for point in self.chosen for name, value in point.shown.items()}
        return SweepRun(f"{label}/seed-{seed}", experiment, fields | shown | {"seed": seed})

    def _blamed(self, error: InvalidInputError) -> InvalidInputError:
        """Return the complaint with the part of the file that its field came from."""
        named = str(error).partition(":")[0]
        for point in self.chosen:
            for swept in point.changes:
                if f"{named}.".startswith(f"{swept}.") or f"{swept}.".startswith(f"{named}."):
                    return error.prefixed(point.source)
        return error.prefixed(f"methods.{self.method}") if self.changes else error
