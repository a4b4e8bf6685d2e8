"""Availability whose rates change from one value to another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtide.configurable import configurable
from fedtide.participation.availability._thinning import ThinnedStream
from fedtide.participation.availability.base import Availability, AvailabilityStream, Ids
from fedtide.participation.rates import Rates, check_rates, resolve_rates
from fedtide.population import Population
from fedtide.validation import require_whole_number


@configurable
class Drifting(Availability):
    """Client n is available independently with probability p_n^t, which changes linearly.

        p_n^t = p_n + (p'_n - p_n) · min(1, max(0, (t - start) / rounds))

    from `rates` p_n before round `start` to `final` p'_n from round start + rounds on; with
    `rounds` = 1 the rates jump after round `start`. The known long-run rates are p'_n. A round
    costs O(clients that are available at the larger of their two rates).

    Args:
        rates: p_n: one number, one for each client, or a law; 0 means never.
        final: p'_n, likewise.
        rounds: how many rounds the change takes, at least 1.
        start: the last round with the initial rates.

    Raises:
        InvalidInputError: rates outside [0, 1], rounds below 1 or a negative start; in `begin`,
            not one rate for each client.

    >>> running = Drifting(rates=[0.0, 1.0], final=[1.0, 0.0], rounds=1).begin(Population(2), 0)
    >>> [running.round(t).clients.tolist() for t in range(3)]
    [[1], [0], [0]]
    """

    rates: Rates
    final: Rates
    rounds: int
    start: int = 0

    def __post_init__(self) -> None:
        check_rates(self.rates)
        check_rates(self.final, "final")
        require_whole_number("rounds", self.rounds)
        require_whole_number("start", self.start, low=0)

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        before = resolve_rates(self.rates, population, seed)
        after = resolve_rates(self.final, population, seed, "final")
        peak = np.maximum(before, after)

        def shares(t: int, ids: Ids) -> NDArray[np.float64]:
            done = min(1.0, max(0.0, (t - self.start) / self.rounds))
            return ((1 - done) * before[ids] + done * after[ids]) / peak[ids]

        return ThinnedStream(peak, shares, seed, "drifting")

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64] | None:
        """Return the final rates; None if a client takes part at first but not at the end."""
        final = resolve_rates(self.final, population, seed, "final")
        ends = (final == 0) & (resolve_rates(self.rates, population, seed) > 0)
        return None if ends.any() else final
