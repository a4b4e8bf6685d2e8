"""Independent availability whose probabilities change over time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedtide.participation.availability._renewal import RenewalStream, draw_geometric
from fedtide.participation.availability.base import Ids
from fedtide.randomness import generator, uniforms

Shares = Callable[[int, Ids], NDArray[np.float64]]
"""From t and client ids to p_n^t over the peak of each client, in [0, 1], shape (S,)."""


class ThinnedStream(RenewalStream):
    """Client n is available in round t with probability p_n^t, independently.

    A round is a candidate with the client's peak probability, and a candidate is kept with
    probability p_n^t / peak. So a round costs O(candidates), whatever N is.

    Args:
        peak: an upper bound of p_n^t over all rounds, shape (N,); 0: never available.
        shares: p_n^t / peak.
        seed: of the run.
        purpose: the name of the process, which keys its draws.
    """

    def __init__(self, peak: NDArray[np.float64], shares: Shares, seed: int, purpose: str) -> None:
        def draw_gaps(t: int, ids: Ids) -> NDArray[np.int64]:
            return draw_geometric(generator(seed, purpose, t), peak[ids])

        first = draw_geometric(generator(seed, f"{purpose}-first"), peak) - 1
        super().__init__(first, draw_gaps)
        self._shares, self._seed, self._purpose = shares, seed, f"{purpose}-kept"

    def _step(self, t: int) -> Ids:
        ids = super()._step(t)
        return ids[uniforms(self._seed, self._purpose, t, ids) < self._shares(t, ids)]
