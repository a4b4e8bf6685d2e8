"""Streams that step through the rounds, and renewal processes on top of them.

A renewal process is given by each client's first available round and the gaps between its available
rounds.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections import defaultdict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedtide.participation.availability.base import (
    AvailabilityStream,
    AvailableClients,
    Ids,
    RoundOrder,
)

NEVER = 2**31 - 1
"""A round beyond the end of any run; due rounds are stored as 32-bit integers."""

DrawGaps = Callable[[int, Ids], NDArray[np.int64]]
"""From t and the clients available in round t to the rounds until their next one, each >= 1."""


class StepwiseStream(AvailabilityStream):
    """A stream whose rounds depend on earlier ones; it also steps through skipped rounds."""

    def __init__(self) -> None:
        self._order = RoundOrder()

    def round(self, t: int) -> AvailableClients:
        """Return the clients available in round t.

        Raises:
            ValueError: t is not larger than every round asked for before.
        """
        for skipped in self._order.advance(t):
            self._step(skipped)
        return AvailableClients(self._step(t))

    @abstractmethod
    def _step(self, t: int) -> Ids:
        """Return the clients available in round t and advance to t + 1; called once per round."""


class RenewalStream(StepwiseStream):
    """A renewal process; a round costs O(S) for S available clients, whatever N is.

    Args:
        first: the first round in which each client is available, shape (N,); NEVER or more: none.
        draw_gaps: draws the gaps to the next available round.
    """

    def __init__(self, first: NDArray[np.integer], draw_gaps: DrawGaps) -> None:
        super().__init__()
        self._queue = CalendarQueue(first)
        self._draw_gaps = draw_gaps

    def _step(self, t: int) -> Ids:
        ids = self._queue.pop(t)
        if len(ids):
            self._queue.push(ids, t + self._draw_gaps(t, ids))
        return ids


class CalendarQueue:
    """A priority queue of clients by due round, from which rounds are popped in increasing order.

    The initial due rounds are two arrays sorted by round (8 bytes per client); later entries go
    into a bucket per round. Popping and pushing S clients costs O(S) plus one binary search,
    whatever N is.

    Args:
        first: the round in which each client is first due, shape (N,); NEVER or more: never.

    >>> queue = CalendarQueue(np.array([2, 0, 2, NEVER]))
    >>> queue.pop(0)
    array([1])
    >>> queue.push(np.array([1]), np.array([2]))
    >>> queue.pop(2)
    array([0, 1, 2])
    """

    def __init__(self, first: NDArray[np.integer]) -> None:
        order = np.argsort(first).astype(np.int32)
        due = np.minimum(first[order], NEVER).astype(np.int32)
        finite = int(np.searchsorted(due, np.int32(NEVER)))
        self._due = due[:finite]
        self._ids = order[:finite]
        self._buckets: defaultdict[int, array[int]] = defaultdict(lambda: array("i"))

    def pop(self, t: int) -> Ids:
        """Remove and return the clients due in round t, sorted."""
        # Keys of another type would make NumPy convert all N due rounds at every call.
        low, high = np.searchsorted(self._due, np.array([t, t + 1], dtype=np.int32))
        ids = self._ids[low:high]
        bucket = self._buckets.pop(t, None)
        if bucket is not None:
            ids = np.concatenate([ids, np.frombuffer(bucket, dtype=np.int32)])
        return np.sort(ids).astype(np.int64)

    def push(self, ids: Ids, due: NDArray[np.int64]) -> None:
        """Add clients that are not in the queue, each with its due round, shape (S,)."""
        for client, t in zip(ids.tolist(), due.tolist(), strict=True):
            if t < NEVER:
                self._buckets[t].append(client)


def draw_geometric(random: np.random.Generator, p: NDArray[np.float64]) -> NDArray[np.int64]:
    """Draw for each p the trial (1, 2, ...) of the first success, at most NEVER.

    >>> draw_geometric(np.random.default_rng(0), np.array([0.0, 1.0])).tolist() == [NEVER, 1]
    True
    """
    # NumPy requires p > 0; at 1e-300 the first success lies beyond NEVER.
    trials = random.geometric(np.maximum(p, 1e-300))
    return np.minimum(trials, NEVER, out=trials)
