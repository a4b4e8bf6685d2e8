"""Compares published with measured numbers: one row per case and method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedtide.papers.claims import Claim
from fedtide.papers.measures import Measure
from fedtide.papers.paper_spec import MAIN, PaperExperiment, PublishedNumbers, Scale
from fedtide.papers.plan import PlannedRun, plan
from fedtide.papers.record import Curve, Record
from fedtide.papers.verdicts import Evidence, Outcome, Verdict, judge

_AT_END = ("last", "mean", "worst-of-last")
"""What a measure takes of a metric, if it is its value towards the end of a run."""

_SHORT = 60.0  # seconds: more seeds are needed where a run takes less

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
            published=_number(paper.published, case, method, name),
            program=_number(paper.program, case, method, name),
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


def _number(table: PublishedNumbers, case: str, method: str, measure: str) -> Number | None:
    value = table.get(case, {}).get(method, {}).get(measure)
    if value is None:
        return None
    return (float(value[0]), float(value[1])) if isinstance(value, list) else (float(value), None)


def judge_claims(
    paper: PaperExperiment, rows: Sequence[Row], scale: Scale
) -> list[tuple[Claim, Verdict]]:
    """Return every claim of the paper with its verdict by the rows of one scale.

    The cases of a claim are those of the paper, whether the scale plans them or not.
    """
    seeds, places = _seeds_needed(paper, rows), _list_places(paper)
    verdicts = []
    for claim in paper.claims:
        if _is_smaller(paper, scale) and claim.needs_full_scale:
            verdicts.append((claim, Verdict("not tested", "it is about the published size")))
            continue
        name = _measure_name(paper, claim, scale)
        cases = _cases_of(paper, claim, places)
        verdicts.append((claim, judge(claim, cases, _evidence(paper, rows, name, seeds))))
    return verdicts


def _is_smaller(paper: PaperExperiment, scale: Scale) -> bool:
    return scale == "laptop" and paper.laptop is not None


def _measure_name(paper: PaperExperiment, claim: Claim, scale: Scale) -> str:
    """Return the measure by which a claim is judged at a scale."""
    return (claim.laptop_measure if _is_smaller(paper, scale) else None) or claim.measure


def _list_places(paper: PaperExperiment) -> set[tuple[str, str]]:
    """Return the cases and methods of the paper."""
    return {(run.case, run.method) for run in plan(paper, seeds=[0])}


def _cases_of(paper: PaperExperiment, claim: Claim, places: set[tuple[str, str]]) -> list[str]:
    """Return the cases that have all methods of a claim."""
    return [case for case in paper.cases if all((case, m) in places for m in claim.methods)]


def _seeds_needed(paper: PaperExperiment, rows: Sequence[Row]) -> int:
    """Return how many seeds a comparison needs: more where runs are short, if they are planned."""
    if paper.deterministic:
        return 1
    seconds = [spent for row in rows for spent in row.seconds]
    if not seconds or float(np.median(seconds)) >= _SHORT:
        return 3
    return min(5, max(3, *(row.planned for row in rows)))


def lasting_since(
    paper: PaperExperiment, rows: Sequence[Row], scale: Scale, claim: Claim, outcome: Outcome
) -> tuple[int, int] | None:
    """Return the recorded round from which on single evaluations give a claim this outcome.

    Every later recorded evaluation does, too. The claim's measure is replaced by the value of its
    metric in that round, and judged by the same rule.

    Returns:
        the round, and that of the last evaluation; None: the last evaluation alone does not give
        the outcome, the measure is not the value of a metric at the end of a run, or the runs were
        not evaluated in the same rounds.
    """
    name = _measure_name(paper, claim, scale)
    measure, seeds = paper.measures[name], _seeds_needed(paper, rows)
    named = [row for row in rows if row.method in claim.methods]
    curves = [curve for row in named for curve in row.curves.values()]
    evaluated = {tuple(curve.get("round", ())) for curve in curves}
    if measure.take not in _AT_END or len(evaluated) != 1:
        return None
    (rounds,) = evaluated
    if len(rounds) < 2 or any(measure.metric not in curve for curve in curves):
        return None
    cases, since = _cases_of(paper, claim, _list_places(paper)), None
    for i in reversed(range(len(rounds))):
        at_i = [_at_evaluation(row, name, measure, i) for row in named]
        if judge(claim, cases, _evidence(paper, at_i, name, seeds)).outcome != outcome:
            break
        since = rounds[i]
    return None if since is None else (int(since), int(rounds[-1] or 0))


def _at_evaluation(row: Row, name: str, measure: Measure, i: int) -> Row:
    """Return the row with the measure's value at one evaluation of its curves."""
    values = {
        seed: None if (value := curve[measure.metric][i]) is None else measure.scale * value
        for seed, curve in row.curves.items()
    }
    cells = {**row.cells, name: replace(row.cells[name], values=values)}
    return replace(row, cells=cells)


def _evidence(paper: PaperExperiment, rows: Iterable[Row], name: str, seeds: int) -> Evidence:
    """Return the measured and printed numbers of one measure."""
    measure, measured = paper.measures[name], {(row.case, row.method): row for row in rows}

    def values(case: str, method: str) -> Mapping[int, float | None]:
        row = measured.get((case, method))
        found = {} if row is None else row.cells[name].values
        return {seed: measure.diverged if v is None else v for seed, v in found.items()}

    def printed(case: str, method: str) -> float | None:
        number = _number(paper.published, case, method, name)
        return None if number is None else number[0]

    return Evidence(values, printed, measure.better == "higher", seeds, measure.digits)


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
