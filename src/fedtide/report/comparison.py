"""Runs side by side: one row per method, mean and standard deviation over its seeds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from rich import box
from rich.table import Table

from fedtide.report.loading import FinishedRun, by_method


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
        table.add_row(row["method"], *(cell(row, column) for column in shown))
    return table


def cell(row: dict[str, Any], column: Column) -> str:
    """Return a figure of the comparison for people."""
    mean, std = row[column.key], row[f"{column.key}_std"]
    if mean is None:
        return ""
    scale = 100 if column.percent else 1
    spread = f" ± {std * scale:.{column.digits}f}" if column.std and row["seeds"] > 1 else ""
    return f"{mean * scale:,.{column.digits}f}{spread}"
