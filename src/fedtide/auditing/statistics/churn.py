"""Churn: clients that left for good, and clients that joined late."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedtide.auditing.log.participation_log import Floats, Ints, ParticipationLog
from fedtide.auditing.statistics.rate_estimates import RateEstimates, wilson_interval

_ALPHA = 0.005
"""The probability that a stationary log has any client called gone, or any called late."""
_TAIL = 20
"""The number of longest silences behind the extrapolation."""
_MIN_SHAPE, _MAX_SHAPE = 0.4, 0.5
"""Bounds of the Weibull shape of the tail of silences. A higher one, up to 1 for the exponential
tail of exchangeable rounds, finds more churn, but fails where all clients share bad weeks."""
_MAX_ENTRIES = 1 << 22
"""Above this number of entries, the silences of a sample of the clients are used."""


@dataclass(frozen=True, eq=False)
class Churn:
    """Which clients left for good and which joined late.

    A client is called gone if, for its habits, its silence at the end of the log is longer than the
    silences that ended with a return make likely; it is called late if the same holds for the log
    in reverse. If no client leaves or joins, each list is empty with probability 0.995.

    Args:
        first: the round of each client's first participation, shape (N,); −1: none.
        last: of its last one, (N,); −1: none.
        gone: the clients that left, by index.
        late: the clients that joined after the start, by index.
        gone_p_values: of each client, corrected for the number of clients (Bonferroni), (N,).
        late_p_values: likewise.
        rates: the rate from joining to leaving, (N,): after the first participation if the client
            is late, before the last one if it is gone.
        low: lower end of a 95% interval of `rates`, (N,).
        high: upper end, (N,).
        tested: whether the log has enough silences with a return to compare with.
    """

    first: Ints
    last: Ints
    gone: Ints
    late: Ints
    gone_p_values: Floats
    late_p_values: Floats
    rates: Floats
    low: Floats
    high: Floats
    tested: bool

    @property
    def states(self) -> NDArray[np.str_]:
        """Each client's state, (N,): "present", "gone", "late", "late, gone" or "never"."""
        states = np.full(len(self.first), "present", dtype="<U10")
        states[self.first < 0] = "never"
        states[self.late] = "late"
        states[self.gone] = "gone"
        states[np.intersect1d(self.late, self.gone)] = "late, gone"
        return states


