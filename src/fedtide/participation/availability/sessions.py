"""Availability in sessions and pauses of Weibull or log-normal lengths."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError
from fedtide.participation.availability.base import Availability, AvailabilityStream, Ids
from fedtide.participation.availability.presence import Presence
from fedtide.participation.availability.renewal import NEVER, RenewalStream
from fedtide.participation.rates import Rates, resolve_rates
from fedtide.population import Population
from fedtide.randomness import generator, uniforms
from fedtide.spec import AtLeast, spec

Law = Literal["weibull", "log-normal"]
Floats = NDArray[np.float64]

_RANGES = {"weibull": (0.3, 10.0), "log-normal": (0.1, 3.0)}
"""The allowed shapes: with k < 0.3 or σ > 3, most sessions are too short to contain a round; with
k > 10 or σ < 0.1, all have nearly the same length."""


@spec
class Sessions(Availability):
    """Client n is on for a session, off for a pause, and so on, in continuous time.

    It is available in round t if a session contains the time t. Sessions have mean `length`, pauses
    length (1/p_n - 1), and both are drawn from one law, independently:

        weibull:     P(X > x) = exp(-(x / λ)^k), k = shape; below 1 heavier than exponential
        log-normal:  log X normal with standard deviation σ = shape

    λ and the mean of log X follow from the mean. The first session or pause is already in progress
    (its rest is U times a length drawn in proportion to length, U uniform), so the process is
    stationary: client n is available in every round with probability exactly p_n. With shape 1 and
    Weibull it is the two-state Markov chain in continuous time: the correlation of rounds t and
    t + h is exp(-h / (length (1 - p_n))). Short sessions may contain no round. A round costs O(S)
    for S available clients; each client takes 8 bytes more than with `Bernoulli`. With `timing`,
    time is in seconds, and so is `length`; a client with p_n = 1 has one session without an end.

    Args:
        rates: p_n: one number, one for each client, or a law; 0 means never, 1 always.
        length: the mean session, in rounds (with `timing`, in seconds), at least 1.
        law: the distribution of the lengths.
        shape: k from 0.3 to 10, or σ from 0.1 to 3.

    Raises:
        InvalidInputError: rates outside [0, 1], a length below 1, an unknown law or a shape out of
            range; in `begin`, not one rate for each client.

    >>> running = Sessions(rates=[1.0, 0.0]).begin(Population(clients=2), seed=0)
    >>> [running.round(t).clients.tolist() for t in range(3)]
    [[0], [0], [0]]
    """

    rates: Rates
    length: Annotated[float, AtLeast(1)] = 8.0
    law: Law = "weibull"
    shape: float = 0.6

    def __post_init__(self) -> None:
        low, high = _RANGES[self.law]
        if not low <= self.shape <= high:
            raise InvalidInputError(
                f"shape: {self.shape} is not within [{low}, {high}]; 0.6 is usual for weibull, 1 "
                "for log-normal"
            )

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        p = resolve_rates(self.rates, population, seed)
        with np.errstate(divide="ignore"):
            pause = self.length * (1 / p - 1)
        random = generator(seed, "sessions-first")
        on = random.random(len(p)) < p
        rest = np.where(on, self.length, pause) * self._draw_rests(random, len(p))
        end = np.where(on, rest, 0.0)  # of each client's session in progress, or of its last one

        def next_rounds(random: np.random.Generator, ids: Ids, begin: Floats) -> Ids:
            """Return the first rounds within sessions from `begin` on, and update their ends."""
            due, waiting = np.full(len(ids), float(NEVER)), np.arange(len(ids))
            while len(waiting):
                who, begin = ids[waiting], begin[waiting]
                finish = begin + self.length * self._draw(random, len(who))
                due[waiting], end[who] = np.ceil(begin), finish
                missed = (np.ceil(begin) >= finish) & (begin < NEVER)
                waiting = waiting[missed]
                begin = np.full(len(ids), np.inf)
                after = finish[missed] + pause[ids[waiting]] * self._draw(random, len(waiting))
                begin[waiting] = after
            return np.asarray(np.minimum(due, NEVER), dtype=np.int64)

        first = np.where(on, 0, NEVER)
        away = np.flatnonzero(~on & (p > 0))
        first[away] = next_rounds(random, away, rest[away])

        def draw_gaps(t: int, ids: Ids) -> Ids:
            gaps = np.ones(len(ids), dtype=np.int64)
            over = end[ids] <= t + 1
            who, random = ids[over], generator(seed, "sessions", t)
            begin = end[who] + pause[who] * self._draw(random, len(who))
            gaps[over] = next_rounds(random, who, begin) - t
            return gaps

        return RenewalStream(first, draw_gaps)

    def presence(self, population: Population, seed: int) -> Presence:
        p = resolve_rates(self.rates, population, seed)
        with np.errstate(divide="ignore"):
            pause = self.length * (1 / p - 1)
        random, clients = generator(seed, "sessions-first"), np.arange(len(p))
        on = random.random(len(p)) < p
        rest = np.where(on, self.length, pause) * self._draw_rests(random, len(p))
        count = np.zeros(len(p), dtype=np.int64)  # of each client's sessions
        end = np.where(on, rest, 0.0)

        def draw(purpose: str, ids: Ids) -> Floats:
            return self._quantile(uniforms(seed, purpose, ids, count[ids]))

        def follow(ids: Ids) -> tuple[Floats, Floats]:
            count[ids] += 1
            start = end[ids] + pause[ids] * draw("session-pause", ids)
            end[ids] = start + self.length * draw("session-length", ids)
            return start, end[ids]

        begin = np.where(on, 0.0, rest)
        end[~on] = begin[~on] + self.length * draw("session-length", clients[~on])
        end[p == 1] = np.inf
        return Presence(begin, end.copy(), follow)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64]:
        return resolve_rates(self.rates, population, seed)

    def _draw(self, random: np.random.Generator, count: int) -> Floats:
        """Draw lengths of mean 1."""
        if self.law == "weibull":
            return random.weibull(self.shape, count) / math.gamma(1 + 1 / self.shape)
        return random.lognormal(-(self.shape**2) / 2, self.shape, count)

    def _quantile(self, u: Floats) -> Floats:
        """Return the u-quantiles of lengths of mean 1."""
        if self.law == "weibull":
            return (-np.log1p(-u)) ** (1 / self.shape) / math.gamma(1 + 1 / self.shape)
        from scipy.special import ndtri  # slow to import and rarely needed

        return np.asarray(np.exp(self.shape * ndtri(u) - self.shape**2 / 2))

    def _draw_rests(self, random: np.random.Generator, count: int) -> Floats:
        """Draw what remains, at a random time, of the lengths of mean 1 then in progress."""
        passed = random.random(count)
        if self.law == "weibull":
            biased = random.gamma(1 + 1 / self.shape, size=count) ** (1 / self.shape)
            return passed * biased / math.gamma(1 + 1 / self.shape)
        return passed * random.lognormal(self.shape**2 / 2, self.shape, count)
