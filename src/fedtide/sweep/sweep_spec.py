"""A sweep: one experiment under several methods, values and seeds, as one value or one file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtide.errors import InvalidInputError
from fedtide.simulation.experiment import REQUIRED, Experiment, override, read_yaml
from fedtide.sweep.configurations import Configuration, SweepRun
from fedtide.sweep.grid import merged, method_points, points
from fedtide.sweep.strategies import Choice, TwoStage, strategy_of

FILE = "sweep.yaml"
"""What is run, in the folder of the sweep."""

BEST = "best.yaml"
"""What a strategy has chosen: an experiment with methods, in the folder of the sweep."""

_OWN = ("seeds", "methods", "grid", "list", "strategy")


@dataclass(frozen=True)
class Sweep:
    """One experiment under several methods, values of its fields, and seeds.

    A file describes a sweep by keys beside those of an experiment:

    - `methods` maps a name to the keys that this method changes. A key that holds a `type` is
      replaced as a whole; others are changed key by key.
    - `grid` maps dotted fields to lists of values (or to mappings from a label to a value); all
      combinations are run.
    - `list` gives combinations one by one: mappings from dotted fields to values, each with a
      `name` if it likes.
    - `seeds`, a list.
    - `strategy` chooses among values by earlier runs: see `TwoStage`.
    - `base` names another file, beside this one, whose keys hold where this one is silent; the keys
      above replace those of the base as a whole.

    Args:
        name: for people, and of the folder.
        members: the runs known beforehand, all settings of a seed before the next seed.
        settings: what is run with every seed.
        seeds: of the runs.
        strategy: what decides on further runs; None: nothing does.
        plain: the file as plain data, everything merged.
    """

    name: str
    members: tuple[SweepRun, ...]
    settings: tuple[Configuration, ...]
    seeds: tuple[Any, ...]
    strategy: TwoStage | None
    plain: Mapping[str, Any]

    @classmethod
    def load(cls, path: str | Path, overrides: Iterable[str] = ()) -> Sweep:
        """Return the sweep of a YAML file; an experiment alone is a sweep of one run.

        Raises:
            InvalidInputError: a file that cannot be read, or anything in it that cannot be used.
        """
        return cls.of(override(_read(Path(path)), overrides), Path(path).stem)

    @classmethod
    def of(cls, plain: Mapping[str, Any], name: str = "sweep") -> Sweep:
        """Return the sweep that plain data describe; `name` is for data without one.

        Raises:
            InvalidInputError: anything in them that cannot be used.
        """
        common = {key: value for key, value in plain.items() if key not in _OWN}
        name = str(plain.get("name", name))
        varied = [key for key in _OWN if plain.get(key) is not None]
        if not varied:
            member = SweepRun("", Experiment.from_dict(common), {"seed": plain.get("seed", 0)})
            return cls(name, (member,), (), (), None, plain)
        if common.keys() >= REQUIRED:
            Experiment.from_dict(
                common
            )  # what all methods replace would not be looked at otherwise
        settings, seeds = tuple(_settings(plain, common)), tuple(_seeds(plain))
        strategy = strategy_of(plain.get("strategy"))
        if strategy is not None:
            strategy.check(settings)
        first = settings if strategy is None else strategy.first(settings)
        members = tuple(setting.member(seed, name) for seed in seeds for setting in first)
        return cls(name, members, settings, seeds, strategy, plain)

    @property
    def alone(self) -> bool:
        """Whether this is an experiment alone, which needs no folder below the sweep's."""
        return not self.settings

    def chosen(self, found: Iterable[Choice]) -> dict[str, Any]:
        """Return the file that runs what a strategy has found."""
        plain = {key: value for key, value in self.plain.items() if key not in _OWN}
        methods = {
            choice.setting.label.replace("/", ",") or self.name: choice.best.patch()
            for choice in found
            if choice.best is not None
        }
        return plain | {"methods": methods}


def _read(path: Path) -> dict[str, Any]:
    plain = read_yaml(path)
    base = plain.pop("base", None)
    if base is None:
        return plain
    below = _read(path.parent / str(base))
    return merged({key: below[key] for key in below if key not in _OWN or key not in plain}, plain)


def _settings(plain: Mapping[str, Any], common: Mapping[str, Any]) -> Iterator[Configuration]:
    methods = plain.get("methods")
    named = [("", {})] if methods is None else list(method_points(methods))
    chosen = points(plain.get("grid"), plain.get("list"))
    for method, changes in named:
        for combination in chosen:
            yield Configuration(method, changes, combination, common)


def _seeds(plain: Mapping[str, Any]) -> list[Any]:
    seeds = plain.get("seeds")
    if seeds is None:
        return [plain.get("seed", 0)]
    if not isinstance(seeds, list) or not seeds or len(set(map(str, seeds))) < len(seeds):
        raise InvalidInputError("seeds: not a list of different numbers, such as [1, 2, 3]")
    return seeds
