"""The comparison table: one row per method, mean and standard deviation over its seeds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from rich.console import Console
from rich.markup import escape

from fedtide.metric_direction import is_share
from fedtide.plotting.wide_table import WideTable
from fedtide.report.grouping import Conditions, Groups
from fedtide.report.summary import mean_and_std, own_test_metrics


@dataclass(frozen=True)
class Column:
    """A column of the comparison.

    Args:
        key: the metric, or rounds_per_second.
        title: the column's heading.
        percent: whether values in [0, 1] are shown as percentages.
        digits: decimals shown.
        std: whether the standard deviation over the seeds is shown as well.
    """

    key: str
    title: str
    percent: bool = False
    digits: int = 1
    std: bool = False


_LONG = 1e6  # from here on, numbers are rounded to three digits

COLUMNS = (
    Column("test_accuracy", "test\naccuracy %", percent=True, std=True),
    Column("client_test_accuracy_worst_tenth", "worst\ntenth %", percent=True, std=True),
    Column("client_test_accuracy_std", "spread\n%", percent=True),
    Column(
        "client_class_weighted_test_accuracy_worst_tenth",
        "worst tenth %,\nclass-weighted",
        percent=True,
        std=True,
    ),
    Column("client_class_weighted_test_accuracy_std", "spread %,\nclass-weighted", percent=True),
    Column("loss", "loss,\nclient mean", digits=3, std=True),
    Column("participation_loss", "weighted by\nparticipation", digits=3),
    Column("rounds_per_second", "rounds\n/s", digits=0),
)
"""The columns of a comparison; those that no run has are left out.

Worst tenth: the mean test accuracy of the tenth of the clients with the lowest; spread: its
standard deviation over the clients. If clients have no test samples of their own, their test
accuracies are class-weighted: the accuracies of the classes on the common test set, weighted by the
client's shares of the classes. These columns follow the problem's own test metrics or, if there is
no other test metric, the test loss. The training loss is given twice: as the goal (the mean over
clients, or the experiment's objective), and weighted by how often each client took part (Rahimi &
Kalogerias 2025, equation 3), which is what plain averaging minimises.
"""


_KEYS = {column.key for column in COLUMNS}


def weights_clients(groups: Groups) -> bool:
    """Return whether the objective weights clients."""
    first = next(iter(groups.values()))[0]
    return bool(first.experiment.get("objective", "uniform") != "uniform")


def compare_methods(groups: Groups) -> pl.DataFrame:
    """Return one row per method: `method`, `seeds`, then the mean and `_std` of each column."""
    rows = []
    found = dict.fromkeys(
        key for group in groups.values() for run in group for key in run.metrics.columns
    )
    keys = [column.key for column in _columns(found)]
    for method, group in groups.items():
        row: dict[str, Any] = {"method": method, "seeds": len(group)}
        for key in keys:
            values = [v for run in group if (v := run.final_value(key)) is not None]
            if len(values) == len(group):
                row[key], row[f"{key}_std"] = mean_and_std(values)
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def compare_conditions(conditions: Conditions) -> pl.DataFrame:
    """Return the rows of `compare_methods`, after the `condition` if there are several."""
    frames = {name: compare_methods(groups) for name, groups in conditions.items()}
    if len(frames) > 1:
        frames = {
            name: frame.select(pl.lit(name).alias("condition"), pl.all())
            for name, frame in frames.items()
        }
    return pl.concat(frames.values(), how="diagonal_relaxed")


def shown_columns(frame: pl.DataFrame, weighted: bool = False) -> list[Column]:
    """Return the columns of a comparison; a problem's own metrics are in per cent if shares.

    Args:
        frame: the comparison.
        weighted: whether the objective weights clients, so that the loss is not their mean.
    """
    columns = [column for column in _columns(frame.columns) if column.key in frame.columns]
    if weighted:
        title = "loss,\nobjective"
        columns = [replace(c, title=title) if c.key == "loss" else c for c in columns]
    return [
        replace(column, title=f"{column.title} %", percent=True, digits=1)
        if column.key not in _KEYS
        and is_share(column.key)
        and frame[column.key].is_between(0, 1).all()
        else column
        for column in columns
    ]


def _columns(keys: Iterable[str]) -> list[Column]:
    """Return the columns of the problem's own test metrics, followed by `COLUMNS`."""
    names = [key.removesuffix("_std") for key in keys]
    metrics = own_test_metrics(names)
    is_alone = len(metrics) == 1 and "test_accuracy" not in names
    own = []
    for metric in metrics:
        name = metric.removeprefix("test_")
        worst = "worst\ntenth" if is_alone else f"{name},\nworst tenth"
        own += [
            Column(metric, f"test\n{name}", digits=3, std=True),
            Column(f"client_{metric}_worst_tenth", worst, digits=3, std=True),
        ]
    return [*own, *COLUMNS]


