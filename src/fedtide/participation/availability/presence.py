"""Who is available at a time in seconds: the sessions of each client, one after another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Clients = NDArray[np.int64]
Times = NDArray[np.float64]


class Presence:
    """The sessions [start, end) of N clients, asked for in increasing order of time.

    A question costs O(N), as only the present session of each client, or its next one, is known.

    Args:
        starts: of each client's first session, which may be over or in progress at time 0, in
            seconds, shape (N,); inf: it has none.
        ends: of these sessions, shape (N,); inf: never, or there is none.
        follow: returns the starts and the ends of the next sessions of these clients, as above.
        is_endless: whether somebody always comes again.

    >>> two = Presence(np.array([0.0, 5.0]), np.array([8.0, 6.0]), lambda ids: (np.inf, np.inf))
    >>> two.at(5.5), two.ends_of(np.array([0, 1])), two.at(6.0), two.at(9.0)
    (array([0, 1]), array([8., 6.]), array([0]), array([], dtype=int64))
    """

    def __init__(
        self,
        starts: Times,
        ends: Times,
        follow: Callable[[Clients], tuple[Times, Times]],
        is_endless: bool = True,
    ) -> None:
        self._starts, self._ends, self._follow = starts, ends, follow
        self.is_endless = is_endless

    def at(self, time: float) -> Clients:
        """Return the clients that are available at a time, sorted."""
        over = np.flatnonzero(self._ends <= time)
        while len(over):
            self._starts[over], self._ends[over] = self._follow(over)
            over = over[self._ends[over] <= time]
        return np.flatnonzero(self._starts <= time)

    def ends_of(self, clients: Clients) -> Times:
        """Return the end of the present session of clients that are available, shape (S,)."""
        return self._ends[clients]

    def next_start(self) -> float:
        """Return the time of the next session if nobody is available; inf: nobody comes again."""
        return float(self._starts.min())
