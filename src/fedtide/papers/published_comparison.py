"""Published against measured: one row per case and method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedtide.papers.claims import Claim, Values, Verdict, judge
from fedtide.papers.measures import Measure
from fedtide.papers.paper_spec import MAIN, PaperExperiment, Published, Scale
from fedtide.papers.plan import plan
from fedtide.papers.record import Record


@dataclass(frozen=True)
class Cell:
    """One measure of one method in one case.

    Args:
        published: what the paper prints, and its standard deviation, as far as it does.
        program: the same of the authors' program.
        values: what was measured, by seed; None: diverged, or never reached.
        stopped: in how many seeds the run diverged.
    """

    published: tuple[float, float | None] | None
    program: tuple[float, float | None] | None
    values: Mapping[int, float | None]
    stopped: int

    @property
    def numbers(self) -> list[float]:
        """What was measured in the seeds that give a number."""
        return [value for value in self.values.values() if value is not None]


@dataclass(frozen=True)
class Row:
    """All measures of one method in one case.

    Args:
        case, method: which.
        cells: by measure.
        seeds: how many runs are recorded.
        planned: how many were planned.
        stopped: why a run ended early, if one did.
    """

    case: str
    method: str
    cells: Mapping[str, Cell]
    seeds: int
    planned: int
    stopped: str | None


def compare(paper: PaperExperiment, records: Iterable[Record], scale: Scale) -> list[Row]:
    """Return one row for each case and method that is planned at a scale.

    LogColumns of other settings than the present ones do not count.
    """
    found = {record.key: record for record in records}
    groups: dict[tuple[str, str], list[Record]] = {}
    planned: dict[tuple[str, str], int] = {}
    for run in plan(paper, scale):
        where = run.case, run.method
        planned[where] = planned.get(where, 0) + 1
        record = found.get((paper.name, scale, run.case, run.method, run.seed))
        groups.setdefault(where, [])
        if record is not None and record.fits(run):
            groups[where].append(record)
    return [_row(paper, where, runs, planned[where]) for where, runs in groups.items()]


def _row(
    paper: PaperExperiment, where: tuple[str, str], runs: Sequence[Record], planned: int
) -> Row:
    case, method = where
    cells = {
        name: Cell(
            published=_pair(paper.published, case, method, name),
            program=_pair(paper.program, case, method, name),
            values={run.seed: run.measures.get(name) for run in runs},
            stopped=sum(run.stopped is not None for run in runs),
        )
        for name in paper.measures
    }
    sentences = [run.stopped for run in runs if run.stopped is not None]
    return Row(case, method, cells, len(runs), planned, sentences[0] if sentences else None)


def _pair(
    table: Published, case: str, method: str, measure: str
) -> tuple[float, float | None] | None:
    """Return a printed number and its standard deviation."""
    value = table.get(case, {}).get(method, {}).get(measure)
    if value is None:
        return None
    return (float(value[0]), float(value[1])) if isinstance(value, list) else (float(value), None)


def verdicts(paper: PaperExperiment, rows: Sequence[Row]) -> list[tuple[Claim, Verdict]]:
    """Return every claim of the paper with what the rows of one scale say of it."""
    cases = list(dict.fromkeys(row.case for row in rows))
    by_place = {(row.case, row.method): row for row in rows}
    result = []
    for claim in paper.claims:
        measure = paper.measures[claim.measure]
        values: Values = partial(_values, by_place, claim.measure)
        present = [case for case in cases if (case, claim.method) in by_place]
        higher = measure.better == "higher"
        result.append((claim, judge(claim, present, values, higher, measure.digits)))
    return result


def _values(
    rows: Mapping[tuple[str, str], Row], measure: str, case: str, method: str
) -> Mapping[int, float | None]:
    row = rows.get((case, method))
    return {} if row is None else row.cells[measure].values


def has_printed(table: Published, measure: str) -> bool:
    """Say whether there is a printed number of this measure for any method."""
    return any(measure in numbers for rows in table.values() for numbers in rows.values())


def published_text(cell: Cell, measure: Measure) -> str:
    """Return what the paper prints, for people."""
    if cell.published is None:
        return ""
    value, std = cell.published
    return measure.show([value], std)


def program_text(cell: Cell, measure: Measure) -> str:
    """Return what the authors' program gives, for people."""
    return "" if cell.program is None else measure.show([cell.program[0]], cell.program[1])


def measured_text(cell: Cell, measure: Measure) -> str:
    """Return what was measured, for people: mean ± standard deviation over the seeds."""
    if not cell.values:
        return "not run"
    numbers = cell.numbers
    lacking = len(cell.values) - len(numbers)
    note = "" if not lacking else ("diverged" if cell.stopped else "never reached")
    if not numbers:
        return note
    std = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
    return measure.show(numbers, std) + (f" ({lacking} {note})" if lacking else "")


def place(row: Row) -> str:
    """Return the name of a row, for people."""
    return row.method if row.case == MAIN else f"{row.case}: {row.method}"
