"""What the leaderboard compares: problems, patterns, methods and their tuning, from YAML files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedtide.algorithms import Algorithm
from fedtide.errors import InvalidInputError, did_you_mean, error_prefix
from fedtide.import_paths import is_import_path
from fedtide.leaderboard.problems import CLASSES, PROBLEM_TYPES, LeaderboardProblem
from fedtide.participation import Availability, Schedule, Selection
from fedtide.population import Population
from fedtide.simulation.experiment import BUILDER
from fedtide.simulation.experiment_files import put, read_yaml
from fedtide.spec import hash_code, hash_files
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

    @property
    def schedule(self) -> Schedule:
        """The availability process and the selection.

        Raises:
            InvalidInputError: one that cannot be built.
        """
        process: Availability = BUILDER.build(Availability, self.participation, "participation")
        selection: Selection = BUILDER.build(Selection, self.selection, "selection")
        return Schedule(process, selection)


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
        require_choice("memory", self.memory, Memory)
        require_choice("needs", self.needs, Need)
        lengths = [len(values) for values in self.tune.values()]
        if lengths != [_VALUES]:
            raise InvalidInputError(
                f"tune: it has lists of {lengths} values; give one field with "
                f"{_VALUES} values, so that all methods have equally many trials"
            )
        _require_rising("tune", self.tuned[1])

    @property
    def tuned(self) -> tuple[str, Sequence[float]]:
        """The tuned field and its values."""
        return next(iter(self.tune.items()))

    def lacks(self, pattern: Pattern, clients: int) -> str:
        """Return why the method cannot be used under the pattern; "": it can."""
        if self.needs == "rates" and not _knows_rates(json.dumps(asdict(pattern)), clients):
            return "unknown rates"
        if self.needs in ("period", "complete") and pattern.period is None:
            return "no period"
        if self.needs == "complete" and not pattern.complete:
            return "clients are missing in some periods"
        return ""

    def build(self, pattern: Pattern, lr: float, value: float) -> tuple[Algorithm[Any], float]:
        """Return the algorithm with the value of its tuned field, and its γ.

        Raises:
            InvalidInputError: settings that the algorithm refuses.
        """
        name = self.tuned[0]
        plain: dict[str, Any] = json.loads(json.dumps(self.algorithm))
        if self.needs in ("period", "complete"):
            plain["period"] = pattern.period
        if name != "lr":
            put(plain, name.split("."), value)
        algorithm: Algorithm[Any] = BUILDER.build(Algorithm, plain, "algorithm")
        return algorithm, lr * value if name == "lr" else lr


@cache
def _knows_rates(pattern: str, clients: int) -> bool:
    """Return whether a pattern says with which rates these clients take part."""
    schedule = Pattern(**json.loads(pattern)).schedule
    return schedule.known_rates(_clients(clients), seed=0) is not None


@dataclass(frozen=True)
class Leaderboard:
    """Everything that is compared, and how.

    Args:
        clients: N.
        rounds: T, of every run.
        steps: local steps.
        tuning_seed: the seed with which settings are chosen.
        seeds: of the runs that are judged.
        every: rounds between the evaluations in the last third of a run.
        problems, patterns, methods: by name.
        excluded: registered methods that are not compared, and why.
    """

    clients: int
    rounds: int
    steps: int
    tuning_seed: int
    seeds: Sequence[int]
    every: int
    problems: Mapping[str, LeaderboardProblem]
    patterns: Mapping[str, Pattern]
    methods: Mapping[str, Method]
    excluded: Mapping[str, str]

    def cell(self, problem: str, pattern: str, method: str) -> CellPlan:
        """Return a cell of the table."""
        return CellPlan(
            problem,
            pattern,
            method,
            self.clients,
            self.rounds,
            self.steps,
            self.tuning_seed,
            tuple(self.seeds),
            self.every,
            self.problems[problem],
            _FULL_PATTERN if pattern == FULL else self.patterns[pattern],
            self.methods[method],
        )

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
    ) -> list[CellPlan]:
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
        return [self.cell(problem, *pair) for problem in chosen for pair in usable]


_FULL_PATTERN = Pattern("everybody in every round", "the reference", {"type": "full"})


@dataclass(frozen=True)
class CellPlan:
    """One method on one problem under one pattern, with everything that decides the result."""

    problem: str
    pattern: str
    method: str
    clients: int
    rounds: int
    steps: int
    tuning_seed: int
    seeds: tuple[int, ...]
    every: int
    task: LeaderboardProblem
    participation: Pattern
    tuning: Method

    @property
    def place(self) -> Place:
        """Where the cell is in the table."""
        return self.problem, self.pattern, self.method

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides the result, except the versions of the software."""
        plain = asdict(self)
        for part, names in _WORDS.items():
            for name in names:
                (plain if part == "" else plain[part]).pop(name, None)
        return _hash(plain)

    @property
    def inputs(self) -> str | None:
        """A hash of the files and the user's own code that decide the result; None: there are none.

        The files are hashed as they are now. They are not part of the fingerprint, which can be
        computed without them.
        """
        schedule = self.participation.schedule
        files = hash_files({"participation": schedule, "problem": self.task})
        algorithm, _ = self.tuning.build(self.participation, 1.0, self.tuning.tuned[1][0])
        code = hash_code([schedule, self.task, algorithm])
        return _hash([files, code, type(self.task).__qualname__]) if files or code else None


