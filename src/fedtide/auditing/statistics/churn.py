"""Clients that left for good, and clients that joined late: one rule for the audit and the monitor.

The audit uses it for the whole log, forwards and in reverse; `fedtide watch` after each round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtide.auditing.log.participation_log import Floats, Ints, ParticipationLog
from fedtide.auditing.statistics.rate_estimates import RateEstimates, wilson_interval

_LEVEL = 0.001
"""The chance that any client is called gone in a round if the rounds of each are exchangeable."""
_FACTOR = 2
"""How much more unusual, and how much longer, a silence must be than those that have ended."""
_TOGETHER = 0.4
"""If this share of the others fell silent at about the same time, nobody is called gone."""


@dataclass(frozen=True, eq=False)
class Visits:
    """What the rule needs to know of each client, arrays of shape (N,).

    Args:
        first: the first round in which it was seen; −1: none.
        last: the last one; −1: none.
        returns: k, how often it was seen after the first time; in a whole log, after an absence.
        peaks: the highest score of its silences that ended lately, see `find_limits`; 0: none.
    """

    first: Ints
    last: Ints
    returns: Ints
    peaks: Floats

    def find_limits(self, t: int, appeared: int) -> Floats:
        """Return for how many rounds each client may be silent after round t, shape (N,).

        A silence of a client that has lasted until round t scores

            x = k log((t − f) / (s − f))

        with f and s the first and the last round in which it was seen, and k its returns in
        between: exp(−x) is the chance of such a silence if its rounds are exchangeable. It may be
        silent until its score exceeds log(N / 0.001), and twice the highest score of all clients'
        silences that ended lately: cycles and sessions give them high scores. ∞: it never returned.

        Args:
            t: the last round.
            appeared: a lower bound of the limits, see `find_appearances`.
        """
        limits = np.full(len(self.first), np.inf)
        known = self.returns > 0
        if not known.any():
            return limits
        score = max(math.log(len(limits) / _LEVEL), _FACTOR * float(self.peaks.max()))
        with np.errstate(over="ignore"):
            own = (self.last - self.first)[known] * np.expm1(score / self.returns[known])
        limits[known] = np.maximum(own, appeared)
        return limits

    def find_appearances(self, t: int) -> int:
        """Return twice how long 95% of the clients took to appear for the first time.

        Those that appeared in the first quarter of the rounds count as 0. Nobody has left in the
        first cycle of participation, which only clients that appear late reveal.
        """
        first = self.first[self.first >= 0]
        if len(first) == 0:
            return 0
        waits = first - first.min()
        late = np.sort(np.where(4 * waits >= t - first.min(), waits, 0))
        return _FACTOR * int(late[math.ceil(0.95 * (len(late) - 1))])

    def find_common_silences(self, t: int) -> NDArray[np.bool_]:
        """Return whether others fell silent together with each client, shape (N,).

        Of the other clients that were seen within twice the length s of its silence, at least two
        in five have been silent for s / 2: night falls, or a server was away. Then nobody has left.
        """
        ends = np.sort(self.last[self.last >= 0])
        silent = t - self.last
        before = np.searchsorted(ends, t - 2 * silent, side="left")
        quiet = np.searchsorted(ends, t - silent / 2, side="right") - before
        others = len(ends) - before - 1  # without the client itself
        return np.asarray((self.last >= 0) & (quiet - 1 >= _TOGETHER * others))


@dataclass(frozen=True, eq=False)
class Churn:
    """Which clients left for good and which joined late.

    A client is called gone if its silence at the end of the log is longer than its habits, and the
    silences of others, explain (`Visits`); it is called late if the same holds for the log in
    reverse.

    Args:
        first: the round of each client's first participation, shape (N,); −1: none.
        last: of its last one, (N,); −1: none.
        gone: the clients that left, by index.
        late: the clients that joined after the start, by index.
        rates: the rate from joining to leaving, (N,): after the first participation if the client
            is late, before the last one if it is gone.
        low: lower end of a 95% interval of `rates`, (N,).
        high: upper end, (N,).
        tested: whether any client returned after an absence, without which nobody has habits.
    """

    first: Ints
    last: Ints
    gone: Ints
    late: Ints
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


def find_churn(
    log: ParticipationLog, rates: RateEstimates, active: ParticipationLog | None = None
) -> Churn:
    """Return the clients that left for good or joined late.

    The intervals of the rates are Wilson's, for the rounds from joining to leaving divided by τ_n.

    Args:
        log: the participation log.
        rates: over the whole log, for τ_n; without intervals there are none here.
        active: the log without pauses of the federation, in which nobody is silent; None: as `log`.
    """
    first, last = _find_ends(log)
    gone, late = (_find_silent(active or log, reverse) for reverse in (False, True))
    # The participations that mark joining and leaving are left out of the count and the rounds.
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
    tested = bool((last - first >= log.counts).any())
    return Churn(first, last, gone, late, estimate, low, high, tested)


def _find_ends(log: ParticipationLog) -> tuple[Ints, Ints]:
    """Return the rounds of each client's first and last participation, −1 without one."""
    first, last = np.full(log.size, -1, dtype=np.int64), np.full(log.size, -1, dtype=np.int64)
    seen = log.counts > 0
    first[seen] = log.rounds[log.client_starts[:-1][seen]]
    last[seen] = log.rounds[log.client_starts[1:][seen] - 1]
    return first, last


def _find_silent(log: ParticipationLog, reverse: bool) -> Ints:
    """Return the clients that have left at the end of a log, or in reverse at its start."""
    first, last = _find_ends(log)
    end = log.length - 1
    peaks, returns = np.zeros(log.size), np.zeros(log.size, dtype=np.int64)
    for clients, entries, starts in log.iter_client_chunks():
        rounds = log.rounds[entries].astype(np.int64)
        owner = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        begin = first[clients]
        if reverse:
            rounds, owner, begin = end - rounds[::-1], owner[::-1], end - last[clients]
        absent = (np.diff(rounds) > 1) & (owner[1:] == owner[:-1])
        until = np.flatnonzero(absent) + 1
        of = owner[until]
        returns[clients] = np.bincount(of, minlength=len(begin))
        groups = np.flatnonzero(np.diff(of, prepend=-1))
        rank = np.arange(len(of)) - np.repeat(groups, np.diff(np.append(groups, len(of))))
        scored = (rank > 0) & (2 * rounds[until] > log.length)
        until, of, rank = until[scored], of[scored], rank[scored]
        since, past = rounds[until - 1] - begin[of], rounds[until] - 1 - begin[of]
        np.maximum.at(peaks[clients], of, rank * np.log(past / since))
    if reverse:
        first, last = np.where(last < 0, -1, end - last), np.where(first < 0, -1, end - first)
    visits = Visits(first, last, returns, peaks)
    gone = (end - last > visits.find_limits(end, 0)) & ~visits.find_common_silences(end)
    return np.flatnonzero(gone & (log.counts > 0))
