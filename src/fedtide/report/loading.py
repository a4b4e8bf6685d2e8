"""Reads runs from their folders, finished or not, and groups them by method."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
from numpy.typing import NDArray
from polars.exceptions import PolarsError

from fedtide.algorithms import Algorithm
from fedtide.errors import InvalidInputError, first_line
from fedtide.metric_direction import lower_is_better
from fedtide.participation.log.client_ids import number_clients
from fedtide.population import Population
from fedtide.simulation.experiment import BUILDER, HOW, Experiment
from fedtide.simulation.experiment_files import flatten, read_yaml
from fedtide.simulation.inputs import Fingerprints
from fedtide.simulation.run_folder import RunFolder, UnreadableFileError, numbered, read_frame
from fedtide.spec import canonical, fields, without_addresses
from fedtide.validation import expand_home

_OWN_TEST_METRIC = re.compile(r"test_(?!(accuracy|loss)$|recall_).+")

_USED = pl.col("stage") == "used"

_SWEEP_FILE = "sweep.yaml"  # what `fedtide run` and `fedtide sweep` write beside their runs

_SEED_OR_EXECUTION = ("seed", *HOW)
"""The fields that may differ between runs of one method."""


@dataclass(frozen=True)
class LoadedRun:
    """A finished run, or one under way that was evaluated at least once.

    Args:
        folder: its folder; for a run in memory, one that does not exist.
        experiment: its resolved experiment, as plain data.
        metrics: one row per evaluation.
        clients: one row per client.
        rounds_per_second: training speed, evaluations excluded; None if the run is under way.
        ended: the number of rounds in its log: fewer than the experiment's if a callback stopped
            the run or it is under way.
        directions: whether lower is better, for the metrics for which the run has recorded it.
        warnings: sentences on what went wrong, such as a diverged loss.
        fingerprints: of the data, files and code that it used; empty if they are not known.
        participation: its participation log; None: it is in the folder.
        is_finished: whether it has finished.
        given: the algorithm of a run in memory; None: `experiment` describes it.
        dimension: d, the number of parameters that are trained; None if it is not recorded.
    """

    folder: RunFolder
    experiment: dict[str, Any]
    metrics: pl.DataFrame
    clients: pl.DataFrame
    rounds_per_second: float | None
    ended: int
    directions: Mapping[str, bool] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    fingerprints: Fingerprints = field(default_factory=dict)
    participation: pl.DataFrame | None = None
    is_finished: bool = True
    given: Algorithm[Any] | None = None
    dimension: int | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that all runs of the same method share, whatever their seeds."""
        kept = {key: v for key, v in self.experiment.items() if key not in _SEED_OR_EXECUTION}
        code_and_files = {**self.fingerprints.get("files", {}), **self.fingerprints.get("code", {})}
        hashes = {"data": self.fingerprints.get("data"), **code_and_files}
        return kept | {"version": {name: value and value[:12] for name, value in hashes.items()}}

    @cached_property
    def identity(self) -> str:
        """A text that is equal for all runs of one method."""
        return canonical(self.fields)

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.experiment["name"])

    @cached_property
    def algorithm(self) -> Algorithm[Any] | None:
        """The algorithm; None if its class, or a library that it needs, is not available here."""
        kind = fields(Experiment)["algorithm"].kind
        with suppress(InvalidInputError):
            return self.given or BUILDER.build(kind, self.experiment["algorithm"], "algorithm")
        return None

    @property
    def update_bytes(self) -> int | None:
        """The bytes that a client exchanges for one update in float32; None if not known.

        Data that a centralised method collects do not count.
        """
        if self.dimension is None or self.algorithm is None or self.algorithm.traits.centralised:
            return None
        return 4 * self.dimension * self.algorithm.traits.message_vectors

    @cached_property
    def population(self) -> Population:
        """The clients, as the method of the run knew them."""
        columns = {n: self.clients[n].to_numpy(writable=True) for n in self.clients.columns}
        names = columns["client"]
        are_ids = np.array_equal(names, np.arange(len(names)))  # these need no look-up
        return Population(
            len(names),
            samples=columns.get("samples"),
            rates=columns.get("rate"),
            names=None if are_ids else names,
            seed=self.experiment["seed"],
        )

    @property
    def weights_tell_influence(self) -> bool:
        """Whether the weights of updates tell how much each client counts; False if unknown."""
        return self.algorithm is not None and not self.algorithm.traits.uses_absent_clients

    def final_value(self, key: str) -> float | None:
        """Return a metric of the last evaluation, or the speed; None if the run lacks it."""
        if key == "rounds_per_second":
            return self.rounds_per_second
        return self.metrics[key][-1] if key in self.metrics.columns else None

    def lower_is_better(self, metric: str) -> bool:
        """Return whether a smaller value of a metric, or of a clients' column, is better."""
        return lower_is_better(metric, self.directions)

    def log(self, *where: pl.Expr) -> pl.DataFrame:
        """Return the participation log; `client` is the client's row in `clients`, not its name.

        Args:
            where: conditions on the rows to return.

        Raises:
            InvalidInputError: a missing or damaged file, or a client that is not in `clients`.
        """
        with _reading(self.folder.participation):
            log = self._scan_log().filter(*where).collect()
        rows = number_clients(str(self.folder.participation), log["client"], self.population)
        return log.with_columns(client=rows)

    def used_rows(self) -> pl.DataFrame:
        """Return the rows of the participation log of clients whose updates were used."""
        return self.log(_USED)

    @cached_property
    def cohort_sizes(self) -> NDArray[np.int64]:
        """The number of clients used in each round, shape (T,)."""
        with _reading(self.folder.participation):
            rounds = self._scan_log().filter(_USED).group_by("round").len().collect()
        counted = np.bincount(rounds["round"], rounds["len"], minlength=self.ended)
        return counted.astype(np.int64)

    def _scan_log(self) -> pl.LazyFrame:
        """Return the participation log as it was written."""
        if self.participation is not None:
            return self.participation.lazy()
        return pl.scan_parquet(self.folder.participation, glob=False)


