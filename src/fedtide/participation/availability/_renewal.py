"""Clients that say, whenever they are there, when they will be there next."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedtide.participation.availability._calendar import NEVER, Calendar
from fedtide.participation.availability._stepwise import Stepwise
from fedtide.participation.availability.base import Ids

Gaps = Callable[[int, Ids], NDArray[np.int64]]
"""(t, the clients present in round t) to how many rounds later each is present again (>= 1)."""


class Renewal(Stepwise):
    """A started process that is told by first appearances and by the gaps that follow them.

    A round costs O(S) for the S clients that are present, whatever N is.

    Args:
        first: the round of each client's first appearance, shape (N,); NEVER or more: never.
        gaps: how long until the clients of a round come again.
    """

    def __init__(self, first: NDArray[np.integer], gaps: Gaps) -> None:
        super().__init__()
        self._calendar = Calendar(first)
        self._gaps = gaps

    def _step(self, t: int) -> Ids:
        ids = self._calendar.take(t)
        if len(ids):
            self._calendar.enter(ids, t + self._gaps(t, ids))
        return ids


def geometric(draws: np.random.Generator, p: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return for each p the trial (1, 2, ...) of the first success, at most NEVER.

    >>> geometric(np.random.default_rng(0), np.array([0.0, 1.0])).tolist() == [NEVER, 1]
    True
    """
    # NumPy wants p > 0; so small a p gives a number of trials beyond every horizon.
    trials = draws.geometric(np.maximum(p, 1e-300))
    return np.minimum(trials, NEVER, out=trials)
