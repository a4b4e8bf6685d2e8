"""Influence of each client: the objective that training along a log really minimises."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtide.auditing.log.participation_log import (
    Floats,
    Ints,
    ParticipationLog,
    find_first_entries,
)
from fedtide.auditing.statistics.periodogram import Parts
from fedtide.auditing.statistics.rate_estimates import Dispersion, wilson_interval
from fedtide.auditing.statistics.skew import SkewEstimate, estimate_skew
from fedtide.auditing.statistics.variance import Averaging, VarianceModel

_DOUBT = 0.05
"""The probability of memory longer than the log above which there is no verdict on a skew.

Of logs without a skew, but with memory on every time scale (Hurst exponents 0.7 and 0.75), 0.67 and
0.82 would otherwise have one; with it 0.07 and 0.08. Chosen with the former in view only.
"""


@dataclass(frozen=True, eq=False)
class Targets:
    """The weights that an objective should have, and those that it can have.

    Args:
        wanted: a_n of each client, shape (N,), summing to 1.
        reachable: a_n / Σ a_m for the clients m that took part, 0 for the others, (N,).
    """

    wanted: Floats
    reachable: Floats

    @classmethod
    def of(cls, wanted: Floats, seen: NDArray[np.bool_]) -> Targets:
        """Return the targets; `reachable` is `wanted` if all or none with a weight took part."""
        reachable = np.where(seen, wanted, 0.0)
        total = float(reachable.sum())
        return cls(wanted, wanted if total == 0 or seen[wanted > 0].all() else reachable / total)


@dataclass(frozen=True, eq=False)
class EffectiveObjective:
    """The weights w_n of the objective Σ w_n F_n that a method minimises along the log.

    Args:
        method: the way of averaging.
        weights: w_n, shape (N,), summing to 1.
        skew: Σ |w_n − a_n|, from 0 to 2, with a_n the wanted weights: that of this log, and an
            estimate for the underlying process.
        correctable: the same for `Targets.reachable`: the skew that other weights could correct.
    """

    method: str
    weights: Floats
    skew: SkewEstimate
    correctable: SkewEstimate

    @property
    def l1_skew(self) -> float:
        """Σ |w_n − a_n| of this log."""
        return self.skew.observed

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval for the L1 skew of the underlying process."""
        return self.skew.interval

    @property
    def total_variation(self) -> float:
        """Half of the L1 skew of this log: the share of the influence that is misplaced in it."""
        return self.l1_skew / 2


@dataclass(frozen=True, eq=False)
class RecentInfluence:
    """The objective of the last rounds, and the skew of windows of the same length over time.

    Args:
        objective: of the last window.
        window: how many rounds of the log it spans.
        ends: one past the last round of each window, ascending, shape (K,). All windows hold the
            same number of rounds, without the empty ones that are left out in whole cycles.
        skews: Σ |w_n − a_n| of each window, (K,).
        chance: what this sum is expected to be by chance if every w_n is a_n, (K,).
    """

    objective: EffectiveObjective
    window: int
    ends: Ints
    skews: Floats
    chance: Floats


@dataclass(frozen=True, eq=False)
class ObjectiveComparison:
    """The objective of averaging over the cohort, and that of the log's own weights.

    Args:
        plain: of averaging over the cohort (FedAvg).
        wanted: a_n, (N,).
        low: lower end of a 95% interval of each weight of the objective in force, (N,). It is for a
            client named beforehand, not for one chosen because its weight is extreme.
        high: upper end, (N,).
        beyond_chance: the clients whose interval excludes a_n even if it is widened to hold for all
            clients together, so also for one chosen because its weight is extreme, (N,).
        dispersion: of the parts of rounds whose means these weights are.
        given: of the log's own weights, w_n ∝ Σ_t q_t^n, if it has any (see `recorded_weights`).
        recent: the objective in force in the last rounds, and its history.
    """

    plain: EffectiveObjective
    wanted: Floats
    low: Floats
    high: Floats
    beyond_chance: NDArray[np.bool_]
    dispersion: Dispersion
    given: EffectiveObjective | None = None
    recent: RecentInfluence | None = None

    @property
    def in_force(self) -> EffectiveObjective:
        """The objective of the log's own weights if it has any, else of plain averaging."""
        return self.given or self.plain

    @property
    def now(self) -> EffectiveObjective:
        """The objective in force in the last rounds; an audit always has it."""
        assert self.recent is not None
        return self.recent.objective

    @property
    def ratios(self) -> Floats:
        """Each client's weight in force over its wanted weight, (N,); NaN if that is 0."""
        return divide_by_wanted(self.in_force.weights, self.wanted)


