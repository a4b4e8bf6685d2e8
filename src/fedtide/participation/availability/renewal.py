"""Renewal processes: each client has a first available round, and gaps between these rounds."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections import defaultdict
from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.participation.availability.base import (
    Availability,
    AvailabilityStream,
    AvailableClients,
    Ids,
    RoundOrder,
)
from fedtide.participation.rates import Rates, resolve_rates
from fedtide.population import Population
from fedtide.randomness import generator
from fedtide.spec import AtLeast, Share, spec

NEVER = 2**31 - 1
"""A round beyond the end of any run; due rounds are stored as 32-bit integers."""

DrawGaps = Callable[[int, Ids], NDArray[np.int64]]
"""From t and the clients available in round t to the rounds until their next one, each >= 1."""


class StepwiseStream(AvailabilityStream):
    """A stream whose rounds depend on earlier ones; it also steps through skipped rounds."""

    def __init__(self) -> None:
        self._order = RoundOrder()

    def round(self, t: int) -> AvailableClients:
        """Return the clients available in round t.

        Raises:
            ValueError: t is not larger than every round asked for before.
        """
        for skipped in self._order.advance(t):
            self._step(skipped)
        return AvailableClients(self._step(t))

    @abstractmethod
    def _step(self, t: int) -> Ids:
        """Return the clients available in round t and advance to t + 1; called once per round."""


class RenewalStream(StepwiseStream):
    """A renewal process; a round costs O(S) for S available clients, whatever N is.

    Args:
        first: the first round in which each client is available, shape (N,); NEVER or more: none.
        draw_gaps: draws the gaps to the next available round.
    """

    def __init__(self, first: NDArray[np.integer], draw_gaps: DrawGaps) -> None:
        super().__init__()
        self._queue = CalendarQueue(first)
        self._draw_gaps = draw_gaps

    def _step(self, t: int) -> Ids:
        ids = self._queue.pop(t)
        if len(ids):
            self._queue.push(ids, t + self._draw_gaps(t, ids))
        return ids


class CalendarQueue:
    """A priority queue of clients by due round, from which rounds are popped in increasing order.

    The initial due rounds are two arrays sorted by round (8 bytes per client); later entries go
    into a bucket per round. Popping and pushing S clients costs O(S) plus one binary search,
    whatever N is.

    Args:
        first: the round in which each client is first due, shape (N,); NEVER or more: never.

    >>> queue = CalendarQueue(np.array([2, 0, 2, NEVER]))
    >>> queue.pop(0)
    array([1])
    >>> queue.push(np.array([1]), np.array([2]))
    >>> queue.pop(2)
    array([0, 1, 2])
    """

    def __init__(self, first: NDArray[np.integer]) -> None:
        order = np.argsort(first).astype(np.int32)
        due = np.minimum(first[order], NEVER).astype(np.int32)
        finite = int(np.searchsorted(due, np.int32(NEVER)))
        self._due = due[:finite]
        self._ids = order[:finite]
        self._buckets: defaultdict[int, array[int]] = defaultdict(lambda: array("i"))

    def pop(self, t: int) -> Ids:
        """Remove and return the clients due in round t, sorted."""
        # Keys of another type would make NumPy convert all N due rounds at every call.
        low, high = np.searchsorted(self._due, np.array([t, t + 1], dtype=np.int32))
        ids = self._ids[low:high]
        bucket = self._buckets.pop(t, None)
        if bucket is not None:
            ids = np.concatenate([ids, np.frombuffer(bucket, dtype=np.int32)])
        return np.sort(ids).astype(np.int64)

    def push(self, ids: Ids, due: NDArray[np.int64]) -> None:
        """Add clients that are not in the queue, each with its due round, shape (S,)."""
        for client, t in zip(ids.tolist(), due.tolist(), strict=True):
            if t < NEVER:
                self._buckets[t].append(client)


def draw_geometric(random: np.random.Generator, p: NDArray[np.float64]) -> NDArray[np.int64]:
    """Draw for each p the trial (1, 2, ...) of the first success, at most NEVER.

    >>> draw_geometric(np.random.default_rng(0), np.array([0.0, 1.0])).tolist() == [NEVER, 1]
    True
    """
    # NumPy requires p > 0; at 1e-300 the first success lies beyond NEVER.
    trials = random.geometric(np.maximum(p, 1e-300))
    return np.minimum(trials, NEVER, out=trials)


@spec
class Bernoulli(Availability):
    """Client n is available with probability p_n, independently over rounds and clients.

    The gaps between a client's available rounds are drawn, P(gap = g) = p (1 − p)^(g−1), so a
    round costs O(S) for S available clients. (Wang & Ji 2024, FedAU, section 6.)

    Args:
        rates: p_n: one number, one for each client, or a law; 0 means never, 1 always.

    Raises:
        InvalidInputError: rates outside [0, 1]; in `begin`, not one for each client.

    >>> running = Bernoulli(rates=[1.0, 0.0, 1.0]).begin(Population(clients=3), seed=0)
    >>> running.round(0).clients
    array([0, 2])
    """

    rates: Rates

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        p = resolve_rates(self.rates, population, seed)

        def draw_gaps(t: int, ids: Ids) -> NDArray[np.int64]:
            return draw_geometric(generator(seed, "bernoulli", t), p[ids])

        return RenewalStream(draw_geometric(generator(seed, "bernoulli-first"), p) - 1, draw_gaps)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64]:
        return resolve_rates(self.rates, population, seed)


@spec
class Markov(Availability):
    """Each client is a two-state chain: off → on with probability a_n, on → off with b_n.

    For a rate p (Wang & Ji 2024, FedAU, section 6):

        a = max_on, b = a (1/p − 1);   where that b exceeds 1:  b = 1, a = p / (1 − p).

    The chains start stationary, so P(available) = a / (a + b) = p in every round, and the
    correlation of rounds t and t + k is (1 − a − b)^k. For each available client, the process draws
    whether it switches off (b) and for how long (geometric in a), so a round costs O(S) for S
    available clients.

    Args:
        rates: p_n: one number, one for each client, or a law; 0 means never (the authors'
            program divides by it), 1 always.
        max_on: the largest off → on probability, in (0, 1]; smaller means longer bursts.

    Raises:
        InvalidInputError: rates outside [0, 1], max_on not within (0, 1]; in `begin`, not one rate
            for each client.

    >>> running = Markov(rates=[1.0, 0.0, 1.0]).begin(Population(clients=3), seed=0)
    >>> running.round(0).clients
    array([0, 2])
    """

    rates: Rates
    max_on: Annotated[float, Share] = 0.05

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        p = resolve_rates(self.rates, population, seed)
        random = generator(seed, "markov-first")
        first = draw_geometric(random, _on_probabilities(p, self.max_on))
        first[random.random(len(p)) < p] = 0

        def draw_gaps(t: int, ids: Ids) -> NDArray[np.int64]:
            random = generator(seed, "markov", t)
            on, off = transition_probabilities(p[ids], self.max_on)
            absence = draw_geometric(random, on)
            return np.where(random.random(len(ids)) < off, 1 + absence, 1)

        return RenewalStream(first, draw_gaps)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64]:
        return resolve_rates(self.rates, population, seed)


def transition_probabilities(
    p: NDArray[np.float64], max_on: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the probabilities a (off → on) and b (on → off) for rates p, each of shape (S,).

    >>> transition_probabilities(np.array([0.5, 0.02]), max_on=0.05)
    (array([0.05      , 0.02040816]), array([0.05, 1.  ]))
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.minimum(max_on * (1 / p - 1), 1.0)
    return _on_probabilities(p, max_on), off


def _on_probabilities(p: NDArray[np.float64], max_on: float) -> NDArray[np.float64]:
    """Return a = min(max_on, p / (1 − p)): b exceeds 1 exactly where the second is the smaller."""
    with np.errstate(divide="ignore"):
        return np.minimum(max_on, p / (1 - p))


@spec
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
    period: Annotated[int, AtLeast(2)] = 100
    start: Literal["stationary", "off"] = "stationary"

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


@spec
class Churn(Availability):
    """Client n arrives in round A_n and leaves for good before round A_n + L_n.

    In between it is available with probability p_n, independently. A_n is uniform on 0..R
    (`arrivals`) and L_n geometric with mean `stay`, P(L > k) = (1 - 1/stay)^k, so

        P(available in round t) = p_n / (R + 1) · Σ_{a=0}^{min(t, R)} (1 - 1/stay)^{t-a}

    Long-run rates are known (p_n) if nobody leaves. A round costs O(S) for S available clients.

    Args:
        rates: p_n: one number, one for each client, or a law.
        arrivals: R, the last round in which a client may arrive; 0: all are there from the start.
        stay: the mean number of rounds between arrival and departure, at least 1; None: nobody
            leaves.

    Raises:
        InvalidInputError: rates outside [0, 1], arrivals out of range, or a stay below 1;
            in `begin`, not one rate for each client.

    >>> running = Churn(rates=1.0, stay=1.0).begin(Population(clients=3), seed=0)
    >>> [len(running.round(t).clients) for t in range(3)]
    [3, 0, 0]
    """

    rates: Rates
    arrivals: Annotated[int, AtLeast(0)] = 0
    stay: Annotated[float | None, AtLeast(1)] = None

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        p = resolve_rates(self.rates, population, seed)
        random = generator(seed, "churn-first")
        arrival = random.integers(self.arrivals + 1, size=len(p))
        departure = np.full(len(p), NEVER, dtype=np.int64)
        if self.stay is not None:
            departure = arrival + draw_geometric(random, np.full(len(p), 1 / self.stay))

        def until_departure(due: NDArray[np.int64], leaves: NDArray[np.int64]) -> Ids:
            return np.where(due < leaves, due, NEVER)

        def draw_gaps(t: int, ids: Ids) -> NDArray[np.int64]:
            due = t + draw_geometric(generator(seed, "churn", t), p[ids])
            return until_departure(due, departure[ids]) - t

        first = arrival + draw_geometric(random, p) - 1
        return RenewalStream(until_departure(first, departure), draw_gaps)

    def known_rates(self, population: Population, seed: int) -> NDArray[np.float64] | None:
        """Return p_n; None if clients leave, as all are gone in the long run."""
        return resolve_rates(self.rates, population, seed) if self.stay is None else None
