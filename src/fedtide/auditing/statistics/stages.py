"""Availability against selection: at which stage a log's bias arises."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtide.auditing.log.participation_log import Floats, Ints, ParticipationLog
from fedtide.auditing.statistics.distributions import chi2_sf
from fedtide.auditing.statistics.influence import (
    EffectiveObjective,
    average_over_cohorts,
    compare_objectives,
)
from fedtide.auditing.statistics.pattern import Pattern, find_pattern
from fedtide.auditing.statistics.rate_estimates import RateEstimates, estimate_rates
from fedtide.auditing.statistics.skew import SkewEstimate, estimate_skew
from fedtide.auditing.statistics.variance import VarianceModel

_CUTOFF = 1000
"""K of FedAU, whose objective is not used here."""


@dataclass(frozen=True, eq=False)
class StageShift:
    """How the choice of some of the clients of a stage moves the influence.

    Args:
        distance: Σ |w_n − v_n|, w of the clients chosen and v of those they were chosen from: of
            this log, and, with a 95% interval, of the mean weights to which the same way of
            choosing leads if each client is there in the same rounds.
        chance: what the distance would be on average if each round's clients were drawn uniformly.
        p_value: of the hypothesis that they were, against uneven counts.
    """

    distance: SkewEstimate
    chance: float
    p_value: float


@dataclass(frozen=True, eq=False)
class Availability:
    """The bias of availability alone.

    Args:
        objective: of averaging over all available clients, or over clients drawn uniformly from
            them, which has the same weights on average.
        pattern: how clients become available.
        rates: the rates at which they are available.
        counts: the number of rounds in which each client was available, shape (N,).
        never: the clients that were never available.
    """

    objective: EffectiveObjective
    pattern: Pattern
    rates: RateEstimates
    counts: Ints
    never: Ints


@dataclass(frozen=True, eq=False)
class Selection:
    """What selection, and what happens to the selected clients, adds to the bias of availability.

    Args:
        objective: of averaging over the selected clients; None if the log does not distinguish
            them from the used ones.
        selecting: from the available to the selected clients, or to the used ones if the log does
            not distinguish them; None if it does not say who was available.
        dropping: from the selected to the used clients; None if the log does not distinguish them.
        left_out: clients that were available but never selected.
        lost: clients that were selected but never reported an update, and were never used.
        refused: clients that reported updates, of which none was used.
        reports: the number of rounds in which each client reported an update, (N,); None if the log
            does not distinguish reported from used.
        alternatives: by selection, the L1 skew of the expected weights if the server had selected
            in that way as many of this log's available clients in each round; empty if the log
            does not say who was available.
    """

    objective: EffectiveObjective | None
    selecting: StageShift | None
    dropping: StageShift | None
    left_out: Ints
    lost: Ints
    refused: Ints
    reports: Ints | None
    alternatives: dict[str, float]


def measure_availability(log: ParticipationLog, wanted: Floats) -> Availability | None:
    """Return the bias of availability alone; None if the log does not say who was available.

    Args:
        log: the participation log.
        wanted: a_n, shape (N,).
    """
    if log.available is None:
        return None
    objective, pattern, rates = _plain_objective(log.available, wanted)
    counts = log.available.counts
    return Availability(objective, pattern, rates, counts, np.flatnonzero(counts == 0))


def measure_selection(log: ParticipationLog, wanted: Floats) -> Selection | None:
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
    return Selection(
        objective=None if selected is None else _plain_objective(selected, wanted)[0],
        selecting=None if available is None else measure_shift(available, chosen),
        dropping=None if selected is None else measure_shift(selected, log),
        left_out=_indices(unselected & (available.counts > 0)) if available else _indices([]),
        lost=_indices(~unselected & unreported),
        refused=_indices(~unreported & unused),
        reports=None if reported is None else reported.counts,
        alternatives={} if available is None else _try_selections(available, chosen, wanted),
    )


def measure_shift(before: ParticipationLog, after: ParticipationLog) -> StageShift:
    """Return how the influence moves from the clients of a stage to those chosen from them.

    With m_t of the M_t clients A_t chosen, uniformly and independently in each round, the number of
    times that a client is chosen has, whatever the availability, the mean and variance

        E_n = Σ_t π_t 1[n in A_t],    V_n = Σ_t π_t (1 − π_t) 1[n in A_t],    π_t = m_t / M_t

    Σ (k_n − E_n)² / Σ V_n is compared with χ² / f, whose f degrees of freedom give it the variance
    (2 Σ V_n² + Σ κ_n) / (Σ V_n)², κ_n the fourth cumulant.

    The interval of the distance assumes a selection without memory: that clients are chosen with
    probabilities that depend on who else is there, but not on earlier rounds.

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
    squares, total = float(((after.counts - expected) ** 2).sum()), float(variance.sum())
    p_value = 1.0
    if total > 0:
        spread = 2 * float((variance**2).sum()) + max(0.0, float(fourth.sum()))
        freedom = 2 * total**2 / spread
        p_value = float(chi2_sf(squares / total * freedom, freedom))
    weights, _ = average_over_cohorts(after)
    rounds = after.nonempty_rounds
    chosen = after.cohorts > 0
    origin = _sum_over_rounds(before, np.where(chosen, before.cohort_weights, 0.0)) / rounds
    errors = np.sqrt(_sum_over_rounds(before, noise * after.cohort_weights**2)) / rounds
    distance = _estimate_distance(weights, origin, errors)
    return StageShift(distance, float(np.sqrt(2 / np.pi) * errors.sum()), p_value)