def compare_objectives(
    log: ParticipationLog,
    variances: VarianceModel,
    wanted: Floats,
) -> ObjectiveComparison:
    """Return the objectives that averaging minimises along the log.

    A client's part y of a round, 0 if absent, has the variance w_n (c_n − w_n), where
    c_n = E[y²] / E[y]; with cohorts of constant size M, c_n = 1 / M and y / c_n is Bernoulli. The
    weights have the standard errors

        s_n² = w_n (c_n − w_n) D_n / T

    with D_n the dispersion of the parts. The same holds for the log's own weights q_t^n; if it has
    any, `low` and `high` are their intervals.

    Args:
        log: the participation log.
        variances: of means over its rounds.
        wanted: a_n, (N,).
    """
    targets = Targets.of(wanted, log.counts > 0)
    cohorts = Averaging(Parts(variances.log.cohort_weights), *average_over_cohorts(log))
    dispersion = variances.dispersion(cohorts)
    plain = _objective("fedavg", cohorts, targets, variances, dispersion)
    in_force, given = cohorts, None
    if recorded_weights(log) is not None:
        in_force = find_averaging(variances.log)
        dispersion = variances.dispersion(in_force)
        given = _objective("given", in_force, targets, variances, dispersion)
    weights, scale = in_force.weights, in_force.scale

    shares = np.minimum(weights / scale, 1.0)
    draws = in_force.parts.count_rounds() / np.maximum(dispersion.values, 1e-9)
    low, high = wilson_interval(shares, draws, dispersion.freedom)
    lowest, highest = wilson_interval(shares, draws, dispersion.freedom, family=log.size)
    beyond = (lowest * scale > wanted) | (highest * scale < wanted)
    if not variances.intervals:
        low = high = np.full(log.size, np.nan)
    return ObjectiveComparison(
        plain=plain,
        wanted=wanted,
        low=np.minimum(low * scale, weights),
        high=np.maximum(high * scale, weights),
        beyond_chance=beyond & variances.intervals,
        dispersion=dispersion,
        given=given,
    )


def measure_influence(
    log: ParticipationLog,
    variances: VarianceModel,
    wanted: Floats,
    seen: NDArray[np.bool_] | None = None,
) -> EffectiveObjective:
    """Return the objective of the log's own weights if it has any, else of plain averaging.

    Args:
        log: the participation log.
        variances: of means over its rounds.
        wanted: a_n, (N,).
        seen: the clients that took part, here or earlier in a longer log, (N,); None: in this log.
    """
    averaging = find_averaging(variances.log)
    method = "fedavg" if averaging.parts.entries is None else "given"
    targets = Targets.of(wanted, log.counts > 0 if seen is None else seen)
    return _objective(method, averaging, targets, variances)


def find_averaging(log: ParticipationLog) -> Averaging:
    """Return the averaging with the log's own weights if it has any, else over the cohort."""
    recorded = recorded_weights(log)
    if recorded is None:
        return Averaging(Parts(log.cohort_weights), *average_over_cohorts(log))
    entries = recorded * (log.length / float(recorded.sum()))
    return Averaging(Parts(np.ones(log.length), entries), *average_recorded(log, recorded))


def recorded_weights(log: ParticipationLog) -> Floats | None:
    """Return q_t^n of each entry by round, (E,); None if not recorded or all 0."""
    if log.weights is None or not log.weights.any():
        return None
    return log.weights.astype(np.float64)


def list_entry_weights(log: ParticipationLog, chosen: Ints) -> Floats:
    """Return q_t^n of the entries of these clients, by client: recorded, or else 1 / |S_t|."""
    recorded = recorded_weights(log)
    if recorded is None:
        return np.asarray(log.cohort_weights[log.of_clients(log.rounds, chosen)])
    return log.of_clients(log.sort_by_client(recorded), chosen)


