"""Logs runs to an MLflow store: parameters, all metrics, tables, a figure and the model."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtide.errors import InvalidInputError, MissingExtraError, first_line
from fedtide.report.grouping import arrange
from fedtide.report.loading import load_runs
from fedtide.simulation.run_folder import RunFolder
from fedtide.tracking.base import Row, TrackedRun, Tracker, finite_metrics, read_speed

_FOLDER_TAG = "fedtide.folder"
_MAX_PARAM_LENGTH = 500  # characters; the artifact experiment.yaml holds the full value
_MAX_KEY_LENGTH = 50  # characters in each part of a parameter's name
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")
_NOT_IN_PATTERNS = re.compile(r"['\"\\%\[\]]")  # MLflow's filters have no escapes for quotes
_KEY = re.compile(rf"[\w\-. :]{{1,{_MAX_KEY_LENGTH}}}")


class MlflowTracker(Tracker):
    """Logs runs to an MLflow store.

    A run with a folder gets its start and end times from its files, even if logged afterwards.

    Args:
        uri: the store: sqlite:///FILE, a server's address, or a folder, which newer versions of
            MLflow accept only with MLFLOW_ALLOW_FILE_STORE=true. An SQLite store keeps its
            artifacts in the folder `mlartifacts` next to the file.
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
            raise InvalidInputError(
                f"track: the store {uri} cannot be used ({first_line(error)}); check its URI, or "
                "MLFLOW_TRACKING_URI if that names it"
            ) from None

    def open(self, run: TrackedRun) -> str:
        tags = {f"sweep.{name}": str(value) for name, value in run.fields.items()}
        started = self._ended = None
        if run.folder is not None:
            self._delete_unfinished(run.folder)
            tags[_FOLDER_TAG] = str(run.folder.path.resolve())
            started, self._ended = _written(run.folder.experiment), _ended(run.folder)
        opened = self._client.create_run(
            self._experiment, start_time=started, run_name=run.title, tags=tags
        )
        run_id: str = opened.info.run_id
        self._run_id = run_id
        self._log_params(run.experiment)
        if run.folder is not None:
            self._client.log_artifact(self._run_id, str(run.folder.experiment))
        return run_id

    def log(self, rows: Sequence[Row]) -> None:
        from mlflow.entities import Metric

        millis = int(1000 * time.time()) if self._ended is None else self._ended
        metrics = [
            Metric(_NOT_IN_NAMES.sub("_", name), value, millis, row["round"])
            for row in rows
            for name, value in finite_metrics(row)
        ]
        for first in range(0, len(metrics), 1000):
            self._client.log_batch(self._run_id, metrics=metrics[first : first + 1000])

    def close(self, folder: RunFolder | None, failure: str) -> None:
        if failure:
            self._client.set_tag(self._run_id, "fedtide.failure", failure)
        elif folder is not None:
            self._log_results(folder)
        status = "FAILED" if failure else "FINISHED"
        ended = None if folder is None else _ended(folder)
        self._client.set_terminated(self._run_id, status, ended)

    def find_logged(self, folder: RunFolder) -> str | None:
        ended = _written(folder.summary)
        found = (one.info for one in self._find(folder) if one.info.status == "FINISHED")
        return next((info.run_id for info in found if info.end_time >= ended), None)

    def _find(self, folder: RunFolder) -> Sequence[Any]:
        """Return the runs in the store that were logged from this folder."""
        path = str(folder.path.resolve())
        pattern = _NOT_IN_PATTERNS.sub("_", path)  # _ matches any character
        found = self._client.search_runs(
            [self._experiment], f"tags.`{_FOLDER_TAG}` LIKE '{pattern}'"
        )
        return [run for run in found if run.data.tags[_FOLDER_TAG] == path]

    def _delete_unfinished(self, folder: RunFolder) -> None:
        for run in self._find(folder):
            if run.info.status != "FINISHED":
                self._client.delete_run(run.info.run_id)

    def _log_params(self, experiment: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        flat = _flatten(experiment)
        params = [Param(key, str(value)[:_MAX_PARAM_LENGTH]) for key, value in flat]
        for first in range(0, len(params), 100):
            self._client.log_batch(self._run_id, params=params[first : first + 100])

    def _log_results(self, folder: RunFolder) -> None:
        """Log the speed, tables, model and figure of a finished run."""
        self._client.log_metric(
            self._run_id, "rounds_per_second", read_speed(folder), _ended(folder)
        )
        for file in (folder.summary, folder.clients, folder.participation):
            self._client.log_artifact(self._run_id, str(file))
        self._client.log_artifact(self._run_id, str(folder.model), "model")
        from fedtide.report.figures.run_comparison import comparison_figure  # imports Matplotlib

        figure = comparison_figure(arrange(load_runs([folder.path])))
        self._client.log_figure(self._run_id, figure, "figures/run.png")


def _flatten(plain: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of every field.

    A mapping stays whole if MLflow does not allow one of its keys in a name, as with clients'
    names.

    >>> dict(_flatten({"local": {"lr": 0.1}, "rates": {"ann": 0.1, "bob@x": 0.2}}))
    {'local.lr': 0.1, 'rates': {'ann': 0.1, 'bob@x': 0.2}}
    """
    for key, value in plain.items():
        if isinstance(value, Mapping) and all(_KEY.fullmatch(str(inner)) for inner in value):
            yield from _flatten(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _written(file: Path) -> int:
    """Return when a file was written, in milliseconds since 1970."""
    return file.stat().st_mtime_ns // 1_000_000


def _ended(folder: RunFolder) -> int | None:
    """Return when the run in a folder finished, or None."""
    return _written(folder.summary) if folder.finished else None


def _import_mlflow() -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # with 7, each waits for minutes
    try:
        import mlflow
    except ImportError:
        raise MissingExtraError("track", "mlflow") from None
    for name in ("alembic", "mlflow"):  # silence them: they log every step of creating a store
        logging.getLogger(name).setLevel(logging.WARNING)
    return mlflow


def _artifact_location(uri: str) -> str | None:
    """Return the folder `mlartifacts` next to an SQLite file; None: let the store choose."""
    if not uri.startswith("sqlite:///"):
        return None
    return (Path(uri.removeprefix("sqlite:///")).resolve().parent / "mlartifacts").as_uri()
