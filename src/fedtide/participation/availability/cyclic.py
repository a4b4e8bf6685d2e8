"""Clients that are there for a while in every cycle, each in its own phase."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.participation.availability._renewal import Renewal
from fedtide.participation.availability.base import Availability, AvailabilityStream, Ids
from fedtide.participation.rates import Rates, check_rates, resolve_rates
from fedtide.population import Population
from fedtide.randomness import generator
from fedtide.validation import whole

STARTS = ("stationary", "off")


_LONGEST = 2**30  # a cycle of at most twice as many rounds fits 32 bits


@dataclass(frozen=True)
class Cyclic(Availability):
    """Client n is available for A_n rounds, away for B_n rounds, and so on for ever.

    For a rate p and a period c (Wang & Ji 2024, FedAU, section 6):

        A = max(1, round(c p)) (halves to even),   B = max(1, c − A),

    so the realised rate A / (A + B) lies between 1/c (also for p = 0) and c / (c + 1) (for p = 1).

    Args:
        rates: p_n: one number, one for each client, or correlated with the clients' classes.
        period: c, in rounds, at least 2.
        start: "stationary": each client's phase is uniform over its whole cycle, as the paper says.
            "off": each client is away at first and comes in a round uniform on 0..B−1, as the
            authors' program does; this matters in the first cycle only.

    Raises:
        InvalidInputError: rates outside [0, 1], a period below 2, an unknown start; in `begin`, not one
            rate for each client.

    >>> running = Cyclic(rates=0.5, period=2).begin(Population(clients=1), seed=0)
    >>> [len(running.round(t).clients) for t in range(6)]
    [0, 1, 0, 1, 0, 1]
    """

    rates: Rates
    period: int = 100
    start: str = "stationary"

    def __post_init__(self) -> None:
        check_rates(self.rates)
        whole("period", self.period, least=2)
        if self.period > _LONGEST:
            raise InvalidInputError(
                f"period: {self.period} rounds are too long; give at most {_LONGEST}"
            )
        if self.start not in STARTS:
            raise InvalidInputError(
                f"start: {self.start!r} is no way to start; {did_you_mean(self.start, STARTS)}"
            )

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        """Return the running process."""
        active, cycle = self._lengths(population, seed)
        phase = self._phases(active, cycle, seed)

        def gaps(t: int, ids: Ids) -> NDArray[np.int64]:
            position = (t + phase[ids]) % cycle[ids]
            stays = position + 1 < active[ids]
            return np.where(stays, 1, cycle[ids] - position).astype(np.int64)

        return Renewal(np.where(phase < active, 0, cycle - phase), gaps)

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
        """Return where in its cycle each client is in round 0; it is there at places below A."""
        draws = generator(seed, "cyclic")
        if self.start == "stationary":
            return draws.integers(cycle, dtype=np.int32)
        wait = draws.integers(cycle - active, dtype=np.int32)
        return (cycle - wait) % cycle