def own_test_metrics(names: Iterable[str]) -> list[str]:
    """Return the problem's own test metrics, or the test loss if there is no other test metric.

    Recalls of single classes are left out.

    >>> own_test_metrics(["loss", "test_loss", "test_mae"]), own_test_metrics(["loss", "test_loss"])
    (['test_mae'], ['test_loss'])
    """
    names = list(dict.fromkeys(names))
    own = [name for name in names if _OWN_TEST_METRIC.fullmatch(name)]
    has_other = own or "test_accuracy" in names or "test_loss" not in names
    return own if has_other else ["test_loss"]


Groups = Mapping[str, Sequence[LoadedRun]]
"""The runs of each method, one per seed."""


@dataclass(frozen=True)
class OmittedRun:
    """A run that is not shown: it failed, has not ended, cannot be read, or repeats another.

    Args:
        folder: its folder.
        experiment: its resolved experiment, as plain data; empty if it cannot be read.
        state: "failed", "unfinished", "damaged" or "repeated".
        ended: the number of rounds covered by its last checkpoint.
        message: why it failed, what is damaged, or which run it repeats.
    """

    folder: RunFolder
    experiment: dict[str, Any]
    state: str
    ended: int
    message: str


def load_runs(folders: Iterable[str | Path]) -> list[LoadedRun]:
    """Return the runs in and below these folders that `find_runs` shows; others are skipped.

    Raises:
        InvalidInputError: a folder without a run, a damaged run, or no run to show.
    """
    shown, omitted = find_runs(folders)
    for run in omitted:
        if run.state == "damaged" or not shown:
            message = run.message or "the run has not ended; continue it with --resume"
            raise InvalidInputError(f"{run.folder.path}: {message}")
    return shown


def find_runs(folders: Iterable[str | Path]) -> tuple[list[LoadedRun], list[OmittedRun]]:
    """Return the runs to show and the others; each folder counts once.

    Methods are in the order of the folders, those of a sweep in the order of its file; the runs of
    a method are ordered by seed. All finished runs are shown; runs under way only if their method
    has no finished run, because a mean over seeds must not mix the two.

    Raises:
        InvalidInputError: a folder that is missing or holds no run.
    """
    paths = dict.fromkeys(path.resolve() for f in folders for path in _run_folders(expand_home(f)))
    found = [_load(_relative(path)) for path in paths]
    loaded = [run for run in found if isinstance(run, LoadedRun)]
    finished = {run.identity for run in loaded if run.is_finished}
    shown = [run for run in loaded if run.is_finished or run.identity not in finished]
    hidden = [
        OmittedRun(run.folder, run.experiment, "unfinished", run.ended, "")
        for run in loaded
        if not run.is_finished and run.identity in finished
    ]
    omitted = [run for run in found if isinstance(run, OmittedRun)]
    place = {method: i for i, method in enumerate(dict.fromkeys(run.identity for run in shown))}
    shown.sort(key=lambda run: (place[run.identity], int(run.experiment["seed"])))
    return shown, omitted + hidden


