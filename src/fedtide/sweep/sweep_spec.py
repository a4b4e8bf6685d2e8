"""The specification of a sweep: a file or a mapping with methods, grids, lists and seeds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedtide.errors import InvalidInputError
from fedtide.simulation.experiment import (
    BUILDER,
    REQUIRED,
    SWEEP_KEYS,
    Experiment,
    refuse_unknown_fields,
)
from fedtide.simulation.experiment_files import merge, override, read_override, read_yaml
from fedtide.spec import Kind, is_data, is_network, refuse_missing_keys, visit
from fedtide.sweep.grid import Configuration, SweepRun, combine_points, parse_methods
from fedtide.sweep.strategies import Found, TwoStage, build_strategy
from fedtide.validation import expand_home, require_whole_number, shorten_folder_name

SWEEP_FILE = "sweep.yaml"
"""The specification, as written to the sweep's folder."""

BEST_FILE = "best.yaml"
"""The file in the sweep's folder with what a strategy found: an experiment with methods."""

_KEYS = (*SWEEP_KEYS, *(field.name for field in fields(Experiment)))


@dataclass(frozen=True)
class Sweep:
    """One experiment under several methods, values of its fields, and seeds.

    A sweep file is an experiment file with any of these additional keys:

    - `methods` maps a name to the keys that this method changes. A value with a `type` replaces
      the whole entry; other mappings are merged key by key.
    - `grid` maps dotted fields to lists of values (or to mappings from a label to a value); all
      combinations are run.
    - `list` gives combinations one by one: mappings from dotted fields to values, each with an
      optional `name`.
    - `seeds` is a list; every configuration is run with each seed.
    - `strategy` chooses values based on the results of earlier runs: see `TwoStage`.
    - `base` names another file, relative to this one, that provides the keys missing here. Each of
      the keys above replaces that of the base as a whole.

    Args:
        name: its name, for the output folder and figures.
        runs: the runs known in advance, all configurations of a seed before the next seed.
        configurations: what is run with every seed; empty if `runs` are all there is.
        seeds: the seeds.
        strategy: decides on further runs; None: there are none.
        plain: the merged file as plain data.
    """

    name: str
    runs: tuple[SweepRun, ...]
    configurations: tuple[Configuration, ...]
    seeds: tuple[Any, ...]
    strategy: TwoStage | None
    plain: Mapping[str, Any]

    @classmethod
    def load(cls, path: str | Path, overrides: Iterable[str] = ()) -> Sweep:
        """Return the sweep of a YAML file; a plain experiment is a sweep of one run.

        An override `seed=3` also replaces the file's `seeds`.

        Raises:
            InvalidInputError: a file cannot be read, or a value is invalid.
        """
        overrides = list(overrides)
        plain = _read(expand_home(path))
        if any(read_override(text)[0] == "seed" for text in overrides):
            plain.pop("seeds", None)
        return cls.from_dict(override(plain, overrides), Path(path).stem)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], name: str = "sweep") -> Sweep:
        """Return the sweep described by plain data; `name` is used if they contain none.

        An object, such as `ft.algorithms.FedAU()`, is allowed wherever a mapping with its `type`
        is.

        Raises:
            InvalidInputError: a value is invalid, or plain data cannot describe an object.
        """
        refuse_unknown_fields(plain, _KEYS)
        listed = {key: _list_values(plain[key]) for key in ("seeds", "grid") if key in plain}
        plain = {key: _to_plain(value) for key, value in {**plain, **listed}.items()}
        if plain.get("name", name) is None:
            del plain["name"]
        common = {key: value for key, value in plain.items() if key not in SWEEP_KEYS}
        name = str(plain.get("name", name))
        if all(plain.get(key) is None for key in SWEEP_KEYS):
            _refuse_missing(common)
            run = SweepRun("", Experiment.from_dict(common), {"seed": plain.get("seed", 0)})
            return cls(name, (run,), (), (), None, plain)
        if common.keys() >= {*REQUIRED}:
            Experiment.from_dict(common)  # also checks what every method replaces
        configurations = tuple(_configurations(plain, common))
        _refuse_missing({key for one in configurations for key in one.resolve()})
        seeds = tuple(_parse_seeds(plain))
        strategy = build_strategy(plain.get("strategy"))
        first = configurations
        if strategy is not None:
            strategy.check(configurations)
            first = tuple(strategy.first_stage(configurations))
        runs = tuple(configuration.run(seed, name) for seed in seeds for configuration in first)
        return cls(name, runs, configurations, seeds, strategy, plain)

    @property
    def is_single_run(self) -> bool:
        """Whether this is a plain experiment, whose run folder is the output folder itself."""
        return self.runs[0].path == ""

    def best_methods(self, found: Found) -> dict[str, Any]:
        """Return a file, as plain data, whose methods are the best configurations of a search.

        If the search evaluates only the last round, that setting is left out, so that the file's
        runs have learning curves.
        """
        plain = {key: value for key, value in self.plain.items() if key not in SWEEP_KEYS}
        evaluation = plain.get("evaluation")
        if isinstance(evaluation, Mapping) and evaluation.get("every") == 0:
            kept = {key: value for key, value in evaluation.items() if key != "every"}
            plain = plain | {"evaluation": kept}
        methods = {
            shorten_folder_name(searched.label.replace("/", ",")) or self.name: best.to_method()
            for searched, best in found
        }
        return plain | {"methods": methods}


