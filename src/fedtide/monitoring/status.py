"""The status of a federation, from its ledger: who is there, their influence, what to expect."""

from __future__ import annotations

import re
from collections.abc import Set
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl

from fedtide.auditing.log.participation_log import ParticipationLog
from fedtide.auditing.statistics.churn import Visits
from fedtide.auditing.statistics.influence import EffectiveObjective, measure_influence
from fedtide.auditing.statistics.pattern import find_pattern
from fedtide.auditing.statistics.rate_estimates import RateEstimates, estimate_rates
from fedtide.auditing.statistics.variance import VarianceModel
from fedtide.monitoring.ledger_window import (
    USED,
    ClientTotals,
    Floats,
    Ints,
    LedgerCounts,
    LedgerWindow,
    Round,
)

CLIENT_STATES = ("present", "away", "gone", "absent", "never", "quarantined")
"""Each client is in one of these states, see `find_states`, or in quarantine."""
PRESENT, AWAY, GONE, ABSENT, NEVER, QUARANTINED = range(len(CLIENT_STATES))


@dataclass(frozen=True, eq=False)
class FairShares:
    """The wanted weights of the clients.

    Args:
        size: N, if it is known; clients that have not been seen count, too.
        given: the wanted weight of each name, summing to 1; clients not in it get 0. None: 1 / N
            each.
    """

    size: int | None = None
    given: dict[str, float] | None = None

    def assign(self, names: list[str]) -> tuple[list[str], Floats]:
        """Return the names of all N clients, empty if unknown, and their shares.

        >>> FairShares(size=4).assign(["ann", "bob"])
        (['ann', 'bob', '', ''], array([0.25, 0.25, 0.25, 0.25]))
        """
        if self.given is not None:
            return list(names), np.array([self.given.get(name, 0.0) for name in names])
        size = max(len(names), self.size or 0)
        return names + [""] * (size - len(names)), np.full(size, 1 / size)


@dataclass(frozen=True)
class Measured:
    """What was measured last under a name; figures that were not finite are NaN.

    Args:
        source: who measured it, see `Ledger.record`.
        name: of the metric.
        round: after which it was measured.
        value: the figure.
        low: the lowest figure in the window.
        high: the highest one.
    """

    source: str
    name: str
    round: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Status:
    """A federation after its last round; arrays of shape (N,) are by client.

    Args:
        federation: its name.
        names: of the clients; empty for those of the N that have not been seen.
        rounds: the last W rounds, or as many as there are.
        wanted: a_n, the fair shares, (N,).
        announced: N as it was given; None: it was not. The ledger may have more clients by now.
        states: an index in CLIENT_STATES, (N,).
        totals: of the clients, over all rounds.
        counts: of the federation as a whole, over all rounds.
        objective: that of the window; None if fewer than two rounds or no update were seen.
        rates: how often updates of each client are used, as estimated from the window; None as
            `objective`.
        step_weights: the mean factor with which updates of each client entered the steps of the
            window, (N,); NaN: unknown.
        norms: the median norm of its updates in the window, (N,); NaN: unknown.
        measured: what was measured after the rounds of the window, as `read_metrics` returns it.
    """

    federation: str
    names: list[str]
    rounds: list[Round]
    wanted: Floats
    announced: int | None
    states: Ints
    totals: ClientTotals
    counts: LedgerCounts
    objective: EffectiveObjective | None
    rates: RateEstimates | None
    step_weights: Floats
    norms: Floats
    measured: pl.DataFrame

    @property
    def last(self) -> Round:
        """The last round."""
        return self.rounds[-1]

    @property
    def round_seconds(self) -> float:
        """The median time between the ends of two rounds of the window; NaN with one round."""
        times = np.array([one.time for one in self.rounds])
        return float(np.median(np.diff(times))) if len(times) > 1 else float("nan")

    @property
    def absences(self) -> Ints:
        """How many rounds ago each client was seen, (N,); −1: never."""
        return np.where(self.totals.last < 0, -1, self.last.number - self.totals.last)

    @property
    def ratios(self) -> Floats:
        """Each client's influence in the window over its fair share, (N,); NaN: unknown."""
        if self.objective is None:
            return np.full(len(self.names), np.nan)
        wanted = np.where(self.wanted > 0, self.wanted, np.nan)
        return np.asarray(self.objective.weights / wanted)

    @property
    def expected(self) -> Floats:
        """The probability that an update of each client is used in a round, (N,).

        It is 0 for clients that are gone or in quarantine, and NaN if nothing is known.
        """
        if self.rates is None:
            return np.full(len(self.names), np.nan)
        return np.where(np.isin(self.states, [GONE, QUARANTINED]), 0.0, self.rates.estimate)

    @cached_property
    def newest(self) -> list[Measured]:
        """What was measured last, by source and name."""
        value = pl.col("value")
        rows = self.measured.group_by("source", "name", maintain_order=True).agg(
            pl.col("round").last(),
            value.last().alias("last"),
            value.min().alias("low"),
            value.max().alias("high"),
        )
        filled = rows.with_columns(pl.col("last", "low", "high").fill_null(np.nan))
        return [Measured(*row) for row in filled.iter_rows()]

    @cached_property
    def by_name(self) -> Ints:
        """The clients in the order of their names, (N,): site-2 before site-10, in either case."""
        keys = [re.split("([0-9]{1,18})", name.casefold()) for name in self.names]
        for parts in keys:
            parts[1::2] = map(int, parts[1::2])
        return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)

    def count_states(self) -> dict[str, int]:
        """Return how many clients are in each state."""
        counts = np.bincount(self.states, minlength=len(CLIENT_STATES))
        return dict(zip(CLIENT_STATES, counts.tolist(), strict=True))


