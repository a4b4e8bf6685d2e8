"""Who was seen, and for how long they stay away."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtide.auditing.log.participation_log import Ints, ParticipationLog


@dataclass(frozen=True, eq=False)
class Coverage:
    """What a log covers.

    Args:
        never: the places of the clients that never came.
        absences: the longest absence of each client, in rounds, shape (N,), the times before its
            first and after its last round included; T for those who never came.
        longest_absence: the longest of those who came; 1 more is E of FedLaAvg (paper 003): every
            client came at least once in any E rounds.
        typical_absence: the median of all absences of at least one round between two appearances.
        empty_rounds: how many rounds nobody took part in.
        cohort: the smallest, median, mean and largest number of participants, empty rounds
            included.
    """

    never: Ints
    absences: Ints
    longest_absence: int
    typical_absence: float
    empty_rounds: int
    cohort: dict[str, float]


def cover(log: ParticipationLog) -> Coverage:
    """Return the coverage of a log."""
    absences = np.full(log.size, log.length, dtype=np.int64)
    tally = np.zeros(log.length + 1, dtype=np.int64)
    for places, entries, begins in log.by_client():
        rounds = log.rounds[entries]
        seen = begins[1:] > begins[:-1]
        starts = begins[:-1][seen]
        away = np.diff(rounds, prepend=-1) - 1
        away[starts] = rounds[starts]  # away before its first round
        if len(starts):
            longest = np.maximum.reduceat(away, starts)
            after = log.length - 1 - rounds[begins[1:][seen] - 1]
            part = absences[places]
            part[seen] = np.maximum(longest, after)
        between = np.ones(len(away), dtype=bool)
        between[starts] = False
        tally += np.bincount(away[between], minlength=log.length + 1)
    seen_at_all = log.counts > 0
    cohorts = log.cohorts
    return Coverage(
        never=np.flatnonzero(~seen_at_all),
        absences=absences,
        longest_absence=int(absences[seen_at_all].max()),
        typical_absence=_median(tally),
        empty_rounds=int((cohorts == 0).sum()),
        cohort={
            "smallest": float(cohorts.min()),
            "median": float(np.median(cohorts)),
            "mean": float(cohorts.mean()),
            "largest": float(cohorts.max()),
        },
    )


def _median(tally: Ints) -> float:
    """Return the median absence of at least one round, from how often each length occurred."""
    sums = np.cumsum(tally[1:])
    if sums[-1] == 0:
        return 0.0
    low = int(np.searchsorted(sums, (sums[-1] + 1) // 2)) + 1
    high = int(np.searchsorted(sums, sums[-1] // 2 + 1)) + 1
    return (low + high) / 2
