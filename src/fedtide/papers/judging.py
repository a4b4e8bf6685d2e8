"""Judges the claims of an experiment: picks the numbers that each claim is about, at each scale."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedtide.papers.claims import Claim
from fedtide.papers.paper_spec import PaperExperiment, Scale
from fedtide.papers.record import Record
from fedtide.papers.rows import Row, compare, find_number
from fedtide.papers.verdicts import Measurements, Outcome, Verdict, judge

DECIDED: dict[Outcome, str] = {"reproduced": "Holds", "not reproduced": "Does not hold"}
"""The outcomes that settle a claim, in words."""

_AT_END = ("last", "mean", "worst-of-last")
"""The kinds of measures (`take`) that read a metric's value towards the end of a run."""

_SHORT = 60.0  # seconds: more seeds are needed where a run takes less


@dataclass(frozen=True)
class Ruling:
    """A claim with its verdicts by the runs at full scale and, if there is one, at laptop scale."""

    paper: str
    claim: Claim
    full: Verdict
    laptop: Verdict | None
    since: str = ""  # from which round on the decisive verdict holds

    @property
    def decisive(self) -> Verdict:
        """The verdict that is counted: at full scale, unless it is settled at laptop scale only."""
        if self.laptop is None or self.full.settled:
            return self.full
        if self.laptop.settled or self.full.outcome == "not tested":
            return self.laptop
        return self.full


@dataclass(frozen=True)
class JudgedExperiment:
    """An experiment with its records, its rows by scale, and its rulings."""

    paper: PaperExperiment
    records: Sequence[Record]
    rows: Mapping[Scale, Sequence[Row]]
    rulings: Sequence[Ruling]

    @property
    def waiting(self) -> int:
        """How many claims wait for a data set of which there is no copy."""
        if self.paper.no_data is None or self.records:
            return 0
        return sum(claim.check is None for claim in self.paper.claims)

    @property
    def counted(self) -> list[Ruling]:
        """The rulings on claims that are counted by outcome: no checks, none without data."""
        return [] if self.waiting else [r for r in self.rulings if r.claim.check is None]


def judge_experiment(paper: PaperExperiment, records: Sequence[Record]) -> JudgedExperiment:
    """Judge all claims of an experiment at each of its scales."""
    rows = {scale: compare(paper, records, scale) for scale in paper.scales}
    verdicts = {scale: judge_claims(paper, of, scale) for scale, of in rows.items()}
    rulings = []
    for i, claim in enumerate(paper.claims):
        full = verdicts["paper"][i]
        ruling = Ruling(paper.name, claim, full, verdicts["laptop"][i] if len(rows) > 1 else None)
        scale: Scale = "paper" if ruling.decisive is full else "laptop"
        since = _describe_onset(paper, rows[scale], scale, claim, ruling.decisive.outcome)
        rulings.append(replace(ruling, since=since))
    return JudgedExperiment(paper, records, rows, rulings)


def judge_claims(paper: PaperExperiment, rows: Sequence[Row], scale: Scale) -> list[Verdict]:
    """Return the verdict on every claim of the paper by the rows of one scale.

    The cases of a claim are those of the paper, whether the scale plans them or not.
    """
    seeds = _seeds_needed(paper, rows)
    untested = Verdict("not tested", "it is about the published size")
    smaller = scale == "laptop" and paper.laptop is not None
    return [
        untested if smaller and c.needs_full_scale else _judge(paper, c, rows, scale, seeds)
        for c in paper.claims
    ]


def _judge(
    paper: PaperExperiment, claim: Claim, rows: Iterable[Row], scale: Scale, seeds: int
) -> Verdict:
    """Return the verdict on a claim by these rows."""
    name, by_place = _measure_name(claim, scale), {(row.case, row.method): row for row in rows}
    measure = paper.measures[name]

    def values(case: str, method: str) -> Mapping[int, float | None]:
        row = by_place.get((case, method))
        found = {} if row is None else row.values(name)
        return {seed: measure.diverged if v is None else v for seed, v in found.items()}

    def printed(case: str, method: str) -> float | None:
        number = find_number(paper.published, (case, method), name)
        return None if number is None else number[0]

    higher = measure.better == "higher"
    cases = [case for case in paper.cases if all(paper.has_method(case, m) for m in claim.methods)]
    return judge(claim, cases, Measurements(values, printed, higher, seeds, measure.digits))


def _measure_name(claim: Claim, scale: Scale) -> str:
    """Return the measure by which a claim is judged at a scale."""
    return (claim.laptop_measure if scale == "laptop" else None) or claim.measure


def _seeds_needed(paper: PaperExperiment, rows: Sequence[Row]) -> int:
    """Return how many seeds a comparison needs: more where runs are short, if they are planned."""
    if paper.deterministic:
        return 1
    seconds = [record.seconds for row in rows for record in row.records]
    if not seconds or float(np.median(seconds)) >= _SHORT:
        return 3
    return min(5, max(3, *(row.planned for row in rows)))


def _describe_onset(
    paper: PaperExperiment, rows: Sequence[Row], scale: Scale, claim: Claim, outcome: Outcome
) -> str:
    """Return from which recorded evaluation on single evaluations give a claim this outcome.

    The claim's measure is replaced by the value of its metric in that round, and judged by the same
    rule. Empty if the claim is not decided, the last evaluation alone does not give the outcome,
    the measure is not the value of a metric at the end of a run, or the runs were not evaluated in
    the same rounds.
    """
    name, seeds = _measure_name(claim, scale), _seeds_needed(paper, rows)
    measure, named = paper.measures[name], [row for row in rows if row.method in claim.methods]
    curves = [record.curve for row in named for record in row.records]
    evaluated = {tuple(curve.get("round", ())) for curve in curves}
    if outcome not in DECIDED or measure.take not in _AT_END or len(evaluated) != 1:
        return ""
    (rounds,), since = evaluated, None
    if len(rounds) < 2 or any(measure.metric not in curve for curve in curves):
        return ""
    for i in reversed(range(len(rounds))):
        at_i = [_at_evaluation(row, name, measure.metric, measure.scale, i) for row in named]
        if _judge(paper, claim, at_i, scale, seeds).outcome != outcome:
            break
        since = rounds[i]
    if since is None:
        return ""
    if since == rounds[-1]:
        return f"; at the last evaluation (round {rounds[-1]:,}), not at the one before"
    return f"; from round {since:,} of {rounds[-1]:,} on"


def _at_evaluation(row: Row, name: str, metric: str, scale: float, i: int) -> Row:
    """Return the row with a metric's value at one evaluation as a measure."""

    def measured(record: Record) -> Record:
        value = record.curve[metric][i]
        return replace(record, measures={name: None if value is None else scale * value})

    return replace(row, records=tuple(map(measured, row.records)))
