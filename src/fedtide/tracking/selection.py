"""Selecting the tracker that `--track` names."""

from __future__ import annotations

import os
from pathlib import Path

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.tracking.base import Tracker
from fedtide.tracking.mlflow import MlflowTracker
from fedtide.tracking.tensorboard import TensorBoardTracker
from fedtide.tracking.wandb import WandbTracker

KINDS = ("mlflow", "tensorboard", "wandb")


def make_tracker(wanted: str, out: Path, experiment: str) -> Tracker:
    """Return the tracker that `--track` names.

    Args:
        wanted: "mlflow[:URI]", "tensorboard[:FOLDER]" or "wandb[:PROJECT]". The default URI is that
            in MLFLOW_TRACKING_URI, or `mlflow.db` next to the output folder; the default FOLDER is
            `tensorboard` next to it.
        out: the output folder.
        experiment: the MLflow experiment that the runs belong to, or the default project.

    Raises:
        InvalidInputError: an unknown kind of store, or one that cannot be used.
        MissingExtraError: its library is not installed.
    """
    kind, _, where = wanted.partition(":")
    beside = out.parent.resolve()
    if kind == "mlflow":
        uri = where or os.environ.get("MLFLOW_TRACKING_URI")
        return MlflowTracker(uri or f"sqlite:///{beside / 'mlflow.db'}", experiment)
    if kind == "tensorboard":
        return TensorBoardTracker(where or beside / "tensorboard")
    if kind == "wandb":
        return WandbTracker(where or experiment, beside)
    raise InvalidInputError(f"track: unknown {kind!r}; {did_you_mean(kind, KINDS)}")