def _hash(plain: Any) -> str:
    text = json.dumps(plain, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


_WORDS = {
    "": ("problem", "pattern", "method"),
    "task": ("title", "measure", "seconds"),
    "participation": ("title", "source"),
    "tuning": ("memory", "messages", "note"),
}
"""Fields that can be reworded without changing the result."""


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
    for key in _ADDED:
        for name in plain[key]:
            _require_name(key, name)
    kinds = {"patterns": Pattern, "methods": Method}
    built: dict[str, Any] = {
        key: {
            name: BUILDER.build(kind, entry, f"{key}.{name}") for name, entry in plain[key].items()
        }
        for key, kind in kinds.items()
    }
    built["problems"] = {
        name: _problem(entry, f"problems.{name}") for name, entry in plain["problems"].items()
    }
    board = Leaderboard(**{**plain, **built})
    for key, pattern in board.patterns.items():
        with error_prefix(f"patterns.{key}"):
            length = pattern.schedule.start(_clients(board.clients), seed=0).length
            if length is not None and length < board.rounds:
                raise InvalidInputError(
                    f"participation: ends after {length} of {board.rounds} rounds; give a longer "
                    "log, or a process"
                )
        for name, method in board.methods.items():
            if not board.lacks(key, name):
                with error_prefix(f"methods.{name}"):
                    for value in method.tuned[1]:
                        method.build(pattern, 0.1, value)
    return board


def _clients(count: int) -> Population:
    """Return as many clients, each with samples of a single class."""
    return Population(count, class_shares=np.eye(CLASSES)[np.arange(count) % CLASSES])


def _problem(plain: Mapping[str, Any], path: str) -> LeaderboardProblem:
    kind = LeaderboardProblem
    if isinstance(plain, Mapping) and not is_import_path(plain.get("type")):
        name = str(plain.get("type"))
        if name not in PROBLEM_TYPES:
            hint = f"{did_you_mean(name, PROBLEM_TYPES)}, or the import path of your class"
            raise InvalidInputError(f"{path}.type: unknown {name!r}; {hint}")
        kind, plain = PROBLEM_TYPES[name], {k: v for k, v in plain.items() if k != "type"}
    problem: LeaderboardProblem = BUILDER.build(kind, plain, path)
    if len(problem.lr) != _RATES:
        raise InvalidInputError(f"{path}.lr: a list of {len(problem.lr)}; give {_RATES} rates")
    _require_rising(f"{path}.lr", problem.lr)
    return problem


def _require_rising(field_name: str, values: Sequence[float]) -> None:
    """Raise InvalidInputError unless each value is larger than the one before it.

    The second stage of the search tries the neighbours of the best value of the first.
    """
    if not all(one < other for one, other in pairwise(values)):
        raise InvalidInputError(f"{field_name}: {list(values)} do not rise; give rising values")


def _require_name(field_name: str, name: object) -> None:
    """Raise InvalidInputError unless a name fits in a list with commas, a table and a folder."""
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.+-]{0,99}", name):
        raise InvalidInputError(
            f"{field_name}: {name!r:.60} cannot be a name; use letters, digits, -, +, . and _, and "
            "put numbers in quotes"
        )
