"""Reads runs from their folders, finished or not, and groups them by method."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError
from fedtide.participation.log.client_ids import number_clients
from fedtide.population import Population
from fedtide.simulation.experiment import HOW, read_yaml
from fedtide.simulation.fingerprints import Fingerprints
from fedtide.simulation.run_folder import RunFolder, numbered

_SEED_OR_EXECUTION = ("seed", *HOW)
"""The fields that may differ between runs of one method."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, or one under way that was evaluated at least once.

    Args:
        folder: its folder; of a run in memory, one that does not exist.
        experiment: its resolved experiment, as plain data.
        metrics: one row per evaluation.
        clients: one row per client.
        rounds_per_second: training speed, evaluations excluded; None under way.
        ended: the number of rounds in its log: fewer than the experiment's if a callback stopped
            the run, or under way.
        fingerprints: of the data, files and code that it used; empty if they are not known.
        participation: its participation log; None: in its folder.
        is_finished: whether it has finished.
    """

    folder: RunFolder
    experiment: dict[str, Any]
    metrics: pl.DataFrame
    clients: pl.DataFrame
    rounds_per_second: float | None
    ended: int
    fingerprints: Fingerprints = field(default_factory=dict)
    participation: pl.DataFrame | None = None
    is_finished: bool = True

    @property
    def fields(self) -> dict[str, Any]:
        """What the run has in common with the runs of the same method under other seeds."""
        kept = {key: v for key, v in self.experiment.items() if key not in _SEED_OR_EXECUTION}
        code_and_files = {**self.fingerprints.get("files", {}), **self.fingerprints.get("code", {})}
        hashes = {"data": self.fingerprints.get("data"), **code_and_files}
        return kept | {"version": {name: value and value[:12] for name, value in hashes.items()}}

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.experiment["name"])

    def final_value(self, key: str) -> float | None:
        """Return a metric of the last evaluation, or the speed; None if the run lacks it."""
        if key == "rounds_per_second":
            return self.rounds_per_second
        return self.metrics[key][-1] if key in self.metrics.columns else None

    def log(self) -> pl.DataFrame:
        """Return the participation log; `client` is the client's row in `clients`, not its name.

        Raises:
            InvalidInputError: a client that is not in `clients`.
        """
        log = self.participation
        if log is None:
            log = pl.read_parquet(self.folder.participation)
        population = Population(len(self.clients), names=self.clients["client"].to_numpy())
        rows = number_clients(str(self.folder.participation), log["client"], population)
        return log.with_columns(client=rows)

    def used_rows(self) -> pl.DataFrame:
        """Return the rows of the participation log of clients whose updates were used."""
        return self.log().filter(pl.col("stage") == "used")

    def cohort_sizes(self) -> NDArray[np.int64]:
        """Return the number of clients used in each round, shape (T,)."""
        rounds = self.used_rows()["round"].to_numpy()
        return np.bincount(rounds, minlength=self.ended)


Groups = Mapping[str, Sequence[FinishedRun]]
"""The runs of each method, one per seed."""


@dataclass(frozen=True)
class IncompleteRun:
    """A run that failed, or has not ended yet and is not shown.

    Args:
        folder: its folder.
        experiment: its resolved experiment, as plain data.
        state: "failed" or "unfinished".
        ended: the number of rounds covered by its last checkpoint.
        message: why it failed.
    """

    folder: RunFolder
    experiment: dict[str, Any]
    state: str
    ended: int
    message: str


def load_runs(folders: Iterable[str | Path]) -> list[FinishedRun]:
    """Return the runs in and below these folders that `find_runs` shows; others are skipped.

    Raises:
        InvalidInputError: a folder without a run, or no run to show.
    """
    shown, incomplete = find_runs(folders)
    if not shown:
        run = incomplete[0]
        message = run.message or "the run has not ended; continue it with --resume"
        raise InvalidInputError(f"{run.folder.path}: {message}")
    return shown


def find_runs(folders: Iterable[str | Path]) -> tuple[list[FinishedRun], list[IncompleteRun]]:
    """Return the runs to show, ordered by seed, and the others; each folder counts once.

    Shown are the finished runs, and those under way whose method has no finished run: a mean over
    seeds must not mix the two.

    Raises:
        InvalidInputError: a folder that is missing, holds no run, or cannot be read.
    """
    paths = dict.fromkeys(path.resolve() for f in folders for path in _run_folders(Path(f)))
    found = [_load(_relative(path)) for path in paths]
    loaded = [run for run in found if isinstance(run, FinishedRun)]
    finished = {_identity(run) for run in loaded if run.is_finished}
    shown = [run for run in loaded if run.is_finished or _identity(run) not in finished]
    hidden = [
        IncompleteRun(run.folder, run.experiment, "unfinished", run.ended, "")
        for run in loaded
        if not run.is_finished and _identity(run) in finished
    ]
    incomplete = [run for run in found if isinstance(run, IncompleteRun)]
    return sorted(shown, key=lambda run: int(run.experiment["seed"])), incomplete + hidden


def _run_folders(folder: Path) -> list[Path]:
    found = sorted(path.parent for path in folder.glob("**/experiment.yaml"))
    if not found:
        raise InvalidInputError(f"{folder}: holds no run; give the folder that `fedtide run` wrote")
    return found


def _relative(path: Path) -> Path:
    """Return the path relative to the working directory if it lies below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _load(path: Path) -> FinishedRun | IncompleteRun:
    folder = RunFolder(path)
    try:
        experiment = read_yaml(folder.experiment)
        if not folder.finished:
            with suppress(FileNotFoundError):  # it may finish at this moment
                return _load_under_way(folder, experiment) or _load_incomplete(folder, experiment)
        return FinishedRun(
            folder,
            experiment,
            pl.read_parquet(folder.metrics),
            pl.read_parquet(folder.clients),
            float(json.loads(folder.timings.read_text(encoding="utf-8"))["rounds_per_second"]),
            int(json.loads(folder.summary.read_text(encoding="utf-8"))["rounds"]),
            _read_fingerprints(folder),
        )
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise InvalidInputError(
            f"{path}: cannot be read ({type(error).__name__}); run it again in another folder"
        ) from None