def share_entries(clients: NDArray[np.int32], weights: Floats, size: int) -> Floats:
    """Return each client's share of the total weight of some entries, (N,); 0 if that is 0."""
    sums = np.bincount(clients, weights, minlength=size)
    return sums / max(float(sums.sum()), 1e-300)


def share_samples(log: ParticipationLog, samples: Floats) -> Floats:
    """Return each entry's share of the samples of its round, by round, (E,).

    Args:
        log: the participation log.
        samples: of each client, (N,).
    """
    counts = samples[log.clients]
    rounds = np.repeat(np.arange(log.length), log.cohorts)
    sums = np.bincount(rounds, counts, minlength=log.length)[rounds]
    return np.divide(counts, sums, out=np.zeros(len(counts)), where=sums > 0)


def average_over_cohorts(log: ParticipationLog) -> tuple[Floats, Floats]:
    """Return the weights of averaging over the cohort, and their scale, each of shape (N,).

        w_n = mean over nonempty rounds of 1[n in S_t] / |S_t|    (Rahimi & Kalogerias 2025, eq. 3)

    The scale is c_n = E[y²] / E[y] for y = 1[n in S_t] / |S_t|, so that y has the variance
    w_n (c_n − w_n).
    """
    weights, squares = np.zeros((2, log.size))
    for clients, entries, starts in log.iter_client_chunks():
        share = log.cohort_weights[log.rounds[entries]]
        weights[clients] = _sum_by_client(share, starts)
        squares[clients] = _sum_by_client(share**2, starts)
    usual = squares.sum() / max(weights.sum(), 1e-300)
    scale = np.divide(squares, weights, out=np.full(log.size, usual), where=weights > 0)
    return weights / log.nonempty_rounds, scale


def average_recorded(log: ParticipationLog, recorded: Floats) -> tuple[Floats, Floats]:
    """Return w_n ∝ Σ_t q_t^n and its scale, as `average_over_cohorts`, for weights q, (E,)."""
    sums = np.bincount(log.clients, recorded, minlength=log.size)
    squares = np.bincount(log.clients, recorded**2, minlength=log.size)
    total = float(sums.sum())
    usual = squares.sum() / total
    scale = np.divide(squares, sums, out=np.full(log.size, usual), where=sums > 0)
    return sums / total, scale * log.length / total


def divide_by_wanted(weights: Floats, wanted: Floats) -> Floats:
    """Return each weight as a multiple of its wanted weight; NaN where that is 0."""
    none = np.full(len(wanted), np.nan)
    return np.asarray(np.divide(weights, wanted, out=none, where=wanted > 0))


def _sum_by_client(values: Floats, starts: Ints) -> Floats:
    totals = np.zeros(len(starts) - 1)
    if len(values):
        totals[starts[1:] > starts[:-1]] = np.add.reduceat(values, find_first_entries(starts))
    return totals


def _objective(
    method: str,
    averaging: Averaging,
    targets: Targets,
    variances: VarianceModel,
    dispersion: Dispersion | None = None,
) -> EffectiveObjective:
    """Return the objective whose weights are the means of the clients' parts of the rounds.

    Args:
        method: the way of averaging.
        averaging: the parts.
        targets: for the weights.
        variances: of means over the rounds.
        dispersion: of the parts; None: estimated here.
    """
    parts, weights, scale = averaging.parts, averaging.weights, averaging.scale
    if not variances.intervals:
        none = SkewEstimate.without_interval
        return EffectiveObjective(
            method, weights, none(weights, targets.wanted), none(weights, targets.reachable)
        )
    known = dispersion or variances.dispersion(averaging)
    times = known.roots**2 / parts.count_rounds()

    def errors(assumed: Floats) -> Floats:
        return np.asarray(np.sqrt(np.maximum(assumed * (scale - assumed), 0) * times))

    def variance(slopes: Floats) -> float:
        return variances.variance(slopes, parts, known)

    common = np.sqrt(known.shape.uncertainty) / 2  # of √D_n

    def estimate(target: Floats) -> SkewEstimate:
        found = estimate_skew(weights, target, errors, variance, common)
        return replace(found, doubtful=known.long_memory > _DOUBT)

    skew = correctable = estimate(targets.wanted)
    if targets.reachable is not targets.wanted:
        correctable = estimate(targets.reachable)
    return EffectiveObjective(method, weights, skew, correctable)
