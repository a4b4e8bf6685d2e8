"""Runs in an MLflow store: parameters, metrics of every evaluation, tables, figures, the model."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.report.figures.run_comparison import comparison_figure
from fedtide.report.loading import flattened, load_run
from fedtide.simulation.experiment import read_yaml
from fedtide.simulation.run_folder import RunFolder

STORE = "mlflow.db"
"""The default store, an SQLite file beside the run folders."""

_FOLDER_TAG = "fedtide.folder"
_MODEL = "model"
_LONGEST = 500  # characters of a parameter; experiment.yaml among the artifacts has all of it


def tracker(wanted: str, out: Path, experiment: str) -> MlflowTracker:
    """Return what tracks runs as `--track` asks for.

    Args:
        wanted: "mlflow", or "mlflow:URI" for another store than the default.
        out: the folder of the runs; the default store lies beside it.
        experiment: what the runs belong to in the store.

    Raises:
        InvalidInputError: another kind of store, MLflow is missing, or the store does not answer.
    """
    kind, _, uri = wanted.partition(":")
    if kind != "mlflow":
        raise InvalidInputError(f"track: unknown {kind!r}; {did_you_mean(kind, ['mlflow'])}")
    return MlflowTracker(uri or f"sqlite:///{out.parent.resolve() / STORE}", experiment)


class MlflowTracker:
    """Writes runs that have ended into an MLflow store.

    Args:
        uri: of the store: sqlite:///FILE, a folder, or a server's address. Artifacts of an SQLite
            store lie in the folder `mlartifacts` beside it.
        experiment: what the runs belong to; made where it is missing.

    Raises:
        InvalidInputError: MLflow is missing, or the store does not answer.
    """

    def __init__(self, uri: str, experiment: str) -> None:
        self._mlflow = _imported()
        self.uri = uri
        try:
            self._client = self._mlflow.MlflowClient(uri)
            found = self._client.get_experiment_by_name(experiment)
            self._experiment = (
                found.experiment_id
                if found
                else self._client.create_experiment(experiment, _beside(uri))
            )
        except Exception as error:  # whatever the store's own library raises
            said = " ".join(str(error).split())
            raise InvalidInputError(
                f"track: the store {uri} cannot be used ({said:.120})"
            ) from None

    def track(self, path: str | Path, fields: Mapping[str, Any] | None = None) -> str:
        """Write the run of a folder, finished or failed, and return its id in the store.

        A run that is there already, finished, stays as it is; a failed one is written anew.

        Args:
            path: the run folder.
            fields: what it is known by within a sweep; each becomes a tag.
        """
        folder = RunFolder(path)
        if there := self._there(folder):
            return there
        experiment = read_yaml(folder.experiment)
        run = self._client.create_run(
            self._experiment,
            run_name=_name(experiment),
            tags={_FOLDER_TAG: _where(folder), **_tags(fields or {})},
        )
        run_id: str = run.info.run_id
        self._write(run_id, folder, experiment)
        self._client.set_terminated(run_id, "FINISHED" if folder.finished else "FAILED")
        return run_id

    def _there(self, folder: RunFolder) -> str | None:
        """Return the id of the folder's run if it is finished in the store; drop what is not."""
        asked = f"tags.`{_FOLDER_TAG}` = '{_quoted(_where(folder))}'"
        for run in self._client.search_runs([self._experiment], asked):
            if run.info.status == "FINISHED":
                run_id: str = run.info.run_id
                return run_id
            self._client.delete_run(run.info.run_id)
        return None

    def _write(self, run_id: str, folder: RunFolder, experiment: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric, Param

        params = [Param(key, str(value)[:_LONGEST]) for key, value in flattened(experiment)]
        for first in range(0, len(params), 100):
            self._client.log_batch(run_id, params=params[first : first + 100])
        self._client.log_artifact(run_id, str(folder.experiment))
        if not folder.finished:
            if folder.failure.exists():
                note = json.loads(folder.failure.read_text(encoding="utf-8"))
                self._client.set_tag(run_id, "fedtide.failure", note["sentence"])
            return
        metrics = [Metric(*one) for one in _metrics(folder)]
        for first in range(0, len(metrics), 1000):
            self._client.log_batch(run_id, metrics=metrics[first : first + 1000])
        for file in (folder.summary, folder.clients, folder.participation):
            self._client.log_artifact(run_id, str(file))
        self._client.log_artifact(run_id, str(folder.model), _MODEL)
        figure = comparison_figure([load_run(folder.path)])
        self._client.log_figure(run_id, figure, "figures/run.png")


def _imported() -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nobody asked to be counted
    for name in ("alembic", "mlflow"):  # they report every step of making a store
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        import mlflow
    except ImportError:
        raise InvalidInputError(
            "track: MLflow is not installed; pip install 'fedtide[mlflow]'"
        ) from None
    return mlflow


def _beside(uri: str) -> str | None:
    """Return where artifacts go: beside an SQLite file, and where the store says otherwise."""
    if not uri.startswith("sqlite:///"):
        return None
    return (Path(uri.removeprefix("sqlite:///")).resolve().parent / "mlartifacts").as_uri()


def _name(experiment: Mapping[str, Any]) -> str:
    return f"{experiment['name']} seed {experiment['seed']}"


def _where(folder: RunFolder) -> str:
    return str(folder.path.resolve())


def _quoted(text: str) -> str:
    return text.replace("'", "''")


def _tags(fields: Mapping[str, Any]) -> dict[str, str]:
    return {f"sweep.{name}": str(value) for name, value in fields.items()}


def _metrics(folder: RunFolder) -> Iterator[tuple[str, float, int, int]]:
    """Yield name, value, time in milliseconds and round of every figure of every evaluation."""
    millis = int(folder.summary.stat().st_mtime * 1000)
    timings = json.loads(folder.timings.read_text(encoding="utf-8"))
    rows = pl.read_parquet(folder.metrics).rows(named=True)
    for row in rows:
        for name, value in row.items():
            if name != "round" and value is not None and math.isfinite(value):
                yield name, float(value), millis, row["round"]
    yield "rounds_per_second", timings["rounds_per_second"], millis, rows[-1]["round"]
