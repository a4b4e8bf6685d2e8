"""Availability whose rates rise and fall together: the patterns of FedAWE's experiments."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.configurable import configurable
from fedtide.errors import InvalidInputError
from fedtide.participation.availability._thinning import ThinnedStream
from fedtide.participation.availability.base import Availability, AvailabilityStream, Ids
from fedtide.participation.rates import Rates, check_rates, resolve_rates
from fedtide.population import Population
from fedtide.validation import require_probabilities, require_whole_number

Shape = Literal["sine", "interleaved-sine", "staircase"]

_MAX_PERIOD = 2**20  # the mean of an interleaved sine sorts the rounds of a period


@configurable
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
    period: int = 20
    gamma: float = 0.3
    low: float = 0.4
    least: float = 0.1

    def __post_init__(self) -> None:
        check_rates(self.rates)
        require_whole_number("period", self.period)
        if self.period > _MAX_PERIOD:
            raise InvalidInputError(
                f"period: {self.period} rounds are too many; give at most {_MAX_PERIOD}"
            )
        if not 0 <= self.gamma <= 0.5:
            raise InvalidInputError(
                f"gamma: with {self.gamma} some probabilities are negative; give 0 to 0.5"
            )
        require_probabilities("low", self.low)
        require_probabilities("least", self.least)

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
        sums = np.append(np.cumsum(factors[::-1])[::-1], 0.0)
        return np.asarray(p * sums[self._count_low(p, factors)] / self.period)

    def _count_low(self, p: NDArray[np.float64], factors: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return how many of the sorted factors are too low for each client to reach `least`, (N,).

        By bisection with the same comparison as in a round, since comparing with least / p_n would
        round differently.
        """
        first, end = np.zeros(len(p), dtype=np.int64), np.full(len(p), len(factors))
        while (open_ := first < end).any():
            middle = (first + end) // 2
            reached = self._reaches_least(p, factors[np.minimum(middle, len(factors) - 1)])
            end = np.where(open_ & reached, middle, end)
            first = np.where(open_ & ~reached, middle + 1, first)
        return first

    def _reaches_least(
        self, p: NDArray[np.float64], factors: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Return whether p_n f is high enough for an interleaved sine."""
        return np.asarray(p * factors >= self.least)

    def _factors(self, t: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return f in these rounds of a period, without the threshold of an interleaved sine."""
        if self.shape == "staircase":
            return np.where(2 * t < self.period, 1.0, self.low)
        return self.gamma * np.sin(2 * np.pi * t / self.period) + 1 - self.gamma
