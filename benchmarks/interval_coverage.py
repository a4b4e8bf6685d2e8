"""Coverage of the audit's 95% intervals in families of participation whose truth is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from audit_record import TABLES, Row, Share, report
from fedtide.auditing import ParticipationLog
from fedtide.auditing.recommend.findings import is_biased
from fedtide.auditing.statistics.influence import compare_objectives
from fedtide.auditing.statistics.pattern import find_pattern
from fedtide.auditing.statistics.rate_estimates import estimate_rates
from fedtide.auditing.statistics.recent_influence import measure_recent_influence
from fedtide.auditing.statistics.variance import VarianceModel
from participation_families import FAMILIES, Known

_AT_ONCE = 20
_SLACK = 1e-9
_NO_SKEW = 0.005
"""Rates that are measured differ by this much if they are equal."""


@dataclass(frozen=True)
class Coverage:
    """The share of the intervals of one log that cover; NaN if the log has none.

    Args:
        rates: among the clients' rates.
        weights: among the clients' weights.
        skew: 1 if the interval of the L1 skew covers, else 0.
        now: the same for the last rounds.
        verdict: 1 if there is no skew, but the audit says that averaging favours some clients.
    """

    rates: float
    weights: float
    skew: float
    now: float = np.nan
    verdict: float = np.nan


def tabulate_coverage(logs: int, clients: int, rounds: int, only: str, record: bool) -> None:
    """Print, and record, coverage of intervals, wrong verdicts, and logs without intervals."""
    print(f"{clients} clients, about {rounds} rounds\n{TABLES['coverage'].head()}")
    for name, make in FAMILIES.items():
        if only in name:
            found = measure(make(clients), rounds, logs)
            report("coverage", name, summarise(found), record)


def summarise(found: list[Coverage]) -> Row:
    """Return the shares that cover among the logs that have intervals."""
    rates, weights, skews, now, verdicts = (
        np.array([value for value in column if not np.isnan(value)])
        for column in zip(*(vars(one).values() for one in found), strict=True)
    )
    return {
        "rates": Share.average(rates) if len(rates) else None,
        "weights": Share.average(weights) if len(weights) else None,
        "skew": Share.count(skews > 0.5) if len(skews) else None,
        "now": Share.count(now > 0.5) if len(now) else None,
        "verdict": Share.count(verdicts > 0.5) if len(verdicts) else None,
        "without": Share.count([bool(np.isnan(one.rates)) for one in found]),
    }


def measure(known: Known, rounds: int, logs: int) -> list[Coverage]:
    length = rounds // known.step * known.step
    found: list[Coverage] = []
    for seed in range(0, logs, _AT_ONCE):
        drawn = known.draw(np.random.default_rng(seed), min(_AT_ONCE, logs - seed), length)
        found += [compare(known, present) for present in drawn]
    return found


def compare(known: Known, present: NDArray[np.bool_]) -> Coverage:
    """Return which intervals of a log cover the truth."""
    numbers, ids = np.nonzero(present)
    length, clients = present.shape
    names = pl.Series("client", np.arange(clients))
    shares = None
    if known.samples is not None:
        parts = present * known.samples
        shares = (parts / parts.sum(axis=1, keepdims=True))[numbers, ids].astype(np.float32)
    log = ParticipationLog.from_entries(names, numbers, ids.astype(np.int32), (0, length), shares)
    pattern = find_pattern(log)
    rates = estimate_rates(log, pattern)
    if not rates.intervals:
        return Coverage(np.nan, np.nan, np.nan)
    variances, wanted = VarianceModel(log, pattern, rates), np.full(clients, 1 / clients)
    objectives = compare_objectives(log, variances, wanted)
    weights = skew = now = verdict = np.nan
    if np.isfinite(known.weights).all():
        if shares is None:  # of recorded weights, an audit has no intervals of single clients
            weights = covered(objectives.low, known.weights, objectives.high)
        low, high = objectives.in_force.interval
        skew = covered(np.array(low), np.array(known.skew), np.array(high))
        recent = measure_recent_influence(log, pattern, rates, wanted).objective
        low, high = recent.interval
        if not np.isnan(low):
            now = covered(np.array(low), np.array(known.skew), np.array(high))
        if known.skew < _NO_SKEW:
            verdict = is_biased(objectives.in_force.skew) or is_biased(recent.skew)
    return Coverage(covered(rates.low, known.rates, rates.high), weights, skew, now, float(verdict))


def covered(low: NDArray, truth: NDArray, high: NDArray) -> float:
    return float(((low <= truth + _SLACK) & (truth <= high + _SLACK)).mean())