@dataclass(frozen=True, eq=False)
class _Silences:
    """The silences of a log that ended with a return, for the tests of one direction of time.

    For a client first seen in round f that took part k times since, a silence after round s that
    has lasted until round t has the score

        x = K log((t − f) / (s − f)),    K = min(number of visits, k / max(1, C²))

    with C the coefficient of variation of the distances between its participations, and consecutive
    rounds as one visit. With K = k, x is exponentially distributed with mean 1 if rounds are
    exchangeable; K is the effective k of a client in sessions, which make distances vary.

    Args:
        length: T.
        clients: the number of clients whose silences these are.
        factors: K, (G,).
        starts: s − f, (G,).
        ends: t − f of the last silent round, (G,).
        firsts: f, (G,).
        habits: K of every client at its last participation, (N,); 0 without one.
    """

    length: int
    clients: int
    factors: Floats
    starts: Floats
    ends: Floats
    firsts: Floats
    habits: Floats

    @cached_property
    def scores(self) -> Floats:
        """x at the end of each silence, (G,)."""
        return _score(self.factors, self.starts, self.ends)

    def exceedance(self, score: float) -> float:
        """Return the share of (client, round) pairs in which the silence scores above `score`.

        Only rounds of the second half count: their histories are about as long as those at the end
        of the log. Each such silence counts for at least half a round.
        """
        above = self.scores >= score
        begins = self.firsts[above] + self.starts[above] * np.exp(score / self.factors[above])
        half = self.length // 2
        ends = self.firsts[above] + self.ends[above] + 1
        time = np.maximum(ends - np.maximum(begins, half), 0.5).sum()
        return min(0.5, float(time) / (self.clients * (self.length - half)))

    def find_p_values(self, scores: Floats) -> Floats:
        """Return the p-value of each score of a silence at the end of the log.

        Beyond the 20th highest score the tail is Weibull's, with the shape between that score and
        the highest tenth, less two standard errors; never lighter than for exchangeable rounds.
        """
        largest = np.sort(self.scores)
        near, far = max(4 * _TAIL, len(largest) // 10), _TAIL
        score = float(largest[-far])
        depth = -np.log(self.exceedance(score))
        shape = _MIN_SHAPE
        if len(largest) >= near and 0 < largest[-near] < score:
            reference = -np.log(self.exceedance(float(largest[-near])))
            width = np.log(score / largest[-near])
            error = np.sqrt(2 / (far * depth**2) + 2 / (near * reference**2)) / width
            found = np.log(depth / reference) / width - 2 * error if depth > reference else 0.0
            shape = float(np.clip(found, _MIN_SHAPE, _MAX_SHAPE))
        deep = depth * np.maximum(scores / score, 0) ** shape
        return np.asarray(np.exp(-np.minimum(scores, deep)))


def find_churn(
    log: ParticipationLog, rates: RateEstimates, active: ParticipationLog | None = None
) -> Churn:
    """Return the clients that left for good or joined late.

    A long silence at the end says little about a client that comes in sessions. So each silence is
    scored by the client's habits up to then (see `_Silences`) and compared with those of the log:
    the silences that ended with a return, weighted by how long each exceeds a score, give the
    distribution of the score at a random round. It is extrapolated with a Weibull tail to the
    level 0.005 / N (Bonferroni). With fewer than 20 silences with a return in the second half of
    the log (in the first, for clients that join), no client is called gone (late).

    The intervals of the rates are Wilson's, for the rounds from joining to leaving divided by τ_n.

    Args:
        log: the participation log.
        rates: over the whole log, for τ_n; without intervals there are none here.
        active: the log without pauses of the federation, in which nobody is silent; None: as `log`.
    """
    first, last = _find_ends(log)
    tests = [_test_ends(active or log, reverse) for reverse in (False, True)]
    gone_p, late_p = (np.ones(log.size) if p is None else p for p in tests)
    gone, late = np.flatnonzero(gone_p <= _ALPHA), np.flatnonzero(late_p <= _ALPHA)
    estimate, low, high = _estimate_rates(log, rates, first, last, (gone, late))
    return Churn(
        first=first,
        last=last,
        gone=gone,
        late=late,
        gone_p_values=gone_p,
        late_p_values=late_p,
        rates=estimate,
        low=low,
        high=high,
        tested=all(p is not None for p in tests),
    )


def _estimate_rates(
    log: ParticipationLog, rates: RateEstimates, first: Ints, last: Ints, churn: tuple[Ints, Ints]
) -> tuple[Floats, Floats, Floats]:
    """Return each client's rate from joining to leaving, with its interval.

    The participations that mark these two rounds are left out of the count and of the rounds.
    """
    gone, late = churn
    rounds, count = np.full(log.size, float(log.length)), log.counts.astype(np.float64)
    rounds[late] -= first[late] + 1
    rounds[gone] -= log.length - last[gone]
    count[late] -= 1
    count[gone] -= 1
    estimate = count / np.maximum(rounds, 1)
    draws = np.maximum(rounds, 1) / rates.autocorrelation_time
    low, high = wilson_interval(estimate, draws, freedom=rates.freedom)
    if not rates.intervals:
        low = high = np.full(log.size, np.nan)
    return estimate, low, high


def _find_ends(log: ParticipationLog) -> tuple[Ints, Ints]:
    """Return the rounds of each client's first and last participation, −1 without one."""
    first, last = np.full(log.size, -1, dtype=np.int64), np.full(log.size, -1, dtype=np.int64)
    seen = log.counts > 0
    first[seen] = log.rounds[log.client_starts[:-1][seen]]
    last[seen] = log.rounds[log.client_starts[1:][seen] - 1]
    return first, last


def _test_ends(log: ParticipationLog, reverse: bool) -> Floats | None:
    """Return the p-value of each client's silence at the end, or in reverse at the start, (N,)."""
    first, last = _find_ends(log)
    if reverse:
        first, last = log.length - 1 - last, log.length - 1 - first
    tested = log.counts >= 2
    silences = _collect_silences(log, tested, reverse)
    if len(silences.scores) < _TAIL:
        return None
    start = (last - first)[tested]
    scores = _score(silences.habits[tested], start, log.length - 1 - first[tested])
    p_values = np.ones(log.size)
    p_values[tested] = np.minimum(1.0, tested.sum() * silences.find_p_values(scores))
    return p_values


def _collect_silences(log: ParticipationLog, tested: NDArray[np.bool_], reverse: bool) -> _Silences:
    """Return the silences that ended in the second half of the log with a return."""
    chosen = np.zeros(log.size, dtype=np.bool_)
    chosen[log.sample_clients(_MAX_ENTRIES / len(log.clients))] = True
    parts, habits = [], np.zeros(log.size)
    for clients, entries, starts in log.iter_client_chunks():
        rounds = log.rounds[entries].astype(np.int64)
        if reverse:
            rounds = log.length - 1 - rounds[::-1]
            starts = len(rounds) - starts[::-1]
        counts = np.diff(starts)
        begins = np.repeat(starts[:-1], counts)
        rank = np.arange(len(rounds)) - begins
        factors = _count_effectively(rounds, begins, rank)
        seen = counts > 0
        last = np.zeros(len(counts))
        last[seen] = factors[starts[1:][seen] - 1]
        habits[clients] = last[::-1] if reverse else last
        # Entry i ends a silence after entry i − 1, the (rank − 1)-th since the first.
        ends = np.flatnonzero((rank >= 2) & (rounds > log.length // 2))
        ends = ends[rounds[ends] - rounds[ends - 1] > 1]
        if not chosen.all():
            own = chosen[clients][::-1] if reverse else chosen[clients]
            ends = ends[np.repeat(own, counts)[ends]]
        origin = rounds[begins[ends]]
        numbers = (factors[ends - 1], rounds[ends - 1] - origin, rounds[ends] - 1 - origin, origin)
        parts.append(np.stack(numbers).astype(np.float64))
    lasting, since, until, firsts = np.concatenate(parts, axis=1)
    count = int((tested & chosen).sum())
    return _Silences(log.length, count, lasting, since, until, firsts, habits)


def _count_effectively(rounds: Ints, begins: Ints, rank: Ints) -> Floats:
    """Return K at every participation: the effective number of those since the first, (E,).

    Args:
        rounds: of the participations, by client, (E,).
        begins: the entry of the client's first one, (E,).
        rank: the number of earlier ones, (E,).
    """
    gaps = np.diff(rounds, prepend=rounds[:1]).astype(np.float64)
    gaps[rank == 0] = 0.0

    def sum_since_first(values: Floats) -> Floats:
        totals = np.cumsum(values)
        return np.asarray(totals - totals[begins])

    visits = sum_since_first((gaps > 1).astype(np.float64)) + 1
    count = np.maximum(rank, 1)
    mean = np.maximum((rounds - rounds[begins]) / count, 1e-9)
    variation = sum_since_first(gaps**2) / count / mean**2 - 1
    counted = np.minimum(np.minimum(visits, rank), rank / np.maximum(variation, 1.0))
    return np.asarray(counted, dtype=np.float64)


def _score(factors: Floats | Ints, starts: Floats | Ints, ends: Floats | Ints) -> Floats:
    return np.asarray(factors * np.log(ends / starts))
