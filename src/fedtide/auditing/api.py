"""The audit of a participation log: the function and its result."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl
from rich.console import Console

from fedtide.auditing.log.client_table import ClientTable
from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.auditing.log.reader import OnProgress, read_participation_log
from fedtide.auditing.output.json_document import build_document
from fedtide.auditing.output.limits import list_limits
from fedtide.auditing.output.terminal import show
from fedtide.auditing.recommend.advice import Advice
from fedtide.auditing.recommend.findings import Findings, WantedSource
from fedtide.auditing.recommend.from_theory import (
    Training,
    choose_cutoff,
    recommend_learning_rates,
)
from fedtide.auditing.recommend.table import recommend
from fedtide.auditing.statistics.churn import Churn, find_churn
from fedtide.auditing.statistics.coverage import measure_coverage
from fedtide.auditing.statistics.forgetting import measure_forgetting
from fedtide.auditing.statistics.group_influence import measure_group_influence
from fedtide.auditing.statistics.influence import compare_objectives, measure_influence
from fedtide.auditing.statistics.pattern import Pattern, find_pattern
from fedtide.auditing.statistics.rate_estimates import RateEstimates, estimate_rates
from fedtide.auditing.statistics.recent_influence import measure_recent_influence
from fedtide.auditing.statistics.stages import (
    AvailabilityBias,
    measure_availability,
    measure_selection,
)
from fedtide.auditing.statistics.unseen import UnseenClients, estimate_unseen
from fedtide.auditing.statistics.variance import VarianceModel
from fedtide.auditing.statistics.windows import measure_regularity
from fedtide.errors import InvalidInputError, quantify
from fedtide.participation.log.opening import LogSource
from fedtide.participation.log.tables import MemoryTable, to_polars
from fedtide.summary_text import Summary
from fedtide.validation import require_at_least, require_choice, require_positive

if TYPE_CHECKING:
    from fedtide.differential_privacy import Mechanism


class Audit(Findings):
    """The result of an audit: what it found, with its tables, texts and data."""

    def __repr__(self) -> str:
        share = f"{self.objectives.in_force.total_variation:.0%}"
        advised = f", advises {self.advice[0].algorithm}" if self.advice else ""
        return (
            f"Audit({quantify(self.log.size, 'client')}, {quantify(self.log.length, 'round')}: "
            f"{share} of the influence misplaced{advised})"
        )

    def summary(self) -> Summary:
        """Return what `fedtide audit` prints, as text."""
        file = io.StringIO()
        console = Console(file=file, width=100, color_system=None, force_jupyter=False)
        show(self, console)
        return Summary(file.getvalue().rstrip())

    @property
    def limits(self) -> list[str]:
        """Sentences on what no weights can correct, and what log and intervals leave open."""
        return list_limits(self)

    def clients(self) -> pl.DataFrame:
        """Return one row per client: its rate, influence, absences and state.

        The influence is that of the objective in force: of the log's own weights if it has any.
        If the log has stages, also in how many rounds it was available and reported; if it has
        reasons, in how many rounds it was left out for one, and its most frequent reason. Of a
        ledger also the mean weight of its updates in the model's steps, and their median norm.
        """
        first, last = (
            pl.Series(rounds + self.log.first_round).set(pl.Series(rounds < 0), None)
            for rounds in (self.churn.first, self.churn.last)
        )
        stages: dict[str, Any] = {}
        if self.availability is not None:
            stages["available"] = self.availability.counts
        if self.selection is not None and self.selection.reports is not None:
            stages["reported"] = self.selection.reports
        if (refusals := self.log.refusals) is not None:
            stages["left_out"] = refusals.count_rounds(self.log.size)
            stages["reason"] = refusals.list_most_frequent(self.log.size)
        if self.log.updates is not None:
            stages |= self.log.updates.to_dict()
        return pl.DataFrame(
            {
                "client": self.log.names,
                "rounds": self.log.counts,
                "rate": self.rates.estimate,
                "rate_low": self.rates.low,
                "rate_high": self.rates.high,
                "weight": self.objectives.in_force.weights,
                "weight_low": self.objectives.low,
                "weight_high": self.objectives.high,
                "times_its_share": self.objectives.ratios,
                "longest_absence": self.coverage.absences,
                "first_round": first,
                "last_round": last,
                "state": self.churn.states,
                **stages,
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the audit as nested dicts, lists, numbers and strings: the content of `--json`."""
        return build_document(self)


