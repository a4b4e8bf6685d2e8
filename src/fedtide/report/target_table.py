"""What it takes methods to reach a target, as text for pages and terminals."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.markup import escape

from fedtide.metric_direction import is_share
from fedtide.plotting.wide_table import WideTable
from fedtide.report.comparison import format_mean
from fedtide.report.grouping import Conditions
from fedtide.report.summary import Estimate, Target, measure_target


def describe_target(target: Target) -> str:
    """Return the title of the table."""
    level = f"{100 * target.level:.1f} %" if is_share(target.metric) else f"{target.level:.4g}"
    name = target.metric.replace("_", " ")
    several = any(row.reached > 1 for row in target.rows)
    spread = ", mean ± half of its 95 % interval over the seeds that reach it" if several else ""
    return f"What it takes to reach {name} {level} at an evaluation{spread}"


def tabulate_target(target: Target) -> tuple[list[str], list[list[str]]]:
    """Return the titles and the rows of the table, without what is known for no method."""
    columns = {
        "rounds": [_format_count(row.rounds) for row in target.rows],
        "updates": [_format_count(row.updates) for row in target.rows],
    }
    if any(row.hours for row in target.rows):
        columns["hours"] = [_format(row.hours, 2) for row in target.rows]
    known = [row.exchanged[0] for row in target.rows if row.exchanged is not None]
    if known:
        size, unit = _byte_unit(np.nan_to_num(known).max())
        columns[f"{unit} exchanged"] = [_format(row.exchanged, 1, size) for row in target.rows]
    rows = [
        [row.method, f"{row.reached} of {row.runs}", *cells]
        for row, *cells in zip(target.rows, *columns.values(), strict=True)
    ]
    return ["method", "runs that reach it", *columns], rows


def print_targets(conditions: Conditions, wanted: str, console: Console) -> None:
    """Print the table of each condition, under its name if there are several.

    Raises:
        InvalidInputError: not METRIC=LEVEL, or some run lacks the metric.
    """
    for name, groups in conditions.items():
        target = measure_target(groups, wanted)
        titles, rows = tabulate_target(target)
        title = f"{name}: {describe_target(target)}" if len(conditions) > 1 else None
        table = WideTable(title=escape(title or describe_target(target)))
        for text in titles:
            table.add_column(text, justify="right" if table.columns else "left")
        for row in rows:
            table.add_row(*map(escape, row))
        console.print()
        console.print(table)


def _byte_unit(most: float) -> tuple[float, str]:
    """Return the size and the name of a unit that suits byte counts up to `most`.

    >>> _byte_unit(2.5e9), _byte_unit(300.0)
    ((1000000000.0, 'GB'), (1.0, 'bytes'))
    """
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if most >= size:
            return size, unit
    return 1.0, "bytes"


def _format(estimate: Estimate | None, digits: int, unit: float = 1.0) -> str:
    if estimate is None:
        return "—"
    mean, margin = estimate
    return "never" if np.isnan(mean) else format_mean(mean / unit, margin / unit or None, digits)


def _format_count(estimate: Estimate) -> str:
    mean, margin = estimate
    if np.isnan(mean):
        return "never"
    return f"{mean:,.0f} ± {margin:,.0f}" if margin else f"{mean:,.0f}"
