"""What the leaderboard compares: problems, patterns, methods and their tuning, from YAML files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedtide.errors import InvalidInputError
from fedtide.leaderboard.problems import CLASSES
from fedtide.participation import Availability, Schedule, Selection
from fedtide.population import Population
from fedtide.simulation.experiment import BUILDER, Experiment
from fedtide.simulation.experiment_files import put, read_yaml
from fedtide.simulation.inputs import fingerprint_experiment
from fedtide.validation import require_choice

FULL = "full"
"""The pattern of the reference, in which every client takes part in every round."""

REFERENCE = "fedavg"
"""The method that is trained under full participation."""

_FILE = Path(__file__).with_name("leaderboard.yaml")
_ADDED = ("problems", "patterns", "methods")  # what further files may hold
_RATES, _VALUES = 9, 5  # tuned values of γ and of the further number

Place = tuple[str, str, str]
"""The names of the problem, the pattern and the method of a cell."""

Memory = Literal["d", "N", "Nd"]
Need = Literal["", "rates", "period", "complete"]


@dataclass(frozen=True)
class Task:
    """A problem of the leaderboard.

    Args:
        title: its name in tables.
        measure: what is compared, lower is better, and its unit.
        lr: the nine local rates γ, in rising order.
        seconds: roughly how long a cell takes on one core, used until some are recorded.
        problem: as in an experiment file.
        tuned_on: the metric by which settings are chosen; lower is better.
        judged_on: the metric that is compared; lower is better.
        local, dtype: as in an experiment file, without steps and lr.
    """

    title: str
    measure: str
    lr: Sequence[float]
    seconds: float
    problem: Mapping[str, Any]
    tuned_on: str
    judged_on: str
    local: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"

    def __post_init__(self) -> None:
        _require_rising("lr", self.lr, _RATES)


@dataclass(frozen=True)
class Pattern:
    """A pattern of participation.

    Args:
        title: what it is, in words.
        source: where it is from.
        participation, selection: as in an experiment file.
        period: over which participation is even, in rounds, if there is one.
        complete: whether every client takes part in every period.
    """

    title: str
    source: str
    participation: Mapping[str, Any]
    selection: Mapping[str, Any] = field(default_factory=lambda: {"type": "all"})
    period: int | None = None
    complete: bool = False


@dataclass(frozen=True)
class Method:
    """A method and how it is tuned.

    Args:
        algorithm: as in an experiment file, without the tuned number.
        tune: the tuned number besides γ: a dotted field of the algorithm and its five values in
            rising order; the field `lr` multiplies γ.
        memory: what the server keeps: "d", some models; "N", also some numbers for each client;
            "Nd", also a model for each client.
        messages: how many models a client that trains sends and receives in a round.
        needs: what a pattern must offer: known "rates", a "period", or a "complete" period.
        note: a remark for the table.
    """

    algorithm: Mapping[str, Any]
    tune: Mapping[str, Sequence[float]]
    memory: Memory
    messages: Sequence[int] = (1, 1)
    needs: Need = ""
    note: str = ""

    def __post_init__(self) -> None:
        if len(self.tune) != 1:
            raise InvalidInputError(
                "tune: give one field, so that all methods have equally many trials"
            )
        _require_rising("tune", self.tuned[1], _VALUES)

    @property
    def tuned(self) -> tuple[str, Sequence[float]]:
        """The tuned field and its values."""
        return next(iter(self.tune.items()))

    def lacks(self, pattern: Pattern, clients: int) -> str:
        """Return why the method cannot be used under the pattern; "": it can."""
        how = json.dumps([pattern.participation, pattern.selection])
        if self.needs == "rates" and not _knows_rates(how, clients):
            return "unknown rates"
        if self.needs in ("period", "complete") and pattern.period is None:
            return "no period"
        if self.needs == "complete" and not pattern.complete:
            return "clients are missing in some periods"
        return ""


def _require_rising(field_name: str, values: Sequence[float], count: int) -> None:
    """Raise InvalidInputError unless there are so many values, each larger than the one before.

    The second stage of the search tries the neighbours of the best value of the first.
    """
    if len(values) != count or not all(one < other for one, other in pairwise(values)):
        raise InvalidInputError(f"{field_name}: {list(values)}; give {count} rising values")


@cache
def _knows_rates(pattern: str, clients: int) -> bool:
    """Return whether a pattern says with which rates clients take part."""
    participation, selection = json.loads(pattern)
    process: Availability = BUILDER.build(Availability, participation, "participation")
    chosen: Selection = BUILDER.build(Selection, selection, "selection")
    shares = np.eye(CLASSES)[np.arange(clients) % CLASSES]  # each with samples of a single class
    population = Population(clients, class_shares=shares)
    return Schedule(process, chosen).known_rates(population, seed=0) is not None


@dataclass(frozen=True)
class Leaderboard:
    """Everything that is compared, and how.

    Args:
        clients: N, of all problems.
        rounds: T, of every run.
        steps: local steps.
        tuning_seed: the seed with which settings are chosen.
        seeds: of the runs that are judged.
        every: rounds between evaluations; those in the last third of a run are averaged.
        problems, patterns, methods: by name.
        excluded: registered methods that are not compared, and why.
    """

    clients: int
    rounds: int
    steps: int
    tuning_seed: int
    seeds: Sequence[int]
    every: int
    problems: Mapping[str, Task]
    patterns: Mapping[str, Pattern]
    methods: Mapping[str, Method]
    excluded: Mapping[str, str] = field(default_factory=dict)

    def lacks(self, pattern: str, method: str) -> str:
        """Return why the method cannot be used under the pattern; "": it can."""
        return self.methods[method].lacks(self.patterns[pattern], self.clients)

    def restrict(
        self,
        problems: Iterable[str] | None,
        patterns: Iterable[str] | None,
        methods: Iterable[str] | None,
    ) -> Leaderboard:
        """Return the leaderboard of these problems, patterns and methods, and of the reference.

        Raises:
            InvalidInputError: an unknown problem, pattern or method, or none of them.
        """
        shown = None if methods is None else [REFERENCE, *_select("methods", methods, self.methods)]
        return replace(
            self,
            problems=_select("problems", problems, self.problems),
            patterns=_select("patterns", patterns, self.patterns),
            methods=_select("methods", shown, self.methods),
            excluded=self.excluded if methods is None else {},
        )

    def cells(
        self,
        problems: Iterable[str] | None = None,
        patterns: Iterable[str] | None = None,
        methods: Iterable[str] | None = None,
    ) -> list[Cell]:
        """Return the cells that apply, problem by problem and pattern by pattern.

        The reference of each problem comes first, whatever the filters.

        Raises:
            InvalidInputError: an unknown problem, pattern or method, or none of them.
        """
        chosen = _select("problems", problems, self.problems)
        pairs = product(
            _select("patterns", patterns, self.patterns), _select("methods", methods, self.methods)
        )
        usable = [(FULL, REFERENCE), *(pair for pair in pairs if not self.lacks(*pair))]
        return [Cell(self, problem, *pair) for problem in chosen for pair in usable]


def _select(
    field_name: str, wanted: Iterable[str] | None, options: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the options with these names, in their own order; all for None."""
    if wanted is None:
        return options
    names = list(wanted)
    if not names:
        raise InvalidInputError(f"{field_name}: no name; choose some of {', '.join(options)}")
    for name in names:
        require_choice(field_name, name, options)
    return {name: option for name, option in options.items() if name in names}


