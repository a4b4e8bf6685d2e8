"""The objective now: the influence of the clients in the last rounds of a log."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.auditing.statistics.churn import Churn
from fedtide.auditing.statistics.influence import (
    RecentInfluence,
    find_averaging,
    measure_influence,
    recorded_weights,
    share_entries,
)
from fedtide.auditing.statistics.pattern import Pattern
from fedtide.auditing.statistics.rate_estimates import RateEstimates, estimate_rates
from fedtide.auditing.statistics.runs import RunCounts, count_runs
from fedtide.auditing.statistics.variance import EarlierRounds, VarianceModel

_CHANCE = 0.2
"""The largest accepted expectation of the L1 skew of a window by chance alone."""
_DRAWS = 150
"""The wanted number of effective draws in a window of recorded weights."""
_MIN_RUNS = 5
"""Clients with fewer runs of participation show too little of their own memory."""
_POINTS = 60


def measure_recent_influence(
    log: ParticipationLog,
    pattern: Pattern,
    rates: RateEstimates,
    wanted: Floats,
    churn: Churn | None = None,
) -> RecentInfluence:
    """Return the objective in force in the last W rounds, and its history.

    W is the smallest number of rounds whose L1 skew by chance alone is expected to be at most 0.2,

        Σ_n √(2 / π) s_n <= 0.2,    s_n² = a_n (c_n − a_n) τ_n / W

    (symbols as in `compare_objectives`, τ_n >= 1), but at most a quarter of the log. In a
    periodic log, W is rounded up to whole cycles if these fit into half of the log. So noise moves
    less than a tenth of the influence where the log is long enough, and slow changes are not
    averaged away. Empty rounds do not count in W, except those within a cycle.

    Recorded weights may favour few clients, whose visits alone then decide the skew, and sums of
    few terms are not normal. With recorded weights, W therefore holds at least 150 effective draws,

        W / Σ_n a_n² / p_n >= 150

    up to half of the log, with p_n the rates.

    Args:
        log: the participation log.
        pattern: of the log.
        rates: of the clients in the whole log.
        wanted: a_n, (N,).
        churn: who left or joined: that their rates changed is not memory; None: nobody.
    """
    whole, rounds = log.leave_out_idle(pattern.period or 1)
    if len(rounds) < log.length:
        pattern = replace(pattern, run_counts=count_runs(whole))
    recorded = recorded_weights(whole)
    noise = _chance_of_one_round(whole, pattern.run_counts, wanted)
    end = 1 + int(np.flatnonzero(whole.cohorts)[-1])
    visits = np.maximum(whole.counts, 1) / whole.length
    least = 0.0 if recorded is None else _DRAWS * float((wanted**2 / visits).sum())
    window = min(_choose_window(whole.length, noise, least, pattern.period), end)
    count = end // window
    ends = np.linspace(end - (count - 1) * window, end, min(count, _POINTS)).astype(np.int64)
    recent = _cut(whole, end - window, end)
    influences = [_average(whole, recorded, int(last) - window, int(last)) for last in ends]
    lasting = np.ones(log.size, dtype=np.bool_)
    if churn is not None:
        lasting[np.union1d(churn.gone, churn.late)] = False
    variances = _model_variance(whole, recent, pattern, rates, lasting)
    return RecentInfluence(
        objective=measure_influence(recent, variances, wanted, whole.counts > 0),
        window=int(rounds[end - 1] - rounds[end - window]) + 1,
        ends=rounds[ends - 1] + 1,
        skews=np.array([np.abs(influence - wanted).sum() for influence in influences]),
        chance=np.full(len(ends), min(2.0, noise / np.sqrt(window))),
    )


def _model_variance(
    log: ParticipationLog,
    recent: ParticipationLog,
    pattern: Pattern,
    rates: RateEstimates,
    lasting: NDArray[np.bool_],
) -> VarianceModel:
    """Return the variances of means over the last rounds, with at least the whole log's memory.

    Sessions, and good and bad times that clients share, may be as long as the window, which then
    shows little of their memory. If rates drift, their change would look like memory in the whole
    log, so the window is judged by itself; so are the clients that left or joined.
    """
    own = estimate_rates(recent, pattern)
    if pattern.drift.found:
        return VarianceModel(recent, pattern, own)
    own = replace(own, reason=own.reason or rates.reason)
    whole = _measure_parts(VarianceModel(log, pattern, rates), lasting).dispersion
    earlier = None
    if recent.first_round >= recent.length:  # rounds of the log, which count from 0
        before = _cut(log, 0, recent.first_round)
        runs = replace(pattern, run_counts=count_runs(before))
        earlier = _measure_parts(VarianceModel(before, runs, rates), lasting)
    return VarianceModel(recent, pattern, own, whole.of_clients(lasting), earlier)


def _measure_parts(variances: VarianceModel, lasting: NDArray[np.bool_]) -> EarlierRounds:
    averaging = find_averaging(variances.log)
    # The changed rates of the others would shape the spectral density of all.
    averaging = replace(averaging, weights=np.where(lasting, averaging.weights, 0.0))
    return EarlierRounds(variances, averaging, variances.dispersion(averaging), lasting)


def _choose_window(length: int, noise: float, least: float, cycle: int | None) -> int:
    """Return W; `noise` is the skew by chance for W = 1, `least` the W of enough draws."""
    window = int(min(max(np.ceil((noise / _CHANCE) ** 2), 1), max(1, length // 4)))
    window = max(window, int(min(np.ceil(least), length // 2)))
    if cycle is None:
        return window
    whole = -(-window // cycle) * cycle
    return whole if whole <= length // 2 else window


def _chance_of_one_round(log: ParticipationLog, runs: RunCounts, wanted: Floats) -> float:
    """Return Σ √(2 / π) s_n for W = 1."""
    averaging = find_averaging(log)
    scale = averaging.scale * (log.length / averaging.parts.count_rounds())
    times = _measure_times(runs)
    return float(np.sqrt(2 / np.pi * np.maximum(wanted * (scale - wanted), 0) * times).sum())


def _measure_times(runs: RunCounts) -> Floats:
    """Return τ_n >= 1 from neighbouring rounds alone, (N,), as a change of rates is not chance.

    Clients with few runs show no correlation of their own; they get that of all of them together.
    A client in k_n of T independent rounds has k_n (k_n − 1) / T pairs of neighbours on average.
    """
    times, ones = runs.autocorrelation_time, runs.ones
    rare = ones - runs.pairs < _MIN_RUNS
    pairs = float((runs.pairs - ones * (ones - 1) / runs.length)[rare].sum())
    most = float((ones * (1 - ones / runs.length))[rare].sum())
    correlation = min(pairs / most, 1 - 1 / runs.length) if most > 0 else 0.0
    times[rare] = (1 + correlation) / (1 - correlation)
    return np.maximum(times, 1.0)


def _average(log: ParticipationLog, recorded: Floats | None, low: int, high: int) -> Floats:
    """Return the influence of the clients in the rounds low..high − 1, (N,)."""
    entries = slice(int(log.starts[low]), int(log.starts[high]))
    if recorded is None:
        parts = np.repeat(log.cohort_weights[low:high], log.cohorts[low:high])
    else:
        parts = recorded[entries]
    return share_entries(log.clients[entries], parts, log.size)


def _cut(log: ParticipationLog, low: int, high: int) -> ParticipationLog:
    """Return the log of the rounds low..high − 1."""
    entries = slice(int(log.starts[low]), int(log.starts[high]))
    rounds = np.repeat(np.arange(low, high), log.cohorts[low:high])
    weights = None if log.weights is None else log.weights[entries]
    cut = ParticipationLog.from_entries(
        log.names, rounds, log.clients[entries], (low, high), weights
    )
    return replace(cut, samples=log.samples)
