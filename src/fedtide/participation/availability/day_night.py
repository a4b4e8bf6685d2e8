"""Availability that varies between day and night, each client in its own time zone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtide.configurable import configurable
from fedtide.participation.availability._thinning import ThinnedStream
from fedtide.participation.availability.base import Availability, AvailabilityStream, Ids
from fedtide.participation.rates import Rates, check_rates, resolve_rates
from fedtide.population import Population
from fedtide.randomness import uniforms
from fedtide.validation import require_probabilities, require_whole_number


@configurable
class DayNight(Availability):
    """Client n is available with a probability that blends its rates by day and by night.

        p_n^t = m p_n + (1 - m) p'_n,        m = (1 + cos 2π(t / P - φ_n)) / 2

    independently over rounds and clients, with a day of P rounds, `rates` p_n at noon, `night` p'_n
    at midnight, and the time zone φ_n, in days, uniform on [0, spread): 0 is one zone for all, 1
    all around the globe. `GroupCycle` changes abruptly instead. The long-run rates are exactly
    (p_n + p'_n) / 2. A round costs O(clients that are available at the larger of their two rates).

    Args:
        rates: p_n: one number, one for each client, or a law.
        night: p'_n, likewise.
        period: P, in rounds, at least 2.
        spread: in [0, 1].

    Raises:
        InvalidInputError: rates outside [0, 1], a period below 2 or a spread outside [0, 1]; in
            `begin`, not one rate for each client.

    >>> running = DayNight(rates=1.0, night=0.0, period=2, spread=0.0).begin(Population(1), seed=0)
    >>> [len(running.round(t).clients) for t in range(4)]
    [1, 0, 1, 0]
    """

    rates: Rates
    night: Rates
    period: int = 24
    spread: float = 1.0

    def __post_init__(self) -> None:
        check_rates(self.rates)
        check_rates(self.night, "night")
        require_whole_number("period", self.period, low=2)
        require_probabilities("spread", self.spread)

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        day, night = self._rates(population, seed)
        peak = np.maximum(day, night)
        zones = self.spread * uniforms(seed, "day-night-zone", np.arange(population.clients))

        def shares(t: int, ids: Ids) -> NDArray[np.float64]:
            angle = 2 * np.pi * (t % self.period / self.period - zones[ids])
            light = (1 + np.cos(angle)) / 2
            return (light * day[ids] + (1 - light) * night[ids]) / peak[ids]

        return ThinnedStream(peak, shares, seed, "day-night")

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64]:
        """Return (p_n + p'_n) / 2."""
        day, night = self._rates(population, seed)
        return np.asarray((day + night) / 2)

    def _rates(
        self, population: Population, seed: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        day = resolve_rates(self.rates, population, seed)
        return day, resolve_rates(self.night, population, seed, "night")