def _load_under_way(folder: RunFolder, experiment: dict[str, Any]) -> FinishedRun | None:
    """Return a run that has not ended; None if it failed, or without an evaluation or a log yet."""
    metrics, parts = folder.read_metrics(), folder.read_log()
    if folder.failure.exists() or metrics.is_empty() or not parts or not folder.clients.exists():
        return None
    ended, clients = _last_saved_round(folder), pl.read_parquet(folder.clients)
    log = pl.concat(parts).filter(pl.col("round") < ended)
    return FinishedRun(
        folder,
        experiment,
        metrics,
        clients,
        None,
        ended,
        _read_fingerprints(folder),
        log,
        is_finished=False,
    )


def _read_fingerprints(folder: RunFolder) -> Fingerprints:
    return folder.read_json(folder.fingerprints) if folder.fingerprints.exists() else {}


def _last_saved_round(folder: RunFolder) -> int:
    checkpoints = numbered(folder.checkpoints, "safetensors")
    return int(checkpoints[-1].stem) if checkpoints else 0


def _load_incomplete(folder: RunFolder, experiment: dict[str, Any]) -> IncompleteRun:
    ended = _last_saved_round(folder)
    if not folder.failure.exists():
        return IncompleteRun(folder, experiment, "unfinished", ended, "")
    note = json.loads(folder.failure.read_text(encoding="utf-8"))
    return IncompleteRun(folder, experiment, "failed", ended, str(note["sentence"]))


def group_by_method(runs: Iterable[FinishedRun]) -> dict[str, list[FinishedRun]]:
    """Return the runs of each method, one per seed, in the order in which the methods appear.

    Runs belong to one method if they differ only in the seed and in how they were executed, and
    used the same data and code. Two methods with the same name are told apart by the fields in
    which they differ. The name of a method whose runs are under way says how far they are.
    """
    groups: dict[str, dict[int, FinishedRun]] = {}
    for run in runs:
        groups.setdefault(_identity(run), {}).setdefault(run.experiment["seed"], run)
    distinct = [list(group.values()) for group in groups.values()]
    labels = _labels([group[0] for group in distinct])
    labels = [label + _how_far(group) for label, group in zip(labels, distinct, strict=True)]
    return dict(zip(labels, distinct, strict=True))


def _identity(run: FinishedRun) -> str:
    return json.dumps(run.fields, sort_keys=True, default=str)


def _how_far(group: Sequence[FinishedRun]) -> str:
    """Return the last round evaluated if runs are under way, of the one that is least far."""
    rounds = [int(run.metrics["round"][-1]) for run in group if not run.is_finished]
    return f" (round {min(rounds):,} of {group[0].experiment['rounds']:,})" if rounds else ""


def _labels(runs: Sequence[FinishedRun]) -> list[str]:
    """Return a name for each; runs of one name get the fields in which they differ added."""
    labels = []
    for run in runs:
        same = [other for other in runs if other.method == run.method]
        labels.append(f"{run.method} ({_difference(run, same)})" if len(same) > 1 else run.method)
    return labels


def _difference(run: FinishedRun, others: Sequence[FinishedRun]) -> str:
    """Return the fields of the run that differ from the others', or its folder's name if long."""
    flat = [dict(flatten(other.fields)) for other in others]
    mine = dict(flatten(run.fields))
    text = ", ".join(f"{f}={mine[f]}" for f in differing_fields(flat) if f in mine)
    return text if 0 < len(text) <= 60 else run.folder.path.name


def differing_fields(flat: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields whose values are not the same in all mappings."""
    fields = dict.fromkeys(field for one in flat for field in one)
    return [field for field in fields if len({str(one.get(field)) for one in flat}) > 1]


def flatten(
    plain: Mapping[str, Any], without: Sequence[str] = (), path: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of every field; `without` names top-level keys to skip.

    >>> dict(flatten({"local": {"lr": 0.1}, "seed": 3}, without=["seed"]))
    {'local.lr': 0.1}
    """
    for key, value in plain.items():
        if path == "" and key in without:
            continue
        if isinstance(value, Mapping):
            yield from flatten(value, (), f"{path}{key}.")
        else:
            yield f"{path}{key}", value
