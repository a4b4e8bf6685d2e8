"""Runs of each client's participation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtide.auditing.log.participation_log import Floats, ParticipationLog, find_gaps


@dataclass(frozen=True, eq=False)
class RunCounts:
    """Counts in each client's 0/1 series, all of shape (N,), float64.

    Args:
        length: T.
        ones: k, the number of rounds with the client present.
        first: 1 if it was present in round 0.
        last: 1 if it was present in round T − 1.
        pairs: occurrences of 11.
    """

    length: int
    ones: Floats
    first: Floats
    last: Floats
    pairs: Floats

    @property
    def runs(self) -> Floats:
        """The number of runs of rounds with the client present, (N,)."""
        return self.ones - self.pairs

    @property
    def correlation(self) -> Floats:
        """The lag-1 correlation of a Markov chain, (N,), within ±0.999.

        ρ = 1 − a − b with a = P(off → on) and b = P(on → off), half a count added to each outcome,
        is corrected for its bias −(1 + 3ρ) / T (Kendall 1954).
        """
        from_on = self.ones - self.last
        from_off = self.length - 1 - from_on
        off_on = (self.ones - self.first - self.pairs + 0.5) / (from_off + 1)
        on_off = (from_on - self.pairs + 0.5) / (from_on + 1)
        rho = 1 - off_on - on_off
        return np.clip(rho + (1 + 3 * rho) / self.length, -0.999, 1 - 1 / self.length)

    @property
    def autocorrelation_time(self) -> Floats:
        """τ = (1 + ρ) / (1 − ρ) rounds, that of a Markov chain of this correlation."""
        return np.asarray((1 + self.correlation) / (1 - self.correlation))


def count_runs(log: ParticipationLog) -> RunCounts:
    """Return the counts of every client, in one pass over the entries."""
    pairs = np.zeros(log.size)
    for clients, entries, starts in log.iter_client_chunks():
        adjacent = find_gaps(log.rounds[entries], starts) == 1
        pairs[clients] = np.diff(np.concatenate([[0], np.cumsum(adjacent)])[starts])
    first, last = _presence(log, 0), _presence(log, log.length - 1)
    return RunCounts(log.length, log.counts.astype(np.float64), first, last, pairs)


def _presence(log: ParticipationLog, t: int) -> Floats:
    """Return 1 for the clients present in round t, shape (N,)."""
    present = np.zeros(log.size)
    present[log.clients[log.starts[t] : log.starts[t + 1]]] = 1
    return present
