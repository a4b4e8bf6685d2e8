"""The claims of the experiments with their verdicts at both scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedtide.papers.claim_judging import judge_claims, lasting_since
from fedtide.papers.claims import Claim
from fedtide.papers.paper_spec import SCALES, PaperExperiment, Scale
from fedtide.papers.published_comparison import Row, compare
from fedtide.papers.record import Record
from fedtide.papers.verdicts import Outcome, Verdict

DECIDED: dict[Outcome, str] = {"reproduced": "Holds", "not reproduced": "Does not hold"}
"""The outcomes that settle a claim, in words."""

Rows = Mapping[Scale, Sequence[Row]]


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
    scales = SCALES if paper.laptop is not None else SCALES[:1]
    rows = {scale: compare(paper, records, scale) for scale in scales}
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
    found = lasting_since(paper, rows[scale], scale, ruling.claim, outcome)
    if found is None:
        return ""
    since, last = found
    if since == last:
        return f"; at the last evaluation (round {last:,}), not at the one before"
    return f"; from round {since:,} of {last:,} on"