def audit(
    log: LogSource,
    *,
    clients: int | None = None,
    roster: str | Path | MemoryTable | ClientTable | None = None,
    groups: str | None = None,
    columns: Mapping[str, str] | None = None,
    stages: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (),
    round_seconds: float | None = None,
    time_zone: str | None = None,
    round_step: int | None = None,
    from_round: int = 0,
    training: Training | None = None,
    dimension: int = 1_000_000,
    tolerance: float = 0.1,
    wanted: Literal["equal"] | None = None,
    privacy: Mechanism | None = None,
    watch: OnProgress = lambda task, share: None,
) -> Audit:
    """Audit a participation log: which objective its training minimises, and how to correct it.

    Needs neither data nor a model. All rounds from the first to the last of the log count; a round
    without rows is empty. Rows may be in any order.

    Args:
        log: a file of Parquet, CSV, TSV or JSON with columns `round` and `client` (and `stage`), or
            with a list of clients per round; NVFlare's job statistics; a run folder; the URL of a
            ledger (sqlite:///ledger.db); or a table in memory: a DataFrame of Polars, pandas or
            another library, or a list of rows.
        clients: N; numeric ids must then be 0..N − 1. None: the clients of the roster, of the run,
            or of the log.
        roster: all clients of the federation: a file or table with a column `client`, columns of
            groups, and optionally `weight`, the wanted weight of each client (default: equal), and
            `samples`, the sample counts of clients for which the log has none.
        groups: the column of the roster to group by; None: all columns with few values.
        columns: the log's names of its columns, such as {"round": "my_round"}; common names are
            recognised.
        stages: what the values of the column `stage`, or else of the one that has them, mean:
            {"OK": "used", "TIMEOUT": "selected"}. "" stands for a missing value, "other" for every
            value that is not named.
        where: values of columns, such as {"phase": "fit"}; only rows that have them are read.
        ignore: columns that say nothing about who took part. Any other column that is not read and
            tells rows apart is refused, as it may say who failed.
        round_seconds: the length of a round in seconds, for a log with times instead of rounds.
        time_zone: such as "Europe/Berlin": of times that name none, and of midnight, where rounds
            of days begin.
        round_step: the difference between the numbers of consecutive rounds; 1 takes all numbers as
            they are.
        from_round: the first round that counts; clients seen only earlier still belong to the
            federation.
        training: L, σ, δ and others, for the learning rates of the theorems.
        dimension: the number of model parameters d, for the cost of the methods.
        tolerance: the accepted excess irregularity of windows, for the amplification period.
        wanted: "equal" for equal weights of all clients; None: the weights of the roster if it has
            any, else proportional to the samples of the log or the roster, else equal.
        privacy: the privacy mechanism of future training: only methods that it accepts are
            advised. None: none.
        watch: called with the current step and the completed share of it.

    Raises:
        InvalidInputError: a log, roster or argument that cannot be used, or a mechanism that
            accepts no method.

    >>> result = audit(
    ...     pl.DataFrame({"round": [0, 0, 1, 2], "client": ["ann", "bob", "ann", "ann"]})
    ... )
    >>> round(result.objectives.plain.l1_skew, 4), result.coverage.longest_absence
    (0.6667, 2)
    """
    if type(log).__module__.startswith("fedtide.simulation."):
        raise InvalidInputError(
            "log: a result of a run is not a table; give its log, as "
            "ft.audit(result.participation, clients=len(result.clients))"
        )
    require_at_least("dimension", dimension, 1)
    require_positive("tolerance", tolerance)
    table = _read_roster(roster, groups)
    participation = read_participation_log(
        log,
        clients,
        table,
        columns,
        watch,
        stages=stages,
        where=where,
        ignore=ignore,
        round_seconds=round_seconds,
        time_zone=time_zone,
        round_step=round_step,
        from_round=from_round,
    )
    weights, source = _wanted_weights(table, participation, wanted)
    participation = _note_mean_samples(participation, source)
    watch("pattern", 0.0)
    coverage, pattern = measure_coverage(participation), find_pattern(participation)
    watch("rates and objective", 0.0)
    rates = estimate_rates(participation, pattern)
    variances = VarianceModel(participation, pattern, rates)
    objectives = compare_objectives(participation, variances, weights)
    even = objectives.plain
    if source == "roster":
        equal = np.full(participation.size, 1 / participation.size)
        unweighted = VarianceModel(replace(participation, weights=None), pattern, rates)
        even = measure_influence(unweighted.log, unweighted, equal)
    watch("stages and churn", 0.0)
    availability = measure_availability(participation, weights)
    selection = measure_selection(participation, weights)
    churn, unseen = _find_churn_and_unseen(participation, pattern, rates, availability)
    watch("changes over time", 0.0)
    recent = measure_recent_influence(participation, pattern, rates, weights, churn)
    objectives = replace(objectives, recent=recent)
    forgetting = measure_forgetting(participation, pattern.period)
    groupings = table.groups.items() if table else ()
    influence = [
        measure_group_influence(name, labels, participation, coverage, rates, objectives, variances)
        for name, labels in groupings
    ]
    watch("windows", 0.0)
    active = pattern.leave_out_pauses(participation)
    regularity = measure_regularity(
        active, weights, objectives.in_force.weights, tolerance, pattern.period
    )
    learning_rates = {}
    if training is not None:
        learning_rates = recommend_learning_rates(participation, rates, training, regularity.period)
    result = Audit(
        log=participation,
        coverage=coverage,
        rates=rates,
        objectives=objectives,
        even=even,
        availability=availability,
        selection=selection,
        churn=churn,
        unseen=unseen,
        groups=influence,
        pattern=pattern,
        forgetting=forgetting,
        regularity=regularity,
        cutoff=choose_cutoff(participation),
        wanted_source=source,
        dimension=dimension,
        private=privacy is not None,
        learning_rates=learning_rates,
    )
    advice, left_out = recommend(result), list[Advice]()
    if privacy is not None:
        from fedtide.auditing.privacy.private_methods import keep_private  # imports PyTorch

        advice, left_out = keep_private(advice, privacy, participation.size)
    return replace(result, advice=advice, left_out=left_out)


