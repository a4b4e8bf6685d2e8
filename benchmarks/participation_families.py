"""Families of participation whose rates and weights are known, drawn with NumPy alone.

A family draws many logs at once. The rates, and the weights of averaging over the cohort (sums of
1 / |S_t| over the nonempty rounds), are exact, or means over 10⁶ further rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import gamma

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Numbers = NDArray[np.float64]
Present = NDArray[np.bool_]
Random = np.random.Generator
Draw = Callable[[Random, int, int], Present]
"""From a generator, the number of logs and T to participation, shape (logs, T, N)."""


@dataclass(frozen=True)
class Known:
    """Logs of a known process.

    Args:
        draw: samples participation.
        rates: of the clients, shape (N,).
        weights: of averaging over the cohort, (N,), summing to 1.
        step: T must be a multiple of this.
        samples: of the clients, which weight their updates, (N,); then `weights` are those of
            averaging by samples. None: no samples.
    """

    draw: Draw
    rates: Numbers
    weights: Numbers
    step: int = 1
    samples: Numbers | None = None

    @property
    def skew(self) -> float:
        """Σ |w_n − 1/N|."""
        return float(np.abs(self.weights - 1 / len(self.weights)).sum())


def uneven(clients: int) -> Numbers:
    draws = np.random.default_rng(0).gamma(1.0, 0.15, clients)
    return np.clip(draws, 0.02, 0.9)


def independent_weights(rates: Numbers) -> Numbers:
    """Exact weights of independent clients: w_n ∝ p_n E[1 / (1 + others present)]."""
    weights = []
    for n, own in enumerate(rates):
        distribution = np.ones(1)
        for rate in np.delete(rates, n):
            distribution = np.convolve(distribution, [1 - rate, rate])
        weights.append(own * float((distribution / np.arange(1, len(distribution) + 1)).sum()))
    return np.array(weights) / sum(weights)


def measured(draw: Draw, step: int = 1) -> Known:
    """A process whose rates and weights are means over 10⁶ rounds."""
    random = np.random.default_rng(2**32)
    counts, shares, held = 0.0, 0.0, 0
    for _ in range(10):
        present = draw(random, 100, 1000 // step * step)
        cohorts = present.sum(axis=2, keepdims=True)
        counts = counts + present.mean(axis=(0, 1)) / 10
        shares = shares + (present / np.maximum(cohorts, 1)).sum(axis=(0, 1))
        held += int((cohorts > 0).sum())
    weights = np.asarray(shares) / held
    return Known(draw, np.asarray(counts), weights / weights.sum(), step)


def independent(draw: Draw, rates: Numbers) -> Known:
    return Known(draw, rates, independent_weights(rates))


def alike(draw: Draw, clients: int, rate: float) -> Known:
    return Known(draw, np.full(clients, rate), np.full(clients, 1 / clients))


# Chains


def chain_states(
    random: Random, logs: int, rounds: int, rates: Numbers, correlation: Numbers
) -> Present:
    """Stationary two-state chains, shape (logs, rounds, N)."""
    clients = len(rates)
    stay = rates + (1 - rates) * correlation
    back = rates * (1 - correlation)
    present = np.empty((logs, rounds, clients), dtype=bool)
    state = random.random((logs, clients)) < rates
    for t in range(rounds):
        if t:
            state = random.random((logs, clients)) < np.where(state, stay, back)
        present[:, t] = state
    return present


def chains(rates: Numbers, correlation: Numbers | float = 0.0) -> Known:
    """Independent clients, each a stationary two-state chain."""
    both = np.broadcast_to(np.asarray(correlation, dtype=float), rates.shape)

    def draw(random: Random, logs: int, rounds: int) -> Present:
        if not both.any():
            return random.random((logs, rounds, len(rates))) < rates
        return chain_states(random, logs, rounds, rates, both)

    return independent(draw, rates)


def bursts(rates: Numbers) -> Known:
    """P(off → on) at most 0.05: rarer clients are less correlated."""
    off_on = np.minimum(0.05, rates / (1 - rates))
    return chains(rates, 1 - off_on / rates)


# A server that selects among the available


def smallest(keys: Numbers, size: int) -> Present:
    """Mark the `size` smallest finite keys of each row."""
    chosen = np.zeros(keys.shape, dtype=bool)
    first = np.argpartition(keys, size - 1, axis=1)[:, :size]
    np.put_along_axis(chosen, first, True, axis=1)
    return chosen & np.isfinite(keys)


def five_at_random(clients: int) -> Known:
    """Markov availability (correlation 0.9); 5 of the available take part, at random."""
    rates = np.linspace(0.25, 0.75, clients)

    def draw(random: Random, logs: int, rounds: int) -> Present:
        available = chain_states(random, logs, rounds, rates, np.full(clients, 0.9))
        for t in range(rounds):
            keys = np.where(available[:, t], random.random((logs, clients)), np.inf)
            available[:, t] = smallest(keys, 5)
        return available

    return measured(draw)


def longest_absent(clients: int) -> Known:
    """Markov availability (correlation 0.9); the longest absent 5 of the available take part."""
    rates = np.linspace(0.25, 0.75, clients)

    def draw(random: Random, logs: int, rounds: int) -> Present:
        before = 4 * clients // 5 + 100
        available = chain_states(random, logs, rounds + before, rates, np.full(clients, 0.9))
        last = -random.random((logs, clients))
        for t in range(rounds + before):
            available[:, t] = smallest(np.where(available[:, t], last, np.inf), 5)
            ties = 0.5 * random.random((logs, clients))
            last = np.where(available[:, t], t + 1 + ties, last)
        return available[:, before:]

    return measured(draw)


def rest(clients: int, pause: int = 24) -> Known:
    """Each client joins with its own probability, then pauses for 24 rounds."""
    joins = np.geomspace(0.02, 0.3, clients)
    rates = 1 / (pause + 1 / joins)

    def draw(random: Random, logs: int, rounds: int) -> Present:
        waiting = random.random((logs, clients)) < rates / joins
        until = np.where(waiting, 0, random.integers(1, pause + 1, (logs, clients)))
        present = np.empty((logs, rounds, clients), dtype=bool)
        for t in range(rounds):
            present[:, t] = (until <= t) & (random.random((logs, clients)) < joins)
            until = np.where(present[:, t], t + 1 + pause, until)
        return present

    return independent(draw, rates)


def rotation(clients: int, pause: int = 24) -> Known:
    """A fortieth of the clients a round, at random among those that did not take part in 24."""
    size = max(1, clients // 40)
    pause = min(pause, clients // 2)

    def draw(random: Random, logs: int, rounds: int) -> Present:
        before = 100
        until = np.zeros((logs, clients))
        present = np.empty((logs, rounds + before, clients), dtype=bool)
        for t in range(rounds + before):
            keys = np.where(until <= t, random.random((logs, clients)), np.inf)
            present[:, t] = smallest(keys, size)
            until = np.where(present[:, t], t + 1 + pause, until)
        return present[:, before:]

    return alike(draw, clients, size / clients)


# Sessions


def renewals(
    random: Random,
    logs: int,
    rounds: int,
    rates: Numbers,
    duration: Callable,
    residual: Callable,
    on: float,
) -> Present:
    """Alternating renewal processes in equilibrium, seen at whole times.

    `duration` draws on and off times of mean 1, `residual` the rest of one in progress; both get
    the generator, a shape, and whether the time is an on time.
    """
    shape = (logs, len(rates))
    state = random.random(shape) < rates
    means = {True: np.full(shape, on), False: np.broadcast_to(on * (1 - rates) / rates, shape)}

    def scaled(law: Callable, state: Present) -> Numbers:
        drawn = np.where(state, law(random, shape, True), law(random, shape, False))
        return drawn * np.where(state, means[True], means[False])

    switches = np.zeros((logs, rounds + 1, len(rates)), dtype=np.int16)
    start, time = state, scaled(residual, state)
    rows, columns = np.indices(shape)
    while (time < rounds).any():
        at = np.minimum(np.ceil(time), rounds).astype(int)
        np.add.at(switches, (rows, at, columns), 1)
        state = ~state
        time = time + scaled(duration, state)
    parity = np.cumsum(switches[:, :rounds], axis=1) % 2 == 1
    return parity ^ start[:, None]


def weibull_sessions(clients: int) -> Known:
    """On and off times are Weibull with shape 0.6; on times have a mean of 4 rounds."""
    shape = 0.6
    rates = np.linspace(0.1, 0.5, clients)
    mean = gamma(1 + 1 / shape)

    def duration(random: Random, size: tuple[int, int], on: bool) -> Numbers:
        return random.weibull(shape, size) / mean

    def residual(random: Random, size: tuple[int, int], on: bool) -> Numbers:
        return random.random(size) * random.gamma(1 + 1 / shape, size=size) ** (1 / shape) / mean

    return independent(
        lambda random, logs, rounds: renewals(random, logs, rounds, rates, duration, residual, 4.0),
        rates,
    )


def pareto_sessions(clients: int) -> Known:
    """On times are Pareto with exponent 1.5 and mean 4 rounds; off times are exponential."""
    tail = 1.5
    rates = np.linspace(0.1, 0.5, clients)
    mean = tail / (tail - 1)

    def duration(random: Random, size: tuple[int, int], on: bool) -> Numbers:
        return (1 + random.pareto(tail, size)) / mean if on else random.exponential(size=size)

    def residual(random: Random, size: tuple[int, int], on: bool) -> Numbers:
        biased = (1 + random.pareto(tail - 1, size)) / mean
        return random.random(size) * biased if on else random.exponential(size=size)

    return independent(
        lambda random, logs, rounds: renewals(random, logs, rounds, rates, duration, residual, 4.0),
        rates,
    )


def log_normal_sessions(clients: int) -> Known:
    """Sessions of 8 rounds, pauses of 24 on average: log-normal, coefficient of variation 1.8."""
    spread = float(np.sqrt(np.log(1 + 1.8**2)))
    rates = np.full(clients, 0.25)

    def duration(random: Random, size: tuple[int, int], on: bool) -> Numbers:
        return random.lognormal(-(spread**2) / 2, spread, size)

    def residual(random: Random, size: tuple[int, int], on: bool) -> Numbers:
        return random.random(size) * random.lognormal(spread**2 / 2, spread, size)

    return independent(
        lambda random, logs, rounds: renewals(random, logs, rounds, rates, duration, residual, 8.0),
        rates,
    )


def long_memory(clients: int, hurst: float, rate: float = 0.2) -> Known:
    """Fractional Gaussian noise below a threshold: memory on every time scale, without an end.

    By circulant embedding (Davies and Harte 1987): the noise has the covariances
    (|k + 1|^2H − 2 |k|^2H + |k − 1|^2H) / 2.
    """

    def draw(random: Random, logs: int, rounds: int) -> Present:
        lags = np.arange(rounds + 1)
        covariance = (
            (lags + 1.0) ** (2 * hurst)
            - 2 * lags ** (2 * hurst)
            + np.abs(lags - 1.0) ** (2 * hurst)
        ) / 2
        circle = np.concatenate([covariance, covariance[-2:0:-1]])
        scales = np.sqrt(np.maximum(np.fft.fft(circle).real, 0) / len(circle))
        shape = (logs, clients, len(circle))
        noise = random.standard_normal(shape) + 1j * random.standard_normal(shape)
        series = np.fft.fft(scales * noise, axis=2).real[:, :, :rounds]
        return np.asarray(np.swapaxes(series, 1, 2) < stats.norm.ppf(rate))

    return alike(draw, clients, rate)


def few_in_sessions(clients: int) -> Known:
    """A tenth in exponential sessions of 100 rounds after 300, the others in independent rounds."""
    rates = np.where(np.arange(clients) % 10, 0.2, 0.25)

    def draw(random: Random, logs: int, rounds: int) -> Present:
        slow = np.where(np.arange(clients) % 10, 0.0, 1 - 1 / 75)  # 1 / 100 + 1 / 300
        return chain_states(random, logs, rounds, rates, slow)

    return independent(draw, rates)


def weather(clients: int) -> Known:
    """Bad rounds, in which all clients come a fifth as often, last 10 rounds after 20."""
    rates = np.linspace(0.1, 0.5, clients)

    def draw(random: Random, logs: int, rounds: int) -> Present:
        bad = chain_states(random, logs, rounds, np.full(1, 1 / 3), np.full(1, 0.85))
        return random.random((logs, rounds, clients)) < rates * np.where(bad, 0.2, 1.0)

    return measured(draw)


# Weeks


def phone_weeks(clients: int, weeks: int = 4, hours: int = 3) -> Known:
    """Logs whose weeks are drawn from a fixed pool of weeks of phones; rounds of 3 hours.

    A phone charges on most evenings, from an hour of its own, for a log-normal time, and at times
    during the day; weekends are later and longer.
    """
    random = np.random.default_rng(clients)
    days = 7 * weeks
    weekend = np.arange(days) % 7 >= 5
    begin = random.normal(22, 2.0, clients) + random.normal(0, 1.2, (days, clients))
    begin += 1.5 * weekend[:, None]
    length = random.lognormal(np.log(6), 0.5, clients) * random.lognormal(0, 0.4, (days, clients))
    charges = random.random((days, clients)) < random.beta(4, 1.5, clients)
    day_begin = random.uniform(8, 20, (days, clients))
    day_length = random.lognormal(np.log(1.2), 0.8, (days, clients))
    day_charges = random.random((days, clients)) < random.beta(1, 3, clients)
    total = 24 * days
    moments = np.arange(0, total, hours)[:, None]
    pool = np.zeros((len(moments), clients), dtype=bool)
    for day in range(days):
        for starts, lasts, does in ((begin, length, charges), (day_begin, day_length, day_charges)):
            since = (moments - 24 * day - starts[day]) % total
            pool |= (since < lasts[day]) & does[day]
    step = 7 * 24 // hours
    pool = pool.reshape(weeks, step, clients)
    flat = pool.reshape(-1, clients)
    cohorts = flat.sum(axis=1, keepdims=True)
    weights = (flat / np.maximum(cohorts, 1)).sum(axis=0)

    def draw(random: Random, logs: int, rounds: int) -> Present:
        chosen = random.integers(weeks, size=(logs, rounds // step))
        return pool[chosen].reshape(logs, -1, clients)

    return Known(draw, flat.mean(axis=0), weights / weights.sum(), step)


# Cohorts of a fixed size, cycles, turns


@cache
def successive_weights(weights: tuple[float, ...], size: int) -> Numbers:
    """Inclusion probabilities of successive sampling over the size: 10⁶ draws."""
    random, counts = np.random.default_rng(1), np.zeros(len(weights))
    for _ in range(200):
        clocks = random.exponential(size=(5000, len(weights))) / np.array(weights)
        counts += smallest(clocks, size).sum(axis=0)
    return counts / counts.sum()


def successive(weights: Numbers) -> Known:
    """A tenth of the clients, drawn one after another by weight (exponential clocks)."""
    clients, size = len(weights), max(1, len(weights) // 10)

    def draw(random: Random, logs: int, rounds: int) -> Present:
        clocks = random.exponential(size=(logs * rounds, clients)) / weights
        return smallest(clocks, size).reshape(logs, rounds, clients)

    if np.ptp(weights) == 0:
        return alike(draw, clients, size / clients)
    exact = weights / weights.sum() if size == 1 else successive_weights(tuple(weights), size)
    return Known(draw, size * exact, exact)


def turns(clients: int) -> Known:
    """Three groups, each on for 20 rounds: present with 0.5 then, else with 0.05."""
    group = np.arange(clients) % 3

    def draw(random: Random, logs: int, rounds: int) -> Present:
        turn = (np.arange(rounds) + random.integers(60, size=(logs, 1))) // 20 % 3
        chance = np.where(turn[:, :, None] == group, 0.5, 0.05)
        return random.random((logs, rounds, clients)) < chance

    exact = measured(draw, 60)
    return Known(draw, np.full(clients, 0.2), exact.weights)


def strict_cycle(clients: int, period: int) -> Known:
    """Each client is on for the first part of its cycle, which starts at a random round."""
    on = np.clip(np.rint(uneven(clients) * period), 1, period - 1)

    def draw(random: Random, logs: int, rounds: int) -> Present:
        starts = random.integers(period, size=(logs, 1, clients))
        return (np.arange(rounds)[:, None] + starts) % period < on

    return Known(draw, on / period, np.full(clients, np.nan))  # weights depend on the phases


def permutations(clients: int) -> Known:
    """Everyone once, in a random order, before anyone returns."""
    size = max(1, clients // 10)

    def draw(random: Random, logs: int, rounds: int) -> Present:
        passes = -(-rounds * size // clients)
        orders = random.random((logs, passes, clients)).argsort(axis=2)
        queue = orders.reshape(logs, -1)[:, : rounds * size].reshape(logs, rounds, size)
        present = np.zeros((logs, rounds, clients), dtype=bool)
        np.put_along_axis(present, queue, True, axis=2)
        return present

    return alike(draw, clients, size / clients)


def back_off(clients: int, size: int = 6) -> Known:
    """The server takes 6 clients at random; k failures in a row keep one out for 2^k rounds."""
    fails, before, most = np.linspace(0, 0.9, clients), 1000, 6

    def draw(random: Random, logs: int, rounds: int) -> Present:
        until = np.full((logs, clients), -before)
        failures = np.zeros((logs, clients), dtype=np.int64)
        present = np.empty((logs, rounds, clients), dtype=bool)
        for t in range(-before, rounds):
            keys = np.where(until <= t, random.random((logs, clients)), np.inf)
            chosen = smallest(keys, size)
            failed = chosen & (random.random((logs, clients)) < fails)
            failures = np.where(
                chosen, np.where(failed, np.minimum(failures + 1, most), 0), failures
            )
            until = np.where(failed, t + 2**failures, until)
            if t >= 0:
                present[:, t] = chosen & ~failed
        return present

    return measured(draw)


def sites(clients: int, size: int = 5) -> Known:
    """Sites of 5 clients are up together, independently in each round; 0.8 of them answer."""
    up = np.repeat(np.linspace(0.03, 0.3, clients // size), size)

    def draw(random: Random, logs: int, rounds: int) -> Present:
        draws = np.repeat(random.random((logs, rounds, clients // size)), size, axis=2)
        return (draws < up) & (random.random((logs, rounds, clients)) < 0.8)

    return measured(draw)


def evenly(low: float, high: float, clients: int) -> Numbers:
    return np.linspace(low, high, clients)


def few(clients: int, rate: float, above: float) -> Known:
    """A tenth of the clients at the rate `above`, all others at `rate`."""
    return chains(np.where(np.arange(clients) % 10, rate, above))


def by_samples(clients: int) -> Known:
    """Uniform cohorts of a tenth, averaged by samples of a log-normal law of σ = 1.5."""
    known = successive(np.ones(clients))
    samples = np.exp(1.5 * np.random.default_rng(0).normal(size=clients))
    sums = np.zeros(clients)
    random = np.random.default_rng(2**32)
    for _ in range(10):
        parts = known.draw(random, 100, 1000) * samples
        sums += (parts / parts.sum(axis=2, keepdims=True)).sum(axis=(0, 1))
    return Known(known.draw, known.rates, sums / sums.sum(), samples=samples)


FAMILIES: dict[str, Callable[[int], Known]] = {
    "Bernoulli, uneven rates": lambda n: chains(uneven(n)),
    "Bernoulli, rates 0.15 to 0.3": lambda n: chains(evenly(0.15, 0.3, n)),
    "Bernoulli, all 0.2": lambda n: chains(np.full(n, 0.2)),
    "Bernoulli, a tenth 0.15, others 0.1": lambda n: few(n, 0.1, 0.15),
    "Bernoulli, a tenth 0.4, others 0.1": lambda n: few(n, 0.1, 0.4),
    "uniform, a tenth a round": lambda n: successive(np.ones(n)),
    "paper 004's weights, stretched to N clients": lambda n: successive(
        np.exp(-np.arange(n) * 10 / n)
    ),
    "every second client of threefold weight": lambda n: successive(1.0 + 2 * (np.arange(n) % 2)),
    "weights from 1 to 2": lambda n: successive(evenly(1, 2, n)),
    "uniform, a tenth a round, averaged by log-normal samples": by_samples,
    "Markov, correlation 0.3, uneven rates": lambda n: chains(uneven(n), 0.3),
    "Markov, correlation up to 0.95, uneven rates": lambda n: bursts(uneven(n)),
    "Markov, correlation 0.67 to 0.83, rates 0.15 to 0.3": lambda n: bursts(evenly(0.15, 0.3, n)),
    "Markov, correlation 0.75, all 0.2": lambda n: chains(np.full(n, 0.2), 0.75),
    "Markov, correlation 0.75, 0.2 and 0.4 by turns": lambda n: chains(
        np.where(np.arange(n) % 2, 0.4, 0.2), 0.75
    ),
    "Markov, correlation 0.3 and 0.9 by turns, all 0.2": lambda n: chains(
        np.full(n, 0.2), np.where(np.arange(n) % 2, 0.9, 0.3)
    ),
    "Markov, correlation 0.95 of every seventh, all 0.2": lambda n: chains(
        np.full(n, 0.2), np.where(np.arange(n) % 7, 0.0, 0.95)
    ),
    "Markov, correlation 0.95 of a rare half (0.05), others 0.3": lambda n: chains(
        np.where(np.arange(n) % 2, 0.3, 0.05), np.where(np.arange(n) % 2, 0.0, 0.95)
    ),
    "Markov 0.9, server takes 5 at random": five_at_random,
    "Markov 0.9, server takes the 5 longest absent": longest_absent,
    "Weibull(0.6) sessions": weibull_sessions,
    "Pareto(1.5) sessions": pareto_sessions,
    "log-normal sessions": log_normal_sessions,
    "a tenth in sessions of 100 rounds": few_in_sessions,
    "memory without end, Hurst exponent 0.6": lambda n: long_memory(n, 0.6),
    "memory without end, Hurst exponent 0.7": lambda n: long_memory(n, 0.7),
    "memory without end, Hurst exponent 0.8": lambda n: long_memory(n, 0.8),
    "bad rounds common to all": weather,
    "sites of five clients that come together": sites,
    "back-off after failures": back_off,
    "pause of 24 rounds": rest,
    "a fortieth a round, pause of 24 rounds": rotation,
    "weeks of phones, redrawn": phone_weeks,
    "three groups in turn, at random within": turns,
    "cycles of 24 rounds": lambda n: strict_cycle(n, 24),
    "cycles of 100 rounds": lambda n: strict_cycle(n, 100),
    "permutations": permutations,
}
