"""Judges the claims of an experiment: picks the numbers that each claim is about, at each scale."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedtide.papers.claims import Claim
from fedtide.papers.measures import Measure
from fedtide.papers.paper_spec import PaperExperiment, Scale
from fedtide.papers.published_comparison import Row, compare, find_number
from fedtide.papers.record import Record
from fedtide.papers.verdicts import Measurements, Outcome, Verdict, judge

DECIDED: dict[Outcome, str] = {"reproduced": "Holds", "not reproduced": "Does not hold"}
"""The outcomes that settle a claim, in words."""

Rows = Mapping[Scale, Sequence[Row]]

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

    @property
    def scale(self) -> str:
        """The name of the scale of the decisive verdict."""
        return "full scale" if self.decisive is self.full else "laptop scale"


@dataclass(frozen=True)
class JudgedExperiment:
    """An experiment with its records, rows and rulings."""

    paper: PaperExperiment
    records: Sequence[Record]
    rows: Rows
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
    full = judge_claims(paper, rows["paper"], "paper")
    small: list[Verdict | None] = [None] * len(full)
    if "laptop" in rows:
        small = [verdict for _, verdict in judge_claims(paper, rows["laptop"], "laptop")]
    rulings = [
        Ruling(paper.name, claim, at_full, at_small)
        for (claim, at_full), at_small in zip(full, small, strict=True)
    ]
    rulings = [replace(ruling, since=_describe_onset(paper, rows, ruling)) for ruling in rulings]
    return JudgedExperiment(paper, records, rows, rulings)


def _describe_onset(paper: PaperExperiment, rows: Rows, ruling: Ruling) -> str:
    """Return from which round on a claim has been decided; empty where that cannot be said."""
    scale: Scale = "paper" if ruling.decisive is ruling.full else "laptop"
    outcome = ruling.decisive.outcome
    if outcome not in DECIDED:
        return ""
    found = _lasting_since(paper, rows[scale], scale, ruling.claim, outcome)
    if found is None:
        return ""
    since, last = found
    if since == last:
        return f"; at the last evaluation (round {last:,}), not at the one before"
    return f"; from round {since:,} of {last:,} on"


def judge_claims(
    paper: PaperExperiment, rows: Sequence[Row], scale: Scale
) -> list[tuple[Claim, Verdict]]:
    """Return every claim of the paper with its verdict by the rows of one scale.

    The cases of a claim are those of the paper, whether the scale plans them or not.
    """
    seeds, verdicts = _seeds_needed(paper, rows), []
    for claim in paper.claims:
        if _is_smaller(paper, scale) and claim.needs_full_scale:
            verdicts.append((claim, Verdict("not tested", "it is about the published size")))
            continue
        name = _measure_name(paper, claim, scale)
        measurements = _measurements(paper, rows, name, seeds)
        verdicts.append((claim, judge(claim, _cases_of(paper, claim), measurements)))
    return verdicts


def _is_smaller(paper: PaperExperiment, scale: Scale) -> bool:
    return scale == "laptop" and paper.laptop is not None


def _measure_name(paper: PaperExperiment, claim: Claim, scale: Scale) -> str:
    """Return the measure by which a claim is judged at a scale."""
    return (claim.laptop_measure if _is_smaller(paper, scale) else None) or claim.measure


def _cases_of(paper: PaperExperiment, claim: Claim) -> list[str]:
    """Return the cases that have all methods of a claim."""
    return [case for case in paper.cases if all(paper.has_method(case, m) for m in claim.methods)]


def _seeds_needed(paper: PaperExperiment, rows: Sequence[Row]) -> int:
    """Return how many seeds a comparison needs: more where runs are short, if they are planned."""
    if paper.deterministic:
        return 1
    seconds = [spent for row in rows for spent in row.seconds]
    if not seconds or float(np.median(seconds)) >= _SHORT:
        return 3
    return min(5, max(3, *(row.planned for row in rows)))


def _lasting_since(
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
    cases, since = _cases_of(paper, claim), None
    for i in reversed(range(len(rounds))):
        at_i = [_at_evaluation(row, name, measure, i) for row in named]
        if judge(claim, cases, _measurements(paper, at_i, name, seeds)).outcome != outcome:
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


def _measurements(
    paper: PaperExperiment, rows: Iterable[Row], name: str, seeds: int
) -> Measurements:
    """Return the measured and printed numbers of one measure."""
    measure, measured = paper.measures[name], {(row.case, row.method): row for row in rows}

    def values(case: str, method: str) -> Mapping[int, float | None]:
        row = measured.get((case, method))
        found = {} if row is None else row.cells[name].values
        return {seed: measure.diverged if v is None else v for seed, v in found.items()}

    def printed(case: str, method: str) -> float | None:
        number = find_number(paper.published, case, method, name)
        return None if number is None else number[0]

    return Measurements(values, printed, measure.better == "higher", seeds, measure.digits)
