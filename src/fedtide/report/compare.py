"""Runs side by side: one row per method, mean and standard deviation over its seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from rich import box
from rich.table import Table

from fedtide.errors import BadInput
from fedtide.simulation.folder import RunFolder


@dataclass(frozen=True)
class Column:
    """One figure of the comparison.

    Args:
        key: of the metrics, or of the timings.
        title: for people.
        percent: whether it is a share, shown as a percentage.
        digits: behind the point.
        std: whether the standard deviation over the seeds is shown, too.
    """

    key: str
    title: str
    percent: bool = False
    digits: int = 1
    std: bool = False


COLUMNS = (
    Column("test_accuracy", "test\naccuracy %", percent=True, std=True),
    Column("client_test_accuracy_worst_tenth", "worst\ntenth %", percent=True, std=True),
    Column("client_test_accuracy_std", "spread\n%", percent=True),
    Column("loss", "loss,\nall alike", digits=3, std=True),
    Column("participation_loss", "by\npresence", digits=3),
    Column("rounds_per_second", "rounds\n/s", digits=0),
)
"""What a comparison shows, as far as the runs have it.

The worst tenth is the mean test accuracy of the tenth of the clients that fare worst, each client's
being that on its own mix of classes; the spread is its standard deviation over the clients. The
training loss is given twice: with all clients counting alike, which is wanted, and with each
counting as often as it was there (paper 004, equation 3), which is what plain averaging minimises.
"""


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


def load_runs(folders: Iterable[str | Path]) -> list[FinishedRun]:
    """Return the runs in these folders and below them.

    Raises:
        BadInput: a folder that is missing or holds no run, or a run that has not ended.
    """
    runs = [load_run(path) for folder in folders for path in _run_folders(Path(folder))]
    return sorted(runs, key=lambda run: run.experiment["seed"])


def load_run(path: Path) -> FinishedRun:
    """Return the run of one folder."""
    folder = RunFolder(path)
    if not folder.finished:
        raise BadInput(f"{path}: the run has not ended; go on with --resume")
    return FinishedRun(
        folder,
        yaml.safe_load(folder.experiment.read_text(encoding="utf-8")),
        pl.read_parquet(folder.metrics),
        pl.read_parquet(folder.clients),
        float(json.loads(folder.timings.read_text(encoding="utf-8"))["rounds_per_second"]),
    )


def _run_folders(folder: Path) -> list[Path]:
    found = sorted(path.parent for path in folder.glob("**/experiment.yaml"))
    if not found:
        raise BadInput(f"{folder}: holds no run; give the folder that `fedtide run` wrote")
    return found


def by_method(runs: Iterable[FinishedRun]) -> dict[str, list[FinishedRun]]:
    """Return the runs of each method, in the order in which the methods come."""
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        groups.setdefault(run.method, []).append(run)
    return groups


def comparison(runs: Iterable[FinishedRun]) -> pl.DataFrame:
    """Return one row per method: `method`, `seeds`, then the mean and `_std` of each figure."""
    rows = []
    for method, group in by_method(runs).items():
        row: dict[str, Any] = {"method": method, "seeds": len(group)}
        for column in COLUMNS:
            values = [value for run in group if (value := run.last(column.key)) is not None]
            if len(values) == len(group):
                row[column.key] = float(np.mean(values))
                row[f"{column.key}_std"] = float(np.std(values, ddof=1)) if len(group) > 1 else 0.0
        rows.append(row)
    return pl.DataFrame(rows)


def comparison_table(frame: pl.DataFrame) -> Table:
    """Return the comparison for a terminal."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, collapse_padding=True)
    shown = [column for column in COLUMNS if column.key in frame.columns]
    table.add_column("\nmethod")
    for column in shown:
        table.add_column(column.title, justify="right")
    for row in frame.iter_rows(named=True):
        table.add_row(row["method"], *(_cell(row, column) for column in shown))
    return table


def _cell(row: dict[str, Any], column: Column) -> str:
    mean, std = row[column.key], row[f"{column.key}_std"]
    if mean is None:
        return ""
    scale = 100 if column.percent else 1
    spread = f" ± {std * scale:.{column.digits}f}" if column.std and row["seeds"] > 1 else ""
    return f"{mean * scale:,.{column.digits}f}{spread}"
