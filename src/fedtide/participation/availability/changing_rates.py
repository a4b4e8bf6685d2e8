"""Independent availability with probabilities that change over time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.participation.availability.base import Availability, AvailabilityStream, Ids
from fedtide.participation.availability.renewal import RenewalStream, draw_geometric
from fedtide.participation.rates import Rates, resolve_rates
from fedtide.population import Population
from fedtide.randomness import generator, uniforms
from fedtide.spec import AtLeast, Unit, Within, spec

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


@spec
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
    rounds: Annotated[int, AtLeast(1)]
    start: Annotated[int, AtLeast(0)] = 0

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


@spec
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
    period: Annotated[int, AtLeast(2)] = 24
    spread: Annotated[float, Unit] = 1.0

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


Shape = Literal["sine", "interleaved-sine", "staircase"]


@spec
class Fluctuating(Availability):
    """Client n is available with probability p_n^t = p_n f_n(t), independently (Xiang et al. 2024).

        sine:              f(t) = γ sin(2π t / P) + 1 - γ
        interleaved-sine:  the same where p_n f(t) >= least, else 0
        staircase:         f(t) = 1 in the first half of each period, `low` in the second

    These are the non-stationary patterns of FedAWE (NeurIPS 2024, section 7 and appendix J.3) with
    P = 20, γ = 0.3, low = 0.4 and least = 0.1; the paper's stationary pattern is `Bernoulli`, and
    its rates are `UniformByClass`. With an interleaved sine, rare clients are away for a part of
    each period, or always. The authors' program (github.com/mingxiang12/FedAWE at e0b8538) has the
    same patterns.

    Long-run rates are exact: p_n (1 - γ) for a sine, as a sine over whole rounds of a period sums
    to 0. A round costs O(clients that are available at their peak).

    Args:
        rates: p_n: one number, one for each client, or a law; 0 means never.
        shape: one of the three.
        period: P, in rounds.
        gamma: γ in [0, 1/2], how non-stationary a sine is; 0: stationary.
        low: the lower factor of a staircase, in [0, 1].
        least: the threshold of an interleaved sine, in [0, 1].

    Raises:
        InvalidInputError: a rate or number out of range, or an unknown shape; in `begin`, not one
            rate for each client.

    >>> process = Fluctuating(rates=[1.0, 0.1], shape="interleaved-sine", period=4)
    >>> process.known_rates(Population(clients=2), seed=0).round(6)
    array([0.7  , 0.025])
    """

    rates: Rates
    shape: Shape = "sine"
    period: Annotated[int, AtLeast(1)] = 20
    gamma: Annotated[float, Within(0, 0.5, hint="so that no probability is negative")] = 0.3
    low: Annotated[float, Unit] = 0.4
    least: Annotated[float, Unit] = 0.1

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        p = resolve_rates(self.rates, population, seed)

        def shares(t: int, ids: Ids) -> NDArray[np.float64]:
            share = self._factors(np.array([t % self.period]))
            if self.shape == "interleaved-sine":
                return np.where(self._reaches_least(p[ids], share), share, 0.0)
            return np.broadcast_to(share, ids.shape)

        return ThinnedStream(p, shares, seed, "fluctuating")

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64]:
        """Return p_n times the mean of f_n over a period."""
        p = resolve_rates(self.rates, population, seed)
        factors = np.sort(self._factors(np.arange(self.period)))
        if self.shape != "interleaved-sine":
            return np.asarray(p * factors.mean())
        sums = np.zeros(len(p))
        for factor in factors[::-1]:
            sums += np.where(self._reaches_least(p, factor), factor, 0.0)
        return np.asarray(p * sums / self.period)

    def _reaches_least(
        self, p: NDArray[np.float64], factors: NDArray[np.float64] | np.float64
    ) -> NDArray[np.bool_]:
        """Return whether p_n f is high enough for an interleaved sine."""
        return np.asarray(p * factors >= self.least)

    def _factors(self, t: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return f in these rounds of a period, without the threshold of an interleaved sine."""
        if self.shape == "staircase":
            return np.where(2 * t < self.period, 1.0, self.low)
        return self.gamma * np.sin(2 * np.pi * t / self.period) + 1 - self.gamma
