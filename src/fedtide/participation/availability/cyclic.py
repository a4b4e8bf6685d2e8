"""Cyclic availability: each client is on for part of every cycle, in its own phase."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtide.configurable import configurable
from fedtide.errors import InvalidInputError
from fedtide.participation.availability._renewal import RenewalStream
from fedtide.participation.availability.base import Availability, AvailabilityStream, Ids
from fedtide.participation.rates import Rates, check_rates, resolve_rates
from fedtide.population import Population
from fedtide.randomness import generator
from fedtide.validation import require_choice, require_whole_number

STARTS = ("stationary", "off")
"""The phases in which clients may start."""

_MAX_PERIOD = 2**30  # a cycle has up to twice as many rounds, which fits 32 bits


@configurable
class Cyclic(Availability):
    """Client n is available for A_n rounds, then unavailable for B_n rounds, and so on.

    For a rate p and a period c (Wang & Ji 2024, FedAU, section 6):

        A = max(1, round(c p)) (halves to even),   B = max(1, c − A),

    so the realised rate A / (A + B) lies between 1/c (also for p = 0) and c / (c + 1) (for p = 1).

    Args:
        rates: p_n: one number, one for each client, or a law.
        period: c, in rounds, at least 2.
        start: "stationary": each client's phase is uniform over its cycle, as in the paper. "off":
            each client is first available in a round uniform on 0..B−1, as in the authors'
            program; this affects the first cycle only.

    Raises:
        InvalidInputError: rates outside [0, 1], a period below 2, an unknown start; in `begin`, not
            one rate for each client.

    >>> running = Cyclic(rates=0.5, period=2).begin(Population(clients=1), seed=0)
    >>> [len(running.round(t).clients) for t in range(6)]
    [0, 1, 0, 1, 0, 1]
    """

    rates: Rates
    period: int = 100
    start: str = "stationary"

    def __post_init__(self) -> None:
        check_rates(self.rates)
        require_whole_number("period", self.period, low=2)
        if self.period > _MAX_PERIOD:
            raise InvalidInputError(
                f"period: {self.period} rounds are too many; give at most {_MAX_PERIOD}"
            )
        require_choice("start", self.start, STARTS)

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        active, cycle = self._lengths(population, seed)
        phase = self._phases(active, cycle, seed)

        def draw_gaps(t: int, ids: Ids) -> NDArray[np.int64]:
            position = (t + phase[ids]) % cycle[ids]
            remains = position + 1 < active[ids]
            return np.where(remains, 1, cycle[ids] - position).astype(np.int64)

        return RenewalStream(np.where(phase < active, 0, cycle - phase), draw_gaps)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64]:
        """Return the realised A_n / (A_n + B_n), which is p_n up to rounding."""
        active, cycle = self._lengths(population, seed)
        return active / cycle

    def _lengths(
        self, population: Population, seed: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return A and A + B, each (N,)."""
        p = resolve_rates(self.rates, population, seed)
        active = np.maximum(1, np.rint(self.period * p)).astype(np.int32)
        return active, active + np.maximum(1, self.period - active)

    def _phases(
        self, active: NDArray[np.int32], cycle: NDArray[np.int32], seed: int
    ) -> NDArray[np.int32]:
        """Return each client's position in its cycle in round 0; it is available below A."""
        random = generator(seed, "cyclic")
        if self.start == "stationary":
            return random.integers(cycle, dtype=np.int32)
        wait = random.integers(cycle - active, dtype=np.int32)
        return (cycle - wait) % cycle