def find_repeats(runs: Iterable[LoadedRun]) -> list[OmittedRun]:
    """Return the runs that repeat the experiment and the seed of an earlier one."""
    first: dict[tuple[str, int], LoadedRun] = {}
    repeats = []
    for run in runs:
        shown = first.setdefault((run.identity, run.experiment["seed"]), run)
        if shown is not run:
            message = f"has the experiment and seed of {shown.folder.path}"
            repeated = OmittedRun(run.folder, run.experiment, "repeated", run.ended, message)
            repeats.append(repeated)
    return repeats


def _run_folders(folder: Path) -> list[Path]:
    """Return the run folders in and below a folder, including any that lack their experiment."""
    found = set[Path]()
    with suppress(OSError):  # the path is too long
        found = {path.parent for path in folder.glob("**/experiment.yaml")}
        logs = (path.parent for path in folder.glob("**/participation.parquet"))
        found |= {path for path in logs if RunFolder(path).metrics.exists()}
    if not found:
        raise InvalidInputError(f"{folder}: holds no run; give the folder that `fedtide run` wrote")
    return _in_file_order(folder, found)


def _in_file_order(top: Path, runs: Iterable[Path]) -> list[Path]:
    """Return the run folders below `top` sorted, with a sweep's methods in the order of its file.

    A sweep's folder has one folder for each of its methods.
    """

    @cache
    def methods(folder: Path) -> list[str]:
        with suppress(InvalidInputError, LookupError, TypeError):  # no sweep, or without methods
            return [*map(str, read_yaml(folder / _SWEEP_FILE)["methods"])]
        return []

    def place(run: Path) -> list[tuple[int, str]]:
        names = run.relative_to(top).parts
        known = [methods(top.joinpath(*names[:depth])) for depth in range(len(names))]
        return [
            (order.index(name) if name in order else len(order), name)
            for name, order in zip(names, known, strict=True)
        ]

    return sorted(runs, key=place)


def _relative(path: Path) -> Path:
    """Return the path relative to the working directory if it is below that."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _load(path: Path) -> LoadedRun | OmittedRun:
    folder, experiment = RunFolder(path), {}
    try:
        with _reading(folder.experiment):
            experiment = read_yaml(folder.experiment)
        if not folder.finished:
            with suppress(OSError, ValueError, PolarsError):  # it may finish at this moment
                if run := _load_under_way(folder, experiment):
                    return run
        return (
            _load_finished(folder, experiment)
            if folder.finished
            else _load_incomplete(folder, experiment)
        )
    except _DamagedError as error:
        return OmittedRun(folder, experiment, "damaged", 0, str(error))


_EXPERIMENT_KEYS = ("name", "seed", "rounds", "problem", "algorithm")
_METRICS_COLUMNS = ("round",)
_CLIENTS_COLUMNS = ("client", "participation", "weight")
_LOG_COLUMNS = ("round", "client", "stage", "weight")


def _load_finished(folder: RunFolder, experiment: dict[str, Any]) -> LoadedRun:
    with _reading(folder.experiment):
        _require(experiment, _EXPERIMENT_KEYS)
    with _reading(folder.summary):
        summary = folder.read_json(folder.summary, ["rounds"])
        rounds, names = int(summary["rounds"]), summary.get("lower_is_better")
        warnings = tuple(map(str, summary.get("warnings", ())))
        dimension = summary.get("parameters")
        dimension = None if dimension is None else int(dimension)
    with _reading(folder.metrics):
        metrics = read_frame(folder.metrics)
        _require(metrics.columns, _METRICS_COLUMNS)
        if len(metrics) == 0 or metrics["round"][-1] != rounds:
            raise ValueError(f"it does not end at round {rounds}")
    with _reading(folder.clients):
        clients = read_frame(folder.clients)
        _require(clients.columns, _CLIENTS_COLUMNS)
    metric_names = [*metrics.columns, *clients.columns]
    directions = {} if names is None else {name: name in names for name in metric_names}
    with _reading(folder.participation):
        _require(pq.read_schema(folder.participation).names, _LOG_COLUMNS)
    with _reading(folder.timings):
        timings = folder.read_json(folder.timings, ["rounds_per_second"])
        speed = float(timings["rounds_per_second"])
    with _reading(folder.fingerprints):
        prints = folder.read_json(folder.fingerprints) if folder.fingerprints.exists() else {}
    return LoadedRun(
        folder,
        experiment,
        metrics,
        clients,
        speed,
        rounds,
        directions,
        warnings,
        prints,
        dimension=dimension,
    )


class _DamagedError(InvalidInputError):
    """A file of a run is missing or damaged."""


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Turn any error from reading a file into a _DamagedError that names the file.

    Raises:
        _DamagedError: reading the file fails in any way.
    """
    hint = "restore it, or run the experiment again in another folder"
    try:
        yield
    except (OSError, LookupError, TypeError, ValueError, AttributeError, PolarsError) as error:
        if not file.exists():
            raise _DamagedError(f"{file.name} is missing; {hint}") from None
        reason = error.reason if isinstance(error, UnreadableFileError) else first_line(error, 80)
        raise _DamagedError(f"{file.name} is damaged ({reason}); {hint}") from None


