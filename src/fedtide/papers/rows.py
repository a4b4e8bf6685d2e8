"""The measured numbers of an experiment: one row per case and method, and its text in tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fedtide.papers.paper_spec import MAIN, PaperExperiment, PublishedNumbers, Scale
from fedtide.papers.plan import plan
from fedtide.papers.record import Record, match_records


@dataclass(frozen=True)
class Row:
    """The runs of one method in one case.

    Args:
        case, method: which runs.
        records: the recorded ones.
        planned: the number of planned runs.
    """

    case: str
    method: str
    records: tuple[Record, ...]
    planned: int

    @property
    def label(self) -> str:
        """The row's name in tables."""
        return self.method if self.case == MAIN else f"{self.case}: {self.method}"

    @property
    def stopped(self) -> str | None:
        """Why a run ended early; None: all ended regularly."""
        return next((r.stopped for r in self.records if r.stopped is not None), None)

    def values(self, measure: str) -> dict[int, float | None]:
        """Return a measure by seed; None: the run diverged, or never reached a target.

        Runs recorded before the measure was asked for have no entry.
        """
        return {r.seed: r.measures[measure] for r in self.records if measure in r.measures}


def compare(paper: PaperExperiment, records: Iterable[Record], scale: Scale) -> list[Row]:
    """Return one row for each case and method that is planned at a scale.

    Records with other settings than the planned ones are ignored.
    """
    runs = plan(paper, scale)
    matching = match_records(runs, records)
    groups: dict[tuple[str, str], list[Record | None]] = {}
    for run in runs:
        groups.setdefault((run.case, run.method), []).append(matching.get(run.key))
    return [
        Row(case, method, tuple(filter(None, found)), len(found))
        for (case, method), found in groups.items()
    ]


def find_number(
    table: PublishedNumbers, row: Row | tuple[str, str], measure: str
) -> tuple[float, float | None] | None:
    """Return a published number and its standard deviation, if known; None: there is none."""
    case, method = (row.case, row.method) if isinstance(row, Row) else row
    value = table.get(case, {}).get(method, {}).get(measure)
    if value is None:
        return None
    return (float(value[0]), float(value[1])) if isinstance(value, list) else (float(value), None)


def has_number(table: PublishedNumbers, measure: str) -> bool:
    """Return whether the table has a number of this measure for any method."""
    return any(measure in numbers for rows in table.values() for numbers in rows.values())


def format_number(paper: PaperExperiment, table: PublishedNumbers, row: Row, measure: str) -> str:
    """Return a number of a table of published ones as text."""
    number = find_number(table, row, measure)
    return "" if number is None else paper.measures[measure].format([number[0]], number[1])


def format_measured(paper: PaperExperiment, row: Row, measure: str) -> str:
    """Return the measured number as text: mean ± standard deviation over the seeds."""
    values = row.values(measure)
    if not values:
        return "not recorded" if row.records else "not run"
    numbers = [value for value in values.values() if value is not None]
    missing = len(values) - len(numbers)
    reason = "diverged" if row.stopped is not None else "never reached"
    if not numbers:
        return reason
    std = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
    text = paper.measures[measure].format(numbers, std)
    return text + (f" ({missing} {reason})" if missing else "")


def titles(paper: PaperExperiment) -> Mapping[str, str]:
    """Return the titles of the measures in tables."""
    return {name: measure.title or measure.metric for name, measure in paper.measures.items()}
