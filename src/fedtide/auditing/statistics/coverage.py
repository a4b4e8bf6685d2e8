"""Coverage of a log: clients seen, absences, cohort sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtide.auditing.log.participation_log import Ints, ParticipationLog, find_first_entries


@dataclass(frozen=True, eq=False)
class Coverage:
    """What a log covers.

    Args:
        never: the indices of clients that never took part.
        absences: the longest absence of each client in rounds, shape (N,), including the rounds
            before its first and after its last participation; T for clients that never took part.
        longest_absence: the longest among clients that took part; plus 1, it is E of FedLaAvg
            (Yan et al. 2020): every client took part at least once in any E consecutive rounds.
        typical_absence: the median length of the gaps between two participations.
        empty_rounds: the number of rounds without participants.
        cohort: the smallest, median, mean and largest cohort size, empty rounds included.
    """

    never: Ints
    absences: Ints
    longest_absence: int
    typical_absence: float
    empty_rounds: int
    cohort: dict[str, float]


def measure_coverage(log: ParticipationLog) -> Coverage:
    """Return the coverage of a log, in one pass over its entries."""
    absences = np.full(log.size, log.length, dtype=np.int64)
    histogram = np.zeros(log.length + 1, dtype=np.int64)
    for clients, entries, starts in log.iter_client_chunks():
        rounds = log.rounds[entries]
        seen, first = starts[1:] > starts[:-1], find_first_entries(starts)
        gaps = np.diff(rounds, prepend=-1) - 1
        gaps[first] = rounds[first]  # the rounds before the first participation
        if len(first):
            longest = np.maximum.reduceat(gaps, first)
            after = log.length - 1 - rounds[starts[1:][seen] - 1]
            absences[clients][seen] = np.maximum(longest, after)
        between = np.ones(len(gaps), dtype=bool)
        between[first] = False
        histogram += np.bincount(gaps[between], minlength=log.length + 1)
    ever_seen = log.counts > 0
    cohorts = log.cohorts
    return Coverage(
        never=np.flatnonzero(~ever_seen),
        absences=absences,
        longest_absence=int(absences[ever_seen].max()),
        typical_absence=_median_gap(histogram),
        empty_rounds=int((cohorts == 0).sum()),
        cohort={
            "smallest": float(cohorts.min()),
            "median": float(np.median(cohorts)),
            "mean": float(cohorts.mean()),
            "largest": float(cohorts.max()),
        },
    )


def _median_gap(histogram: Ints) -> float:
    """Return the median gap of at least one round from the number of gaps of each length."""
    sums = np.cumsum(histogram[1:])
    if sums[-1] == 0:
        return 0.0
    low = int(np.searchsorted(sums, (sums[-1] + 1) // 2)) + 1
    high = int(np.searchsorted(sums, sums[-1] // 2 + 1)) + 1
    return (low + high) / 2
