"""The runs that folders hold: finished, failed or under way, and which belong together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError
from fedtide.simulation.experiment import HOW, read_yaml
from fedtide.simulation.run_folder import RunFolder, numbered

_APART = ("seed", *HOW)
"""What may differ between runs of one method."""


@dataclass(frozen=True)
class FinishedRun:
    """A run as its folder tells it.

    Args:
        folder: where it lies.
        experiment: as plain data.
        metrics: one row per evaluation.
        clients: one row per client.
        rounds_per_second: without evaluations.
    """

    folder: RunFolder
    experiment: dict[str, Any]
    metrics: pl.DataFrame
    clients: pl.DataFrame
    rounds_per_second: float

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.experiment["name"])

    def last(self, key: str) -> float | None:
        """Return a figure of the last evaluation."""
        if key == "rounds_per_second":
            return self.rounds_per_second
        return self.metrics[key][-1] if key in self.metrics.columns else None

    def used(self) -> pl.DataFrame:
        """Return the rows of the participation log of those whose updates were used."""
        return pl.read_parquet(self.folder.participation).filter(pl.col("stage") == "used")

    def cohorts(self) -> NDArray[np.int64]:
        """Return the number of clients used in each round, shape (T,)."""
        rounds = self.used()["round"].to_numpy()
        return np.bincount(rounds, minlength=int(self.experiment["rounds"]))


@dataclass(frozen=True)
class OtherRun:
    """A run that has not ended well, or not yet.

    Args:
        folder: where it lies.
        experiment: as plain data.
        state: "failed" or "unfinished".
        ended: how many rounds its last checkpoint knows.
        sentence: why it failed.
    """

    folder: RunFolder
    experiment: dict[str, Any]
    state: str
    ended: int
    sentence: str


def load_runs(folders: Iterable[str | Path]) -> list[FinishedRun]:
    """Return the finished runs in these folders and below them, without those that failed.

    Raises:
        InvalidInputError: a folder that is missing or holds no run, or a run that has not ended.
    """
    finished, others = survey(folders)
    for other in others:
        if other.state == "unfinished" or not finished:
            said = other.sentence or "the run has not ended; go on with --resume"
            raise InvalidInputError(f"{other.folder.path}: {said}")
    return finished


def survey(folders: Iterable[str | Path]) -> tuple[list[FinishedRun], list[OtherRun]]:
    """Return the runs in these folders and below them, each once: the finished, and the others.

    Raises:
        InvalidInputError: a folder that is missing or holds no run.
    """
    paths = dict.fromkeys(path.resolve() for f in folders for path in _run_folders(Path(f)))
    found = [load(_shown(path)) for path in paths]
    finished = [run for run in found if isinstance(run, FinishedRun)]
    others = [run for run in found if isinstance(run, OtherRun)]
    return sorted(finished, key=lambda run: int(run.experiment["seed"])), others


def _shown(path: Path) -> Path:
    """Return a path as people would write it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def load(path: Path) -> FinishedRun | OtherRun:
    """Return the run of one folder."""
    folder = RunFolder(path)
    try:
        experiment = read_yaml(folder.experiment)
        if not folder.finished:
            return _other(folder, experiment)
        return FinishedRun(
            folder,
            experiment,
            pl.read_parquet(folder.metrics),
            pl.read_parquet(folder.clients),
            float(json.loads(folder.timings.read_text(encoding="utf-8"))["rounds_per_second"]),
        )
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise InvalidInputError(
            f"{path}: cannot be read ({type(error).__name__}); run it again in another folder"
        ) from None


def load_run(path: Path) -> FinishedRun:
    """Return the finished run of one folder.

    Raises:
        InvalidInputError: it has not ended.
    """
    return load_runs([path])[0]


def _other(folder: RunFolder, experiment: dict[str, Any]) -> OtherRun:
    ended = 0
    for path in reversed(numbered(folder.checkpoints, "safetensors")):
        ended = int(path.stem)
        break
    if not folder.failure.exists():
        return OtherRun(folder, experiment, "unfinished", ended, "")
    note = json.loads(folder.failure.read_text(encoding="utf-8"))
    return OtherRun(folder, experiment, "failed", ended, str(note["sentence"]))


def _run_folders(folder: Path) -> list[Path]:
    found = sorted(path.parent for path in folder.glob("**/experiment.yaml"))
    if not found:
        raise InvalidInputError(f"{folder}: holds no run; give the folder that `fedtide run` wrote")
    return found


def by_method(runs: Iterable[FinishedRun]) -> dict[str, list[FinishedRun]]:
    """Return the runs of each method, in the order in which the methods come.

    Runs are of one method if they differ in nothing but the seed and how they were computed. Two
    methods of one name are told apart by the fields in which they differ.
    """
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        groups.setdefault(_identity(run), []).append(run)
    labels = _labels([group[0] for group in groups.values()])
    return dict(zip(labels, (_one_each(group) for group in groups.values()), strict=True))


def _one_each(group: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Return the runs with each seed once: two of one seed are the same run."""
    return list({run.experiment["seed"]: run for run in reversed(group)}.values())[::-1]


def _identity(run: FinishedRun) -> str:
    kept = {key: value for key, value in run.experiment.items() if key not in _APART}
    return json.dumps(kept, sort_keys=True, default=str)


def _labels(runs: Sequence[FinishedRun]) -> list[str]:
    """Return a name for each, with the fields in which runs of one name differ."""
    labels = []
    for run in runs:
        alike = [other for other in runs if other.method == run.method]
        labels.append(f"{run.method} ({_special(run, alike)})" if len(alike) > 1 else run.method)
    return labels


def _special(run: FinishedRun, alike: Sequence[FinishedRun]) -> str:
    flat = [dict(flattened(other.experiment, _APART)) for other in alike]
    mine = flat[next(i for i, other in enumerate(alike) if other is run)]
    fields = dict.fromkeys(field for one in flat for field in one)
    differing = [f for f in fields if len({str(one.get(f)) for one in flat}) > 1 and f in mine]
    said = ", ".join(f"{field}={mine[field]}" for field in differing)
    return said if 0 < len(said) <= 60 else run.folder.path.name


def flattened(
    plain: Mapping[str, Any], without: Sequence[str] = (), path: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of every field.

    >>> dict(flattened({"local": {"lr": 0.1}, "seed": 3}, without=["seed"]))
    {'local.lr': 0.1}
    """
    for key, value in plain.items():
        if path == "" and key in without:
            continue
        if isinstance(value, Mapping):
            yield from flattened(value, (), f"{path}{key}.")
        else:
            yield f"{path}{key}", value