def _estimate_distance(weights: Floats, origin: Floats, errors: Floats) -> SkewEstimate:
    """Return Σ |w_n − v_n| with its interval; `errors` are those of a uniform choice."""

    def scale(assumed: Floats) -> Floats:
        """A client chosen f times as often as uniformly has √f times the error."""
        factor = np.divide(assumed, origin, out=np.ones(len(origin)), where=origin > 0)
        return np.asarray(errors * np.sqrt(factor))

    found = scale(weights)

    def variance(slopes: Floats) -> float:
        return float((slopes**2 * found**2).sum())

    return estimate_skew(weights, origin, scale, variance)


def _try_selections(
    available: ParticipationLog, chosen: ParticipationLog, wanted: Floats
) -> dict[str, float]:
    """Return the L1 skew that other selections of as many clients would have had.

    uniform: each available client with the same probability.
    by inverse availability: with probabilities min(1, c_t / p_n), p_n the share of rounds in which
        a client was available.
    least used first: those that were used least often so far; ties go to those available less
        often.
    """
    rates = available.counts / available.length
    uniform, inverse, fewest = (np.zeros(available.size) for _ in range(3))
    used = np.zeros(available.size, dtype=np.int64)
    for t in np.flatnonzero(chosen.cohorts > 0):
        there = available.clients[available.starts[t] : available.starts[t + 1]]
        size = int(chosen.cohorts[t])
        uniform[there] += 1 / len(there)
        inverse[there] += _inclusion_probabilities(1 / rates[there], size) / size
        first = there[np.lexsort((rates[there], used[there]))[:size]]
        used[first] += 1
        fewest[first] += 1 / size
    rounds = chosen.nonempty_rounds
    return {
        name: float(np.abs(sums / rounds - wanted).sum())
        for name, sums in (
            ("uniform", uniform),
            ("by inverse availability", inverse),
            ("least used first", fewest),
        )
    }


def _inclusion_probabilities(sizes: Floats, count: int) -> Floats:
    """Return min(1, c x) with c such that they sum to `count`.

    >>> _inclusion_probabilities(np.array([1.0, 1.0, 6.0]), 2)
    array([0.5, 0.5, 1. ])
    """
    order = np.argsort(-sizes)
    ordered = sizes[order]
    rest = np.cumsum(ordered[::-1])[::-1]  # of the clients from each one on
    scale = (count - np.arange(len(sizes))) / rest
    certain = int(np.argmax(scale * ordered <= 1 + 1e-12))
    return np.asarray(np.minimum(1.0, np.maximum(scale[certain], 0.0) * sizes))


def _plain_objective(
    log: ParticipationLog, wanted: Floats
) -> tuple[EffectiveObjective, Pattern, RateEstimates]:
    pattern = find_pattern(log)
    rates = estimate_rates(log, pattern)
    variances = VarianceModel(log, pattern, rates)
    return compare_objectives(log, variances, rates, wanted, _CUTOFF).plain, pattern, rates


def _sum_over_rounds(log: ParticipationLog, values: Floats) -> Floats:
    """Return Σ_t v_t 1[n in A_t], shape (N,)."""
    sums = np.zeros(log.size)
    for clients, entries, starts in log.iter_client_chunks():
        totals = np.concatenate([[0.0], np.cumsum(values[log.rounds[entries]])])
        sums[clients] = np.diff(totals[starts])
    return sums


def _indices(mask: object) -> Ints:
    return np.flatnonzero(np.asarray(mask, dtype=bool))