_FULL_PATTERN = Pattern("everybody in every round", "the reference", {"type": "full"})


@dataclass(frozen=True)
class Cell:
    """One method on one problem under one pattern.

    Args:
        board: the leaderboard.
        problem, pattern, method: names.
    """

    board: Leaderboard
    problem: str
    pattern: str
    method: str

    @property
    def place(self) -> Place:
        """Where the cell is in the table."""
        return self.problem, self.pattern, self.method

    @property
    def task(self) -> Task:
        """The problem."""
        return self.board.problems[self.problem]

    @property
    def tuned(self) -> tuple[str, Sequence[float]]:
        """The tuned field besides γ and its values."""
        return self.board.methods[self.method].tuned

    def experiment(self, lr: float, value: float, seed: int) -> dict[str, Any]:
        """Return a run with these tuned numbers, as plain data of an experiment."""
        board, task, method = self.board, self.task, self.board.methods[self.method]
        pattern = _FULL_PATTERN if self.pattern == FULL else board.patterns[self.pattern]
        algorithm: dict[str, Any] = json.loads(json.dumps(method.algorithm))
        if method.needs in ("period", "complete"):
            algorithm["period"] = pattern.period
        if self.tuned[0] == "lr":
            lr *= value
        else:
            put(algorithm, self.tuned[0].split("."), value)
        return {
            "name": "/".join(self.place),
            "problem": task.problem,
            "participation": pattern.participation,
            "selection": pattern.selection,
            "algorithm": algorithm,
            "local": {"steps": board.steps, "lr": lr, **task.local},
            "rounds": board.rounds,
            "seed": seed,
            "evaluation": {"every": board.every, "clients": False},
            "dtype": task.dtype,
            "trainer": "stacked",
        }

    @property
    def fingerprint(self) -> str:
        """A hash of all settings that decide the result, except the versions of the software."""
        first = self.experiment(self.task.lr[0], self.tuned[1][0], self.board.tuning_seed)
        metrics = [self.task.tuned_on, self.task.judged_on]
        return _hash(
            [first | {"name": None}, list(self.board.seeds), self.task.lr, self.tuned, metrics]
        )

    @property
    def inputs(self) -> str | None:
        """A hash of the files and the user's own code that decide the result; None: there are none.

        They are hashed as they are now. They are not part of the fingerprint, which can be computed
        without them.
        """
        plain = self.experiment(self.task.lr[0], self.tuned[1][0], self.board.tuning_seed)
        prints = fingerprint_experiment(Experiment.from_dict(plain))
        files, code = prints["files"], prints["code"]
        return _hash([files, code]) if files or code else None


