"""Phones that train while they charge: availability with the features of such sessions."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedtide.participation.availability.base import (
    Availability,
    AvailabilityStream,
    AvailableClients,
    RoundOrder,
)
from fedtide.population import Population
from fedtide.randomness import generator
from fedtide.spec import Positive, spec

_WEEK = 168  # rounds of an hour


@spec
class PhoneSessions(Availability):
    """Phones that charge: a daily cycle, heavy-tailed sessions, weekends, habits that drift.

    A round is an hour. Client n begins sessions at the rate

        s_n(h) = d_n w(h) exp(g_n) · exp(κ cos 2π(h − c_n) / 24) / (24 I_0(κ)),        κ = 1.5

    an hour, with d_n sessions a day, from 1.5 for client 0 in equal ratios to 0.1 for client N − 1;
    most begin at its own hour c_n, from 20 to 2 o'clock; w is 4/3 on two days of seven. g_n, 0 at
    first, moves by a normal step with standard deviation `drift` every week. A session takes
    L = min U^(−1/a) hours, rounded up, of Pareto's law with tail index a = `tail`: below 2 its
    variance is infinite. The parameters are chosen, not fitted to data; the rates are unknown.

    Args:
        shortest: min, in hours.
        tail: a.
        drift: a week.

    Raises:
        InvalidInputError: a number that is not positive.

    >>> running = PhoneSessions().begin(Population(clients=50), seed=0)
    >>> counts = [len(running.round(t).clients) for t in range(168)]
    >>> sum(counts[23::24]) > 2 * sum(counts[14::24])  # at 11 p.m. and at 2 p.m.
    True
    """

    shortest: Annotated[float, Positive] = 1.5
    tail: Annotated[float, Positive] = 1.5
    drift: Annotated[float, Positive] = 0.3

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        return _Phones(self, population.clients, seed)


class _Phones(AvailabilityStream):
    """The hours of a week are drawn together, after those of a week before round 0."""

    def __init__(self, process: PhoneSessions, clients: int, seed: int) -> None:
        self._process, self._seed, self._order = process, seed, RoundOrder()
        share = np.arange(clients) / max(1, clients - 1)
        self._daily, self._peak = 1.5 * (0.1 / 1.5) ** share, 20 + 6 * share
        self._habit, self._end = np.zeros(clients), np.full(clients, -np.inf)
        self._week = -1
        self._present = self._draw()

    def round(self, t: int) -> AvailableClients:
        self._order.advance(t)
        while self._week < t // _WEEK:
            self._week += 1
            self._present = self._draw()
        return AvailableClients(np.flatnonzero(self._present[t % _WEEK]))

    def _draw(self) -> NDArray[np.bool_]:
        """Return who is available in each hour of the week, shape (168, N)."""
        random = generator(self._seed, "phone-sessions", self._week + 1)
        if self._week > 0:
            self._habit += random.normal(0, self._process.drift, len(self._habit))
        hours = np.arange(_WEEK)[:, None]
        daily_shape = np.exp(1.5 * np.cos(2 * np.pi * (hours - self._peak) / 24))
        weekend = np.where(hours // 24 >= 5, 4 / 3, 1.0)
        rate = self._daily * np.exp(self._habit) * weekend * daily_shape / (24 * np.i0(1.5))
        begun = random.random(rate.shape) < 1 - np.exp(-rate)
        length = self._process.shortest * random.random(rate.shape) ** (-1 / self._process.tail)
        now = hours + _WEEK * self._week
        ends = np.where(begun, now + np.ceil(length), -np.inf)
        end = np.maximum.accumulate(np.vstack([self._end, ends]), axis=0)[1:]
        self._end = end[-1]
        return np.asarray(now < end)