def comparison_table(groups: Groups) -> WideTable:
    """Return the comparison of methods as a table for a terminal.

    It is split into several blocks if the terminal is narrow.
    """
    table = WideTable()
    rows = comparison_cells(groups)
    for title in rows[0]:
        table.add_column(escape(title), justify="right" if table.columns else "left")
    for row in rows:
        table.add_row(*map(escape, row.values()))
    return table


def comparison_cells(groups: Groups) -> list[dict[str, str]]:
    """Return the comparison of methods as text: cells by title, for each method."""
    frame = compare_methods(groups)
    columns = shown_columns(frame, weights_clients(groups))
    return [
        {"\nmethod": row["method"]} | {one.title: format_cell(row, one) for one in columns}
        for row in frame.iter_rows(named=True)
    ]


def print_warnings(conditions: Conditions, console: Console) -> None:
    """Print the warnings of runs, such as that the loss diverged."""
    for groups in conditions.values():
        for text in list_warnings(groups):
            console.print(text, markup=False, highlight=False, soft_wrap=True)


def list_warnings(groups: Groups) -> list[str]:
    """Return the warnings of runs, each with its method and seed."""
    runs = [(method, run) for method, group in groups.items() for run in group]
    return [f"{m}, seed {r.experiment['seed']}: {text}" for m, r in runs for text in r.warnings]


def format_cell(row: dict[str, Any], column: Column) -> str:
    """Return a value of the comparison as text: empty if missing, in words if not finite."""
    mean, std = row[column.key], row[f"{column.key}_std"]
    if mean is None:
        return ""
    if not np.isfinite(mean):
        return "diverged" if not np.isfinite(row.get("loss", np.nan)) else "not finite"
    scale = 100 if column.percent else 1
    has_spread = column.std and row["seeds"] > 1
    return format_mean(mean * scale, std * scale if has_spread else None, column.digits)


def format_mean(mean: float, std: float | None, digits: int) -> str:
    """Return a mean over seeds as text, with its standard deviation if that is known and finite.

    A number of which this many decimals would show fewer than two digits gets three digits.

    >>> format_mean(0.98765, 0.01234, 3), format_mean(1.5e9, None, 3)
    ('0.988 ± 0.012', '1.5e+09')
    >>> format_mean(0.00345678, 0.000123, 3), format_mean(-6.7e-8, None, 3)
    ('0.00346 ± 0.000123', '-6.7e-08')
    >>> format_mean(np.inf, np.nan, 3), format_mean(4683.7, 4078.36, 1)
    ('inf', '4,683.7 ± 4,078.4')
    """
    shown = [abs(one) for one in (mean, std) if one is not None and np.isfinite(one)]
    largest = max(shown, default=0.0)
    is_short = 0 < largest < 10.0 ** (1 - digits)
    form = f".{digits}f" if abs(mean) < _LONG and not is_short else ".3g"  # diverging: any length
    form = f"{',' if abs(mean) < _LONG else ''}{form}"
    spread = "" if std is None or not np.isfinite(std) else f" ± {std:{form}}"
    return f"{mean:{form}}{spread}"
