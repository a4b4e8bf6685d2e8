"""The audit of a log: everything that was found, in one object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedtide.auditing.log.client_table import ClientTable, read_roster, roster_of
from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.auditing.log.reader import Log, Watch, read_attendance
from fedtide.auditing.output.json_document import plain_audit
from fedtide.auditing.recommend.cutoff import Cutoffs, find_cutoff
from fedtide.auditing.recommend.ranking import Advice, Findings, advise, limits
from fedtide.auditing.recommend.step_sizes import Training, learning_rates
from fedtide.auditing.statistics.coverage import Coverage, cover
from fedtide.auditing.statistics.influence import (
    EffectiveObjectives,
    GroupShares,
    find_objectives,
    group_shares,
)
from fedtide.auditing.statistics.pattern import Pattern, find_pattern
from fedtide.auditing.statistics.rate_estimates import Rates, estimate_rates
from fedtide.auditing.statistics.variance import Noise
from fedtide.auditing.statistics.windows import Regularity, regularity
from fedtide.errors import InvalidInputError
from fedtide.validation import require_at_least, require_positive


@dataclass(frozen=True, eq=False)
class Audit:
    """What a participation log says.

    Args:
        log: who took part in which round.
        coverage: who was seen, how long clients stay away, how large cohorts are.
        rates: how often each client comes, with intervals.
        objectives: what averaging over the cohort minimises, and what other averages would.
        groups: how much each group counts; one entry for each grouping of the roster.
        pattern: how clients come and go, with the tests behind it.
        regularity: how even windows of P rounds are.
        cutoffs: how well FedAU's weights fit with each cutoff.
        learning_rates: by method, where the training was described.
        advice: the methods, best first.
        limits: what no method can mend.
        simulated: whether the methods were replayed.
    """

    log: ParticipationLog
    coverage: Coverage
    rates: Rates
    objectives: EffectiveObjectives
    groups: list[GroupShares]
    pattern: Pattern
    regularity: Regularity
    cutoffs: Cutoffs
    learning_rates: dict[str, dict[str, float]]
    advice: list[Advice]
    limits: list[str]
    simulated: bool

    def clients(self) -> pl.DataFrame:
        """Return one row per client: how often it comes, what it counts, its pattern."""
        plain, wanted = self.objectives.plain.weights, self.objectives.wanted
        return pl.DataFrame(
            {
                "client": self.log.names,
                "rounds": self.log.counts,
                "rate": self.rates.estimate,
                "rate_low": self.rates.low,
                "rate_high": self.rates.high,
                "weight": plain,
                "weight_low": self.objectives.low,
                "weight_high": self.objectives.high,
                "times_its_share": plain / np.maximum(wanted, 1e-300),
                "longest_absence": self.coverage.absences,
                "pattern": self.pattern.clients,
            }
        )

    def plain(self) -> dict[str, Any]:
        """Return the audit as plain data, the content of its JSON."""
        return plain_audit(self)


def audit(
    log: Log,
    *,
    clients: int | None = None,
    roster: str | Path | pl.DataFrame | ClientTable | None = None,
    groups: str | None = None,
    columns: Mapping[str, str] | None = None,
    training: Training | None = None,
    dimension: int = 1_000_000,
    tolerance: float = 0.1,
    simulate: bool = False,
    seed: int = 0,
    watch: Watch = lambda task, share: None,
) -> Audit:
    """Say whose model a participation log trains. Needs no data and no model.

    Rounds count from the first of the log to the last; one without rows is a round with nobody.
    Rows may come in any order.

    Args:
        log: a Parquet, CSV or JSON lines file with columns `round` and `client` (and `stage`), the
            folder of a run, the URL of a deployment's ledger (sqlite:///ledger.db), or a DataFrame.
        clients: N; ids that are numbers must then be 0..N − 1. None: the clients of the roster, of
            the run, or those that the log names.
        roster: who could have come: a file or table with a column `client`, columns of groups, and
            perhaps `weight`, how much each is meant to count (else all alike).
        groups: the column of the roster to report by; None: all that have few values.
        columns: what the log calls its columns, such as {"round": "server_round"}.
        training: L, σ, δ and the like, for the theorems' learning rates.
        dimension: d, the number of the model's parameters, for the cost of the methods.
        tolerance: how near to even a window must be to be called the amplification period.
        simulate: whether to replay each method on quadratics.
        seed: of the replay.
        watch: is told what is being done, and how far it is.

    Raises:
        InvalidInputError: anything that cannot be used, in one sentence.

    >>> found = audit(pl.DataFrame({"round": [0, 0, 1, 2], "client": ["ann", "bob", "ann", "ann"]}))
    >>> round(found.objectives.plain.l1_skew, 4), found.coverage.longest_absence
    (0.6667, 2)
    """
    require_at_least("dimension", dimension, 1)
    require_positive("tolerance", tolerance)
    known = _roster(roster, groups)
    attendance = read_attendance(log, clients, known, columns, watch)
    watch("pattern", 0.0)
    coverage, pattern = cover(attendance), find_pattern(attendance)
    watch("rates and objective", 0.0)
    rates = estimate_rates(attendance, pattern)
    cutoffs = find_cutoff(attendance, pattern.family == "independent")
    wanted = _wanted(known, attendance)
    noise = Noise(attendance, pattern, rates)
    objectives = find_objectives(attendance, noise, rates, wanted, cutoffs.best)
    shares = group_shares(
        attendance,
        pattern,
        noise,
        coverage.absences,
        rates,
        objectives,
        known.groups if known else {},
    )
    watch("windows", 0.0)
    weights = objectives.plain.weights
    windows = regularity(attendance, wanted, weights, tolerance, pattern.period)
    findings = Findings(
        attendance, coverage, rates, objectives, pattern, windows, cutoffs.best, dimension
    )
    advice = advise(findings)
    if simulate:
        from fedtide.auditing.recommend.log_replay import (
            replay,  # brings PyTorch, which nothing else here needs
        )

        watch("replaying", 0.0)
        advice = replay(attendance, advice, wanted, objectives.chance, seed)
    return Audit(
        log=attendance,
        coverage=coverage,
        rates=rates,
        objectives=objectives,
        groups=shares,
        pattern=pattern,
        regularity=windows,
        cutoffs=cutoffs,
        learning_rates=(
            learning_rates(attendance, rates, training, windows.period) if training else {}
        ),
        advice=advice,
        limits=limits(findings),
        simulated=simulate,
    )


def _roster(
    roster: str | Path | pl.DataFrame | ClientTable | None, groups: str | None
) -> ClientTable | None:
    if roster is None:
        if groups is not None:
            raise InvalidInputError(
                f"groups: {groups!r} is a column of a roster; give one with --roster"
            )
        return None
    if isinstance(roster, ClientTable):
        return roster
    if isinstance(roster, pl.DataFrame):
        return roster_of(roster, groups)
    return read_roster(roster, groups)


def _wanted(roster: ClientTable | None, log: ParticipationLog) -> Floats:
    if roster is not None and roster.wanted is not None:
        return roster.wanted
    return np.full(log.size, 1 / log.size)