def _read_roster(
    roster: str | Path | MemoryTable | ClientTable | None, groups: str | None
) -> ClientTable | None:
    if roster is None:
        if groups is not None:
            raise InvalidInputError(
                f"groups: {groups!r} names a column of a roster; give one with roster= or --roster"
            )
        return None
    if isinstance(roster, ClientTable):
        return roster
    if isinstance(roster, str | Path):
        return ClientTable.from_file(roster, groups)
    return ClientTable.from_frame(to_polars("roster", roster), groups)


def _find_churn_and_unseen(
    log: ParticipationLog,
    pattern: Pattern,
    rates: RateEstimates,
    availability: AvailabilityBias | None,
) -> tuple[Churn, UnseenClients | None]:
    """Return who left or joined, and how many clients the log has not seen.

    Both use availability where it is known: it shows more of a client than its participation.
    """
    complete = log.complete
    if availability is not None and log.available is not None:  # both or neither
        log, pattern, rates = log.available, availability.pattern, availability.rates
    time = float(np.nan_to_num(pattern.memory.dispersion, nan=1.0))
    active = pattern.leave_out_pauses(log)
    unseen = None if complete else estimate_unseen(active, time)
    return find_churn(log, rates, active), unseen


def _wanted_weights(
    table: ClientTable | None, log: ParticipationLog, wanted: Literal["equal"] | None
) -> tuple[Floats, WantedSource]:
    """Return a_n and where they come from; clients without declared samples get the mean count."""
    if wanted is not None:
        require_choice("wanted", wanted, Literal["equal"])
    elif table is not None and table.wanted is not None:
        return table.wanted, "roster"
    elif log.samples is not None and (total := float(np.nansum(log.samples))) > 0:
        samples = np.nan_to_num(log.samples, nan=total / np.isfinite(log.samples).sum())
        return samples / samples.sum(), "samples"
    return np.full(log.size, 1 / log.size), "equal"


def _note_mean_samples(log: ParticipationLog, source: WantedSource) -> ParticipationLog:
    """Return the log, with a note if clients without a sample count are given the mean."""
    weighs = source == "samples" or log.available is not None or log.selected is not None
    if log.samples is None or not weighs or not (lacking := int(np.isnan(log.samples).sum())):
        return log
    who = "1 client has" if lacking == 1 else f"{lacking:,} clients have"
    note = (
        f"{who} no sample count: where clients weigh by samples, the mean of the others, "
        f"{np.nanmean(log.samples):,.1f}, stands in for it"
    )
    return replace(log, notes=(*log.notes, note))