def _require(found: Iterable[str], names: Iterable[str]) -> None:
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"without {', '.join(missing)}")


def _load_under_way(folder: RunFolder, experiment: dict[str, Any]) -> LoadedRun | None:
    """Return a run that has not ended; None if it failed or has no evaluation or log yet."""
    metrics, parts = folder.read_metrics(), folder.read_log()
    if folder.failure.exists() or metrics.is_empty() or not parts or not folder.clients.exists():
        return None
    ended, clients = _last_saved_round(folder), read_frame(folder.clients)
    log = pl.concat(parts).filter(pl.col("round") < ended)
    prints = folder.read_json(folder.fingerprints) if folder.fingerprints.exists() else {}
    return LoadedRun(
        folder,
        experiment,
        metrics,
        clients,
        None,
        ended,
        fingerprints=prints,
        participation=log,
        is_finished=False,
    )


def _last_saved_round(folder: RunFolder) -> int:
    checkpoints = numbered(folder.checkpoints, "safetensors")
    return int(checkpoints[-1].stem) if checkpoints else 0


def _load_incomplete(folder: RunFolder, experiment: dict[str, Any]) -> OmittedRun:
    ended = _last_saved_round(folder)
    with _reading(folder.failure):
        failure = folder.read_failure()
    if failure is None:
        return OmittedRun(folder, experiment, "unfinished", ended, "")
    return OmittedRun(folder, experiment, "failed", ended, failure.sentence)


def group_by_method(runs: Iterable[LoadedRun]) -> dict[str, list[LoadedRun]]:
    """Return the runs of each method, one per seed, in the order in which the methods appear.

    Runs belong to one method if they differ only in the seed and in how they were executed, and
    used the same data and code. Methods with the same name are told apart by the fields in which
    they differ. The name of a method whose runs are under way says how far they have got.
    """
    groups: dict[str, dict[int, LoadedRun]] = {}
    for run in runs:
        groups.setdefault(run.identity, {}).setdefault(run.experiment["seed"], run)
    distinct = [list(group.values()) for group in groups.values()]
    labels = _labels([group[0] for group in distinct])
    labels = [label + _how_far(group) for label, group in zip(labels, distinct, strict=True)]
    return dict(zip(labels, distinct, strict=True))


def split_by_problem(runs: Iterable[LoadedRun]) -> list[tuple[str, list[LoadedRun]]]:
    """Return the runs of each problem with its name, in the order in which they appear.

    Losses and accuracies of different problems, or objectives, are not comparable.
    """
    groups: dict[str, list[LoadedRun]] = {}
    for run in runs:
        key = canonical(_describe_problem(run))
        groups.setdefault(key, []).append(run)
    names = _name_problems([_describe_problem(group[0]) for group in groups.values()])
    return list(zip(names, groups.values(), strict=True))


def _describe_problem(run: LoadedRun) -> dict[str, Any]:
    """Return the problem and its objective as plain data.

    What these cannot describe is represented by its name: it may differ only because it was
    created again for each run.
    """
    problem = json.loads(without_addresses(json.dumps(run.experiment["problem"], default=str)))
    if not isinstance(problem, Mapping):
        problem = {"type": problem}
    return {"problem": problem, "objective": run.experiment.get("objective")}


