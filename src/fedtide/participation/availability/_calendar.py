"""Who is due when: the queue behind the processes whose clients say when they come next."""

from __future__ import annotations

from array import array
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from fedtide.participation.availability.base import Ids

NEVER = 2**31 - 1
"""The round that never comes: dues are kept in 32 bits, more rounds than any run has."""


class Calendar:
    """A calendar queue: each client is due in at most one round, and dues are taken in order.

    The first dues lie in two arrays sorted by round (8 bytes a client); a client that is entered
    again goes into the bucket of its round. So taking and entering S clients costs O(S) plus one
    binary search, whatever N is.

    Args:
        first: the round in which each client is first due, shape (N,); NEVER or more: never.

    >>> calendar = Calendar(np.array([2, 0, 2, NEVER]))
    >>> calendar.take(0)
    array([1])
    >>> calendar.enter(np.array([1]), np.array([2]))
    >>> calendar.take(2)
    array([0, 1, 2])
    """

    def __init__(self, first: NDArray[np.integer]) -> None:
        order = np.argsort(first).astype(np.int32)
        due = np.minimum(first[order], NEVER).astype(np.int32)
        kept = int(np.searchsorted(due, np.int32(NEVER)))
        self._due = due[:kept]
        self._ids = order[:kept]
        self._buckets: defaultdict[int, array[int]] = defaultdict(lambda: array("i"))

    def take(self, t: int) -> Ids:
        """Return the clients due in round t, sorted, and forget that they were due."""
        # Keys of another type would make NumPy convert all N dues at every call.
        low, high = np.searchsorted(self._due, np.array([t, t + 1], dtype=np.int32))
        ids = self._ids[low:high]
        bucket = self._buckets.pop(t, None)
        if bucket is not None:
            ids = np.concatenate([ids, np.frombuffer(bucket, dtype=np.int32)])
        return np.sort(ids).astype(np.int64)

    def enter(self, ids: Ids, due: NDArray[np.int64]) -> None:
        """Enter clients that are not in the queue now, each for its own round `due`, shape (S,)."""
        for client, t in zip(ids.tolist(), due.tolist(), strict=True):
            if t < NEVER:
                self._buckets[t].append(client)
