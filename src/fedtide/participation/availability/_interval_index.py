"""An index of time intervals: which of them contain an instant."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtide.participation.availability.base import Ids

_Times = NDArray[np.float64]


class IntervalIndex:
    """Half-open intervals [start, end), searchable by instant in any order.

    Intervals are grouped by length, those of [2^(k−1), 2^k) in one level, and sorted by start
    within a level. Those that contain s start within (s − 2^k, s]; all that start after
    s − 2^(k−1) contain s. So if starts are spread evenly, the share of intervals that are scanned
    without a match is bounded.

    Args:
        clients: the client of each interval, (E,).
        starts: (E,).
        ends: (E,), each after its start.

    >>> intervals = IntervalIndex(np.array([4, 7]), np.array([0.0, 5.0]), np.array([6.0, 8.0]))
    >>> intervals.clients_at(5.0), intervals.clients_at(6.0)
    (array([4, 7]), array([7]))
    """

    def __init__(self, clients: Ids, starts: _Times, ends: _Times) -> None:
        _, exponents = np.frexp(ends - starts)
        order = np.lexsort((starts, exponents))
        self._clients = clients[order].astype(np.int32)
        self._starts = starts[order]
        self._ends = ends[order]
        exponents, first = np.unique(exponents[order], return_index=True)
        bounds = [*first.tolist(), len(order)]
        with np.errstate(over="ignore"):  # infinity is right above half the largest number
            longest = np.ldexp(1.0, exponents).tolist()
        self._levels = list(zip(longest, bounds, bounds[1:], strict=False))

    def clients_at(self, instant: float) -> Ids:
        """Return the clients with an interval that contains the instant, sorted."""
        found = [self._search(instant, *level) for level in self._levels]
        return np.sort(np.concatenate([np.empty(0, dtype=np.int32), *found])).astype(np.int64)

    def _search(self, instant: float, longest: float, low: int, high: int) -> NDArray[np.int32]:
        starts = self._starts[low:high]
        left = low + int(np.searchsorted(starts, instant - longest, side="left"))
        right = low + int(np.searchsorted(starts, instant, side="right"))
        return self._clients[left:right][self._ends[left:right] > instant]