def _hash(plain: Any) -> str:
    text = json.dumps(plain, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def load_leaderboard(additions: Iterable[Path] = ()) -> Leaderboard:
    """Return the leaderboard, with the problems, patterns and methods of further files.

    A further file has some of the keys `problems`, `patterns` and `methods`, written as in
    leaderboard.yaml.

    Raises:
        InvalidInputError: a file that cannot be read or used, or a name that is taken.
    """
    plain = read_yaml(_FILE)
    for file in additions:
        added = read_yaml(file, "write `problems:`, `patterns:` or `methods:`")
        for key, entries in added.items():
            if key not in _ADDED or not isinstance(entries, Mapping):
                raise InvalidInputError(
                    f"add: {file} has {key!r}; give mappings under {', '.join(_ADDED)}"
                )
            for name in entries:
                if name in plain[key] or name == FULL:
                    raise InvalidInputError(f"add: {name!r} is taken; choose another name")
            plain[key] |= entries
    return parse_leaderboard(plain)


def parse_leaderboard(plain: Mapping[str, Any]) -> Leaderboard:
    """Return the leaderboard that the plain data of a file describe.

    Raises:
        InvalidInputError: an entry that cannot be used.
    """
    kinds: dict[str, type] = {"problems": Task, "patterns": Pattern, "methods": Method}
    built = {
        key: {
            name: BUILDER.build(kind, entry, f"{key}.{name}") for name, entry in plain[key].items()
        }
        for key, kind in kinds.items()
    }
    return Leaderboard(**{**plain, **built})