def measure_status(
    window: LedgerWindow,
    federation: str,
    shares: FairShares,
    quarantined: Set[str],
    measured: pl.DataFrame,
) -> Status | None:
    """Return the status that a window shows; None if no round has ended.

    The influence is that of plain averaging, Σ_t q_t^n over the window, normalised, and the L1 skew
    has the audit's 95% interval.

    Args:
        window: the last rounds.
        federation: its name.
        shares: the fair shares of the clients.
        quarantined: the clients in quarantine.
        measured: what was measured after these rounds.
    """
    if not window.rounds:
        return None
    names, wanted = shares.assign(window.names)
    totals = replace(window.totals)
    totals.extend(len(names))
    rounds = list(window.rounds)
    states = find_states(totals, rounds[0].number, rounds[-1].number)
    states[np.isin(names, list(quarantined))] = QUARANTINED
    objective, rates = _audit_rounds(rounds, names, wanted)
    step_weights, norms = _describe_updates(rounds, len(names))
    return Status(
        federation=federation,
        names=names,
        rounds=rounds,
        wanted=wanted,
        announced=shares.size,
        states=states,
        totals=totals,
        counts=deepcopy(window.counts),
        objective=objective,
        rates=rates,
        step_weights=step_weights,
        norms=norms,
        measured=measured,
    )


def find_states(totals: ClientTotals, first: int, last: int) -> Ints:
    """Return the state of each client after round `last`, as an index in CLIENT_STATES.

    never: not seen in any round. present: seen in the last round. gone: silent for longer than
    habits explain (`Visits.find_limits`), while others are there; a
    client stays gone for as many rounds as the window has. absent: not seen in the window, and not,
    or no longer, called gone. away: any other silent client.

    Args:
        totals: of the clients.
        first: the first round of the window.
        last: the last one.
    """
    visits = Visits(totals.first, totals.last, totals.returns, totals.find_peaks(last))
    silent, limits = last - totals.last, visits.find_limits(last, visits.find_appearances(last))
    gone = (silent > limits) & (silent <= limits + last - first + 1)
    gone &= ~visits.find_common_silences(last)
    conditions = [totals.last < 0, silent == 0, gone, totals.last < first]
    return np.select(conditions, [NEVER, PRESENT, GONE, ABSENT], AWAY)


def _audit_rounds(
    rounds: list[Round], names: list[str], wanted: Floats
) -> tuple[EffectiveObjective | None, RateEstimates | None]:
    """Return the objective of these rounds and the clients' rates, by the audit's statistics."""
    first, end = rounds[0].number, rounds[-1].number + 1
    used = [one.reached(USED) for one in rounds]
    clients = np.concatenate(used)
    if end - first < 2 or len(clients) == 0:
        return None, None
    numbers = np.repeat([one.number for one in rounds], [len(some) for some in used])
    weights = np.concatenate([one.weights[one.stages == USED] for one in rounds])
    log = ParticipationLog.from_entries(
        pl.Series(names),
        numbers,
        clients.astype(np.int32),
        (first, end),
        None if np.isnan(weights).any() else weights.astype(np.float32),
    )
    pattern = find_pattern(log)
    rates = estimate_rates(log, pattern)
    objective = measure_influence(log, VarianceModel(log, pattern, rates), wanted)
    return objective, rates


def _describe_updates(rounds: list[Round], clients: int) -> tuple[Floats, Floats]:
    """Return the mean weight and the median norm of each client's updates, (N,); NaN: unknown."""
    columns = ("clients", "step_weights", "norms")
    rows = {name: np.concatenate([vars(one)[name] for one in rounds]) for name in columns}
    weight, norm = (pl.col(name).fill_nan(None) for name in columns[1:])
    found = pl.DataFrame(rows).group_by("clients").agg(weight.mean(), norm.median())
    values = np.full((2, clients), np.nan)
    values[:, found["clients"]] = found.select(columns[1:]).fill_null(np.nan).to_numpy().T
    return values[0], values[1]
