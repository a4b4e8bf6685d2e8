"""Which of many intervals hold an instant."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtide.participation.availability.base import Ids

_Times = NDArray[np.float64]


class Intervals:
    """Half-open intervals [start, end), searched by instant without a cursor.

    Intervals are filed by length, those of [2^(k−1), 2^k) together, and each file is sorted by
    start. Those that hold s start within (s − 2^k, s]; of what starts there, all with a start
    after s − 2^(k−1) hold s, so at worst a constant share of what is looked at is looked at in
    vain when starts are spread evenly.

    Args:
        clients: whose interval it is, (E,).
        starts: (E,).
        ends: (E,), each after its start.

    >>> intervals = Intervals(np.array([4, 7]), np.array([0.0, 5.0]), np.array([6.0, 8.0]))
    >>> intervals.at(5.0), intervals.at(6.0)
    (array([4, 7]), array([7]))
    """

    def __init__(self, clients: Ids, starts: _Times, ends: _Times) -> None:
        _, exponents = np.frexp(ends - starts)
        order = np.lexsort((starts, exponents))
        self._clients = clients[order].astype(np.int32)
        self._starts = starts[order]
        self._ends = ends[order]
        levels, first = np.unique(exponents[order], return_index=True)
        bounds = [*first.tolist(), len(order)]
        self._files = list(zip(np.ldexp(1.0, levels).tolist(), bounds, bounds[1:], strict=False))

    def at(self, instant: float) -> Ids:
        """Return whose intervals hold the instant, sorted."""
        found = [self._in_file(instant, *file) for file in self._files]
        return np.sort(np.concatenate([np.empty(0, dtype=np.int32), *found])).astype(np.int64)

    def _in_file(self, instant: float, longest: float, low: int, high: int) -> NDArray[np.int32]:
        starts = self._starts[low:high]
        left = low + int(np.searchsorted(starts, instant - longest, side="left"))
        right = low + int(np.searchsorted(starts, instant, side="right"))
        return self._clients[left:right][self._ends[left:right] > instant]