def _refuse_missing(given: Collection[str]) -> None:
    refuse_missing_keys(given, REQUIRED, "", partial(BUILDER.describe, Experiment))


def _list_values(values: Any) -> Any:
    """Return seeds, or the values of each field of a grid, as lists; ranges and arrays are allowed.

    >>> _list_values(range(3)), _list_values({"local.lr": np.array([0.5, 1.0])})
    ([0, 1, 2], {'local.lr': [0.5, 1.0]})
    """
    if isinstance(values, Mapping):
        return {
            field: given if isinstance(given, Mapping) else _list_values(given)
            for field, given in values.items()
        }
    is_array = isinstance(values, np.ndarray) and values.ndim == 1
    return values.tolist() if is_array else list(values) if isinstance(values, range) else values


def _to_plain(value: Any) -> Any:
    """Return a value with its objects as plain data, except data given in memory.

    Raises:
        InvalidInputError: plain data cannot describe an object, so that run folders could not
            record what was run.
    """
    if isinstance(value, Mapping) and not is_data(value):
        return {name: _to_plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(inner) for inner in value]
    return value if _holds_data(value) else BUILDER.to_plain(value)


def _holds_data(value: Any) -> bool:
    """Return whether a value, or a part of it, is data or a network given in memory."""
    return any(kind is Kind.DATA or is_network(part) for _, kind, part in visit(value))


def _read(path: Path) -> dict[str, Any]:
    """Return a file merged over its bases."""
    plain = read_yaml(path)
    base = plain.pop("base", None)
    if base is None:
        return plain
    below = _read(path.parent / expand_home(base))
    replaced = [key for key in SWEEP_KEYS if key in plain]
    replaced += ["seeds"] if "seed" in plain else []
    return merge({key: value for key, value in below.items() if key not in replaced}, plain)


def _configurations(plain: Mapping[str, Any], common: Mapping[str, Any]) -> Iterator[Configuration]:
    methods = plain.get("methods")
    named = [("", {})] if methods is None else list(parse_methods(methods))
    combinations = combine_points(plain.get("grid"), plain.get("list"))
    for method, changes in named:
        for points in combinations:
            yield Configuration(method, changes, points, common)


def _parse_seeds(plain: Mapping[str, Any]) -> list[int]:
    seeds = plain.get("seeds")
    if seeds is None:
        return [_parse_seed("seed", plain.get("seed", 0))]
    if isinstance(seeds, list) and seeds:
        found = [_parse_seed("seeds", seed) for seed in seeds]
        if len({*found}) == len(found):
            return found
    raise InvalidInputError("seeds: not a list of distinct numbers; write [1, 2, 3]")


def _parse_seed(field: str, value: Any) -> int:
    """Return a seed as a whole number: 1.0 and "1" name the same folder as 1."""
    seed: int = BUILDER.build(int, value, field)
    require_whole_number(field, seed, 0)
    return seed
