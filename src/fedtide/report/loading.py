"""Reads runs from their folders, finished or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
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
from fedtide.simulation.experiment_files import read_yaml
from fedtide.simulation.inputs import Fingerprints
from fedtide.simulation.run_folder import RunFolder, UnreadableFileError, numbered, read_frame
from fedtide.simulation.run_labels import list_fields
from fedtide.spec import canonical, fields
from fedtide.validation import expand_home

_USED = pl.col("stage") == "used"

_SWEEP_FILE = "sweep.yaml"  # what `fedtide run` and `fedtide sweep` write beside their runs


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
        name: what the user calls its method; empty: its label says what it is.
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
    name: str = ""

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The dotted fields, and their values, that runs share which differ only in the seed."""
        kept = {k: v for k, v in self.experiment.items() if k not in ("name", "seed", *HOW)}
        code_and_files = {**self.fingerprints.get("files", {}), **self.fingerprints.get("code", {})}
        hashes = {"data": self.fingerprints.get("data"), **code_and_files}
        version = {name: value[:12] for name, value in hashes.items() if value}
        return list_fields(kept | {"version": version})

    @cached_property
    def identity(self) -> str:
        """A text that is equal for runs that differ only in the seed."""
        return canonical([self.name, self.fields])

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
    pairs = [(run, first.setdefault((run.identity, run.experiment["seed"]), run)) for run in runs]
    text = "has the experiment and seed of {}"
    return [
        OmittedRun(r.folder, r.experiment, "repeated", r.ended, text.format(shown.folder.path))
        for r, shown in pairs
        if shown is not r
    ]


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
        experiment = _read(folder.experiment, read_yaml)
        with suppress(OSError, ValueError, PolarsError):  # it may finish at this moment
            if not folder.finished and (run := _load_under_way(folder, experiment)):
                return run
        if folder.finished:
            return _load_finished(folder, experiment)
        failure = _read(folder.failure, lambda _: folder.read_failure(), optional=True)
    except _DamagedError as error:
        return OmittedRun(folder, experiment, "damaged", 0, str(error))
    state, message = ("unfinished", "") if failure is None else ("failed", failure.sentence)
    return OmittedRun(folder, experiment, state, _last_saved_round(folder), message)


_EXPERIMENT_KEYS = ("name", "seed", "rounds", "problem", "algorithm")


def _load_finished(folder: RunFolder, experiment: dict[str, Any]) -> LoadedRun:
    _read(folder.experiment, lambda _: experiment, _EXPERIMENT_KEYS)

    load_json = folder.read_json
    summary = _read(folder.summary, load_json, ["rounds"])
    timings = _read(folder.timings, load_json, ["rounds_per_second"])
    metrics = _read(folder.metrics, read_frame, ["round"])
    clients = _read(folder.clients, read_frame, ["client", "participation", "weight"])
    _read(
        folder.participation,
        lambda file: pq.read_schema(file).names,
        ["round", "client", "stage", "weight"],
    )
    with _reading(folder.metrics):
        if metrics["round"].max() != summary["rounds"]:
            raise ValueError(f"it does not end at round {summary['rounds']}")
    names = summary.get("lower_is_better")
    known = [] if names is None else [*metrics.columns, *clients.columns]
    return LoadedRun(
        folder,
        experiment,
        metrics,
        clients,
        float(timings["rounds_per_second"]),
        int(summary["rounds"]),
        directions={name: name in names for name in known},
        warnings=tuple(map(str, summary.get("warnings", ()))),
        fingerprints=_read(folder.fingerprints, load_json, optional=True) or {},
        dimension=summary.get("parameters"),
    )


def _load_under_way(folder: RunFolder, experiment: dict[str, Any]) -> LoadedRun | None:
    """Return a run that has not ended; None if it failed or has no evaluation or log yet."""
    metrics, parts = folder.read_metrics(), folder.read_log()
    if folder.failure.exists() or metrics.is_empty() or not parts or not folder.clients.exists():
        return None
    ended = _last_saved_round(folder)
    return LoadedRun(
        folder,
        experiment,
        metrics,
        read_frame(folder.clients),
        None,
        ended,
        fingerprints=_read(folder.fingerprints, folder.read_json, optional=True) or {},
        participation=pl.concat(parts).filter(pl.col("round") < ended),
        is_finished=False,
    )


def _last_saved_round(folder: RunFolder) -> int:
    checkpoints = numbered(folder.checkpoints, "safetensors")
    return int(checkpoints[-1].stem) if checkpoints else 0


class _DamagedError(InvalidInputError):
    """A file of a run is missing or damaged."""


def _read(
    file: Path, read: Callable[[Path], Any], needed: Iterable[str] = (), optional: bool = False
) -> Any:
    """Return what `read` makes of a file, which has these names in it; None if it may be missing.

    Raises:
        _DamagedError: reading the file fails in any way.
    """
    if optional and not file.exists():
        return None
    with _reading(file):
        found = read(file)
        names = found.columns if isinstance(found, pl.DataFrame) else found
        if missing := [name for name in needed if name not in names]:
            raise ValueError(f"without {', '.join(missing)}")
        return found


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Turn any error from reading a file into a _DamagedError that names the file."""
    hint = "restore it, or run the experiment again in another folder"
    try:
        yield
    except (OSError, LookupError, TypeError, ValueError, AttributeError, PolarsError) as error:
        if not file.exists():
            raise _DamagedError(f"{file.name} is missing; {hint}") from None
        reason = error.reason if isinstance(error, UnreadableFileError) else first_line(error, 80)
        raise _DamagedError(f"{file.name} is damaged ({reason}); {hint}") from None