def _name_problems(problems: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return each problem's data set or type, with up to four fields in which they differ."""
    flat = flatten_alike(problems)
    kind = ("problem.dataset", "problem.type")
    fields = [field for field in differing_fields(flat) if field not in kind][:4]
    shown = {f: abbreviate([str(one.get(f)) for one in flat], 30) for f in fields}
    names = []
    for i, one in enumerate(flat):
        details = [f"{f.removeprefix('problem.')} {shown[f][i]}" for f in fields if f in one]
        name = one.get("problem.dataset") or one["problem.type"]
        names.append(", ".join([str(name), *details]))
    return names


def _how_far(group: Sequence[LoadedRun]) -> str:
    """Return the last evaluated round of the slowest run if runs are under way."""
    rounds = [int(run.metrics["round"][-1]) for run in group if not run.is_finished]
    return f" (round {min(rounds):,} of {group[0].experiment['rounds']:,})" if rounds else ""


_MAX_VALUE_LENGTH = 60  # characters of a value in a method's label
_MAX_FIELDS = 3  # in a method's label


def _labels(runs: Sequence[LoadedRun]) -> list[str]:
    """Return a distinct name for each run: equal names get the fields in which they differ."""
    same: dict[str, list[LoadedRun]] = {}
    for run in runs:
        same.setdefault(run.method, []).append(run)
    details = {name: iter(_differences(group)) for name, group in same.items()}
    labels = [
        f"{run.method} ({next(details[run.method])})" if len(same[run.method]) > 1 else run.method
        for run in runs
    ]
    repeated = {label for label in labels if labels.count(label) > 1}
    return [
        f"{label} in {run.folder.path}" if label in repeated else label
        for run, label in zip(runs, labels, strict=True)
    ]


def _differences(runs: Sequence[LoadedRun]) -> list[str]:
    """Return for each run its values of the fields in which the runs differ, shortened."""
    flat = flatten_alike([run.fields for run in runs])
    fields = differing_fields(flat)
    values = {
        name: abbreviate([str(one.get(name, "none")) for one in flat], _MAX_VALUE_LENGTH)
        for name in fields[:_MAX_FIELDS]
    }
    more = f", and {len(fields) - _MAX_FIELDS} more" if len(fields) > _MAX_FIELDS else ""
    return [
        ", ".join(f"{name}={shown[i]}" for name, shown in values.items()) + more
        for i in range(len(runs))
    ]


def abbreviate(values: Sequence[str], most: int) -> list[str]:
    """Shorten texts to about `most` characters each, cutting where they do not differ.

    >>> abbreviate(["aaaaaaaaab", "aaaaaaaaac", "a"], 6)
    ['…aab', '…aac', 'a']
    """
    cut = [value if len(value) <= most else f"{value[: most - 1]}…" for value in values]
    if len(set(cut)) == len(set(values)):
        return cut
    long = list(dict.fromkeys(value for value in values if len(value) > most))
    first = max((_common_length(*pair) for pair in combinations(long, 2)), default=0)
    begin = max(0, first - most // 2 + 1)
    return [
        value if len(value) <= most else f"…{value[begin : begin + most - 2]}" for value in values
    ]


def _common_length(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def differing_fields(flat: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields whose values are not the same in all mappings."""
    fields = dict.fromkeys(field for one in flat for field in one)
    return [field for field in fields if len({str(one.get(field)) for one in flat}) > 1]


def flatten_alike(
    plains: Sequence[Mapping[str, Any]], without: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the dotted names and values of each mapping's fields; `without` names keys to skip.

    A mapping stays whole if another one has something other than a mapping in its place.

    >>> flatten_alike([{"rates": 0.1, "seed": 3}, {"rates": {"north": 0.1}}], without=["seed"])
    [{'rates': 0.1}, {'rates': {'north': 0.1}}]
    >>> flatten_alike([{"local": {"lr": 0.1}}])
    [{'local.lr': 0.1}]
    """
    kept = [{key: plain[key] for key in plain if key not in without} for plain in plains]
    whole = {name for plain in kept for name, _ in flatten(plain)}
    return [dict(flatten(plain, whole)) for plain in kept]
