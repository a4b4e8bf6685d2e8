"""Availability against selection: at which stage a log's bias arises."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedtide.auditing.log.participation_log import Floats, Ints, ParticipationLog
from fedtide.auditing.statistics.distributions import chi2_sf
from fedtide.auditing.statistics.influence import (
    EffectiveObjective,
    average_over_cohorts,
    measure_influence,
    recorded_weights,
    share_samples,
)
from fedtide.auditing.statistics.pattern import Pattern, find_pattern
from fedtide.auditing.statistics.periodogram import Parts
from fedtide.auditing.statistics.rate_estimates import (
    Dispersion,
    RateEstimates,
    estimate_dispersion,
    estimate_rates,
)
from fedtide.auditing.statistics.runs import count_runs
from fedtide.auditing.statistics.skew import SkewEstimate, estimate_skew
from fedtide.auditing.statistics.variance import VarianceModel

_SAME = 0.1
"""The mean over the rounds of the distance up to which weights are the shares of samples."""


@dataclass(frozen=True, eq=False)
class StageShift:
    """How choosing some of the clients of a stage moves the influence.

    Args:
        distance: Σ |w_n − v_n|, w of unweighted averaging over the clients chosen, and v over those
            they were chosen from: that of this log and, with a 95% interval, that of the mean
            weights to which the same way of choosing leads if availability stays the same.
        p_value: of the hypothesis that the choice was uniform, against uneven counts.
    """

    distance: SkewEstimate
    p_value: float


@dataclass(frozen=True, eq=False)
class AvailabilityBias:
    """The bias of availability alone.

    Args:
        objective: of averaging over all available clients, with their samples as weights if
            `weighted`; otherwise averaging over clients drawn uniformly from them has the same
            weights on average.
        pattern: how clients become available.
        rates: the rates at which they are available.
        counts: the number of rounds in which each client was available, shape (N,).
        never: the clients that were never available.
        weighted: whether clients are weighted by their samples, as the log's own weights are.
    """

    objective: EffectiveObjective
    pattern: Pattern
    rates: RateEstimates
    counts: Ints
    never: Ints
    weighted: bool


@dataclass(frozen=True, eq=False)
class SelectionBias:
    """What selection, and what happens to the selected clients, adds to the bias of availability.

    Args:
        objective: of averaging over the selected clients, with their samples as weights if
            `weighted`; None if the log does not distinguish them from the used ones.
        selecting: from the available to the selected clients, or to the used ones if the log does
            not distinguish them; None if it does not say who was available.
        dropping: from the selected to the used clients; None if the log does not distinguish them.
        left_out: clients that were available but never selected.
        lost: clients that were selected but never reported an update, and were never used.
        refused: clients that reported updates, of which none was used.
        reports: the number of rounds in which each client reported an update, (N,); None if the log
            does not distinguish reported from used.
        weighted: whether clients are weighted by their samples, as the log's own weights are.
    """

    objective: EffectiveObjective | None
    selecting: StageShift | None
    dropping: StageShift | None
    left_out: Ints
    lost: Ints
    refused: Ints
    reports: Ints | None
    weighted: bool


def measure_availability(log: ParticipationLog, wanted: Floats) -> AvailabilityBias | None:
    """Return the bias of availability alone; None if the log does not say who was available.

    Args:
        log: the participation log.
        wanted: a_n, shape (N,).
    """
    if log.available is None:
        return None
    samples = find_samples_in_force(log)
    objective, pattern, rates = _find_objective(log.available, wanted, samples)
    counts = log.available.counts
    never = np.flatnonzero(counts == 0)
    return AvailabilityBias(objective, pattern, rates, counts, never, samples is not None)


def find_samples_in_force(log: ParticipationLog) -> Floats | None:
    """Return the sample counts of the clients if they are the weights of the log, shape (N,).

    Clients without a declared count have the mean of the others. None if the log has no weights or
    sample counts, if its weights are not the shares of the samples in each round, or if all counts
    are equal, so that they weigh nothing.
    """
    recorded = recorded_weights(log)
    if recorded is None or log.samples is None:
        return None
    samples = np.nan_to_num(log.samples, nan=float(np.nanmean(log.samples)))
    gap = float(np.abs(share_samples(log, samples) - recorded).sum())
    if gap > _SAME * recorded.sum() or samples.min() == samples.max():
        return None
    return samples


def measure_selection(log: ParticipationLog, wanted: Floats) -> SelectionBias | None:
    """Return the bias after availability; None if the log has no stage but "used".

    Args:
        log: the participation log.
        wanted: a_n, shape (N,).
    """
    available, selected, reported = log.available, log.selected, log.reported
    if available is None and selected is None:
        return None
    chosen = log if selected is None else selected
    unused = log.counts == 0
    unselected = unused if selected is None else selected.counts == 0
    unreported = unused if reported is None else reported.counts == 0
    was_available = np.zeros_like(unused) if available is None else available.counts > 0
    samples = find_samples_in_force(log)
    return SelectionBias(
        objective=None if selected is None else _find_objective(selected, wanted, samples)[0],
        selecting=None if available is None else measure_shift(available, chosen),
        dropping=None if selected is None else measure_shift(selected, log),
        left_out=np.flatnonzero(unselected & was_available),
        lost=np.flatnonzero(~unselected & unreported),
        refused=np.flatnonzero(~unreported & unused),
        reports=None if reported is None else reported.counts,
        weighted=samples is not None,
    )


def measure_shift(before: ParticipationLog, after: ParticipationLog) -> StageShift:
    """Return how the influence moves from the clients of a stage to those chosen from them.

    If m_t of the M_t clients A_t are chosen uniformly and independently in each round, the number
    k_n of times that client n is chosen has, whatever the availability, the mean and variance

        E_n = Σ_t π_t 1[n in A_t],    V_n = Σ_t π_t (1 − π_t) 1[n in A_t],    π_t = m_t / M_t

    Σ (k_n − E_n)² / Σ V_n is compared with χ² / f, whose f degrees of freedom give it the variance
    (2 Σ V_n² + Σ κ_n) / (Σ V_n)², κ_n the fourth cumulant.

    Cohorts that a server keeps for several rounds, and failures that last, make k_n vary more. The
    variances are therefore multiplied by max(1, D_n), D_n the dispersion of the residuals

        y_t^n = (1[n in S_t] − f_n π_t 1[n in A_t]) / m_t,    f_n = k_n / E_n

    relative to independent draws (see `estimate_dispersion`), and the sum of squares is divided by
    the mean of these factors. The probabilities of a choice may depend on who else is there.

    Args:
        before: the clients to choose from.
        after: the clients chosen, in the same rounds.
    """
    share = np.divide(
        after.cohorts, before.cohorts, out=np.zeros(before.length), where=before.cohorts > 0
    )
    noise = share * (1 - share)
    expected = _sum_over_rounds(before, share)
    variance = _sum_over_rounds(before, noise)
    fourth = _sum_over_rounds(before, noise * (1 - 6 * noise))
    weights, _ = average_over_cohorts(after)
    rounds = after.nonempty_rounds
    chosen = after.cohorts > 0
    origin = _sum_over_rounds(before, np.where(chosen, before.cohort_weights, 0.0)) / rounds
    parts = _sum_over_rounds(before, noise * after.cohort_weights**2)
    readiness = np.divide(after.counts, expected, out=np.zeros(after.size), where=expected > 0)
    memory = _find_memory(before, after, share, readiness, readiness * parts / before.length)
    roots = np.maximum(memory.roots, 1.0)
    squares, total = float(((after.counts - expected) ** 2).sum()), float(variance.sum())
    p_value = 1.0
    if total > 0:
        spread = 2 * float((variance**2).sum()) + max(0.0, float(fourth.sum()))
        freedom = 2 * total**2 / spread
        level = float((roots**2 * variance).sum()) / total
        p_value = float(chi2_sf(squares / (level * total) * freedom, freedom))
    distance = _estimate_distance(
        weights, origin, roots * np.sqrt(parts) / rounds, memory.shape.uncertainty
    )
    return StageShift(distance, p_value)


def _find_memory(
    before: ParticipationLog,
    after: ParticipationLog,
    share: Floats,
    readiness: Floats,
    spread: Floats,
) -> Dispersion:
    """Return the dispersion of the residuals, relative to that of independent rounds.

    Args:
        before: the clients to choose from.
        after: the clients chosen, in the same rounds.
        share: π_t, shape (T,).
        readiness: f_n, (N,).
        spread: the mean variance of a client's part of a round if draws are independent, (N,).
    """
    rounds = np.repeat(np.arange(before.length), before.cohorts)
    entries = _mark_chosen(before, after) - readiness[before.clients] * share[rounds]
    parts, none = Parts(after.cohort_weights, entries), np.zeros(before.size)
    return estimate_dispersion(before, parts, none, spread, count_runs(after), None)


def _mark_chosen(before: ParticipationLog, after: ParticipationLog) -> Floats:
    """Return 1 for each entry of `before`, by round, that `after` has as well, else 0, (E,)."""
    there = _table(before, np.arange(len(before.clients)))
    order, there.data = there.data, np.ones(len(there.data))
    found = np.empty(len(order))
    found[order] = (there + _table(after, np.ones(len(after.clients)))).data - 1
    return found


def _table(log: ParticipationLog, values: NDArray[Any]) -> sparse.csr_array:
    """Return a value for each entry, by round, as a matrix (T, N) with ordered columns."""
    table = sparse.csr_array((values, log.clients.copy(), log.starts), (log.length, log.size))
    table.sort_indices()
    return table


def _estimate_distance(
    weights: Floats, origin: Floats, errors: Floats, uncertainty: float
) -> SkewEstimate:
    """Return Σ |w_n − v_n| with its interval.

    Args:
        weights: w_n, shape (N,).
        origin: v_n, (N,).
        errors: the standard errors of w_n if the choice is uniform, (N,).
        uncertainty: the relative variance that the estimates of their squares have in common.
    """

    def scale(assumed: Floats) -> Floats:
        """A client chosen f times as often as uniformly has √f times the error."""
        factor = np.divide(assumed, origin, out=np.ones(len(origin)), where=origin > 0)
        return np.asarray(errors * np.sqrt(factor))

    found = scale(weights)

    def variance(slopes: Floats) -> float:
        return float((slopes**2 * found**2).sum())

    return estimate_skew(weights, origin, scale, variance, math.sqrt(uncertainty) / 2)


def _find_objective(
    log: ParticipationLog, wanted: Floats, samples: Floats | None
) -> tuple[EffectiveObjective, Pattern, RateEstimates]:
    """Return the objective of averaging over the clients of a stage, weighted by their samples."""
    if samples is not None:
        log = replace(log, weights=share_samples(log, samples).astype(np.float32))
    pattern = find_pattern(log)
    rates = estimate_rates(log, pattern)
    return measure_influence(log, VarianceModel(log, pattern, rates), wanted), pattern, rates


def _sum_over_rounds(log: ParticipationLog, values: Floats) -> Floats:
    """Return Σ_t v_t 1[n in A_t], shape (N,)."""
    sums = np.zeros(log.size)
    for clients, entries, starts in log.iter_client_chunks():
        totals = np.concatenate([[0.0], np.cumsum(values[log.rounds[entries]])])
        sums[clients] = np.diff(totals[starts])
    return sums
