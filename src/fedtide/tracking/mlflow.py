"""Logs runs to an MLflow store: parameters, all metrics, tables, a figure and the model."""

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
from fedtide.report.loading import flatten, load_runs
from fedtide.simulation.experiment import read_yaml
from fedtide.simulation.run_folder import RunFolder

STORE = "mlflow.db"
"""The default store, an SQLite file beside the output folder."""

_FOLDER_TAG = "fedtide.folder"
_MAX_PARAM_LENGTH = 500  # characters; the artifact experiment.yaml holds the full value


def make_tracker(wanted: str, out: Path, experiment: str) -> MlflowTracker:
    """Return the tracker that `--track` names.

    Args:
        wanted: "mlflow" for the default store, or "mlflow:URI".
        out: the output folder; the default store lies beside it.
        experiment: the MLflow experiment that the runs belong to.

    Raises:
        InvalidInputError: an unknown kind of store, MLflow is not installed, or the store cannot
            be used.
    """
    kind, _, uri = wanted.partition(":")
    if kind != "mlflow":
        raise InvalidInputError(f"track: unknown {kind!r}; {did_you_mean(kind, ['mlflow'])}")
    return MlflowTracker(uri or f"sqlite:///{out.parent.resolve() / STORE}", experiment)


class MlflowTracker:
    """Logs finished and failed runs to an MLflow store.

    Args:
        uri: the store: sqlite:///FILE, a folder, or a server's address. An SQLite store keeps its
            artifacts in the folder `mlartifacts` beside the file.
        experiment: the MLflow experiment that the runs belong to; created if missing.

    Raises:
        InvalidInputError: MLflow is not installed, or the store cannot be used.
    """

    def __init__(self, uri: str, experiment: str) -> None:
        mlflow = _import_mlflow()
        self.uri = uri
        try:
            self._client = mlflow.MlflowClient(uri)
            found = self._client.get_experiment_by_name(experiment)
            self._experiment = (
                found.experiment_id
                if found
                else self._client.create_experiment(experiment, _artifact_location(uri))
            )
        except Exception as error:  # MLflow and its database drivers raise errors of many types
            reason = " ".join(str(error).split())
            raise InvalidInputError(
                f"track: the store {uri} cannot be used ({reason:.120}); check its URI"
            ) from None

    def track(self, path: str | Path, fields: Mapping[str, Any] | None = None) -> str:
        """Log the finished or failed run of a folder and return its id in the store.

        A run that the store holds as finished is not logged again; a failed one is replaced.

        Args:
            path: the run folder.
            fields: the method, swept fields and seed of a run of a sweep; each becomes a tag.
        """
        folder = RunFolder(path)
        if known := self._find_finished(folder):
            return known
        experiment = read_yaml(folder.experiment)
        run = self._client.create_run(
            self._experiment,
            run_name=f"{experiment['name']} seed {experiment['seed']}",
            tags={
                _FOLDER_TAG: str(folder.path.resolve()),
                **{f"sweep.{name}": str(value) for name, value in (fields or {}).items()},
            },
        )
        run_id: str = run.info.run_id
        self._log(run_id, folder, experiment)
        self._client.set_terminated(run_id, "FINISHED" if folder.finished else "FAILED")
        return run_id

    def _find_finished(self, folder: RunFolder) -> str | None:
        """Return the id of the folder's finished run in the store; delete unfinished ones."""
        path = str(folder.path.resolve()).replace("'", "''")
        query = f"tags.`{_FOLDER_TAG}` = '{path}'"
        for run in self._client.search_runs([self._experiment], query):
            if run.info.status == "FINISHED":
                run_id: str = run.info.run_id
                return run_id
            self._client.delete_run(run.info.run_id)
        return None

    def _log(self, run_id: str, folder: RunFolder, experiment: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric, Param

        params = [Param(key, str(value)[:_MAX_PARAM_LENGTH]) for key, value in flatten(experiment)]
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
        self._client.log_artifact(run_id, str(folder.model), "model")
        figure = comparison_figure(load_runs([folder.path]))
        self._client.log_figure(run_id, figure, "figures/run.png")


def _import_mlflow() -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    for name in ("alembic", "mlflow"):  # they log every step of creating a store
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        import mlflow
    except ImportError:
        raise InvalidInputError(
            "track: MLflow is not installed; pip install 'fedtide[mlflow]'"
        ) from None
    return mlflow


def _artifact_location(uri: str) -> str | None:
    """Return the folder `mlartifacts` beside an SQLite file; None: let the store choose."""
    if not uri.startswith("sqlite:///"):
        return None
    return (Path(uri.removeprefix("sqlite:///")).resolve().parent / "mlartifacts").as_uri()


def _metrics(folder: RunFolder) -> Iterator[tuple[str, float, int, int]]:
    """Yield the name, value, time in milliseconds and round of every metric of the run."""
    millis = int(folder.summary.stat().st_mtime * 1000)
    timings = json.loads(folder.timings.read_text(encoding="utf-8"))
    rows = pl.read_parquet(folder.metrics).rows(named=True)
    for row in rows:
        for name, value in row.items():
            if name != "round" and value is not None and math.isfinite(value):
                yield name, float(value), millis, row["round"]
    yield "rounds_per_second", timings["rounds_per_second"], millis, rows[-1]["round"]
