"""Compares published with measured numbers: one row per case and method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedtide.papers.measures import Measure
from fedtide.papers.paper_spec import MAIN, PaperExperiment, PublishedNumbers, Scale
from fedtide.papers.plan import PlannedRun, plan
from fedtide.papers.record import Curve, Record

Number = tuple[float, float | None]
"""A published number and its standard deviation, if known."""


@dataclass(frozen=True)
class Cell:
    """One measure of one method in one case.

    Args:
        published: the number in the paper, if any.
        program: the number of the authors' program, if any.
        values: the measured numbers by seed; None: diverged, or never reached.
        diverged: the number of runs that diverged.
        runs: the number of recorded runs; those recorded before the measure was asked for have no
            value.
    """

    published: Number | None
    program: Number | None
    values: Mapping[int, float | None]
    diverged: int
    runs: int = 0

    @property
    def numbers(self) -> list[float]:
        """The measured numbers of the seeds that give one."""
        return [value for value in self.values.values() if value is not None]


@dataclass(frozen=True)
class Row:
    """All measures of one method in one case.

    Args:
        case, method: the row's case and method.
        cells: its cells by measure.
        seeds: the number of recorded runs.
        planned: the number of planned runs.
        stopped: why a run ended early, if one did.
        seconds: the time of each recorded run.
        curves: the metrics at about thirty evaluations of each recorded run, by seed.
    """

    case: str
    method: str
    cells: Mapping[str, Cell]
    seeds: int
    planned: int
    stopped: str | None
    seconds: tuple[float, ...] = ()
    curves: Mapping[int, Curve] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The row's name in tables."""
        return self.method if self.case == MAIN else f"{self.case}: {self.method}"


def match_records(
    paper: PaperExperiment, records: Iterable[Record], scale: Scale
) -> list[tuple[PlannedRun, Record | None]]:
    """Return each planned run with its record; None: it has none with these settings."""
    by_key = {record.key: record for record in records}
    found = [(run, by_key.get(run.key)) for run in plan(paper, scale)]
    return [(run, r if r is not None and r.matches(run) else None) for run, r in found]


def compare(paper: PaperExperiment, records: Iterable[Record], scale: Scale) -> list[Row]:
    """Return one row for each case and method that is planned at a scale.

    Records with other settings than the planned ones are ignored.
    """
    groups: dict[tuple[str, str], list[Record | None]] = {}
    for run, record in match_records(paper, records, scale):
        groups.setdefault((run.case, run.method), []).append(record)
    return [make_row(paper, case, method, found) for (case, method), found in groups.items()]


def make_row(
    paper: PaperExperiment, case: str, method: str, records: Sequence[Record | None]
) -> Row:
    """Return the row of the planned runs of a method; None stands for a run without record."""
    recorded = [record for record in records if record is not None]
    reasons = [record.stopped for record in recorded if record.stopped is not None]
    cells = {
        name: Cell(
            published=find_number(paper.published, case, method, name),
            program=find_number(paper.program, case, method, name),
            values={r.seed: r.measures[name] for r in recorded if name in r.measures},
            diverged=len(reasons),
            runs=len(recorded),
        )
        for name in paper.measures
    }
    seconds = tuple(record.seconds for record in recorded)
    stopped = next(iter(reasons), None)
    curves = {record.seed: record.curve for record in recorded}
    return Row(case, method, cells, len(recorded), len(records), stopped, seconds, curves)


def find_number(table: PublishedNumbers, case: str, method: str, measure: str) -> Number | None:
    """Return the number of a table of published ones; None: it has none."""
    value = table.get(case, {}).get(method, {}).get(measure)
    if value is None:
        return None
    return (float(value[0]), float(value[1])) if isinstance(value, list) else (float(value), None)


def has_number(table: PublishedNumbers, measure: str) -> bool:
    """Return whether the table has a number of this measure for any method."""
    return any(measure in numbers for rows in table.values() for numbers in rows.values())


def format_published(cell: Cell, measure: Measure) -> str:
    """Return the number in the paper as text."""
    return _format(cell.published, measure)


def format_program(cell: Cell, measure: Measure) -> str:
    """Return the number of the authors' program as text."""
    return _format(cell.program, measure)


def _format(number: Number | None, measure: Measure) -> str:
    return "" if number is None else measure.format([number[0]], number[1])


def format_measured(cell: Cell, measure: Measure) -> str:
    """Return the measured number as text: mean ± standard deviation over the seeds."""
    if not cell.values:
        return "not recorded" if cell.runs else "not run"
    numbers = cell.numbers
    missing = len(cell.values) - len(numbers)
    reason = "diverged" if cell.diverged else "never reached"
    if not numbers:
        return reason
    std = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
    return measure.format(numbers, std) + (f" ({missing} {reason})" if missing else "")
