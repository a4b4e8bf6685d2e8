"""Laws of participation under which advice is tested, in plain NumPy.

The ranking of methods was chosen with results of `LAWS` in view. `HELD_OUT` was written, trained
and recorded afterwards, to see what the advice is worth elsewhere.

Each law draws from a generator which clients are present, a table of T rounds and N = 50 clients.
Clients' data follow their numbers (clients 0 to 4 hold mostly the first of ten classes, and so on),
and so does their participation: clients that come rarely, late or at night also have other data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Present = NDArray[np.bool_]

CLIENTS = 50
RATES = 0.6 * (0.03 / 0.6) ** (np.arange(CLIENTS) / (CLIENTS - 1))
"""Rates from 0.6 to 0.03 in equal ratios, mean 0.19."""


@dataclass(frozen=True)
class Law:
    """A law of participation.

    Args:
        draw: samples who is present, shape (T, N), from a generator and T.
        declared: the clients' declared shares of all samples, which are then the wanted weights,
            shape (N,); None: equal weights are wanted.
    """

    draw: Callable[[np.random.Generator, int], Present]
    declared: Numbers | None = None


def independent(random: np.random.Generator, rounds: int) -> Present:
    return random.random((rounds, CLIENTS)) < RATES


def uniform(random: np.random.Generator, rounds: int) -> Present:
    return _smallest(random.random((rounds, CLIENTS)), 10)


def weighted(random: np.random.Generator, rounds: int) -> Present:
    """Five clients one after another by weight exp(−n / 5) (paper 004, stretched to N clients)."""
    clocks = random.exponential(size=(rounds, CLIENTS)) / np.exp(-np.arange(CLIENTS) / 5)
    return _smallest(clocks, 5)


def bursts(random: np.random.Generator, rounds: int) -> Present:
    """Two-state chains that turn on with probability at most 0.05 (paper 001)."""
    off_on = np.minimum(0.05, RATES / (1 - RATES))
    return _chains(random, rounds, 1 - off_on / RATES)


def bursts_of_which_five(random: np.random.Generator, rounds: int) -> Present:
    """Chains of correlation 0.9, of which a server takes 5 of the available clients."""
    available = _chains(random, rounds, np.full(CLIENTS, 0.9))
    priority = np.where(available, random.random(available.shape), np.inf)
    return _smallest(priority, 5) & available


def longest_absent(random: np.random.Generator, rounds: int) -> Present:
    """A server takes the 5 of the available clients that were absent longest (paper 003)."""
    available = random.random((rounds, CLIENTS)) < RATES
    present, last = np.zeros_like(available), np.full(CLIENTS, -1.0)
    for t in range(rounds):
        order = last + 0.5 * random.random(CLIENTS)  # ties in any order
        chosen = _smallest(np.where(available[t], order, np.inf)[None], 5)[0] & available[t]
        present[t], last[chosen] = chosen, t
    return present


def weibull_sessions(random: np.random.Generator, rounds: int) -> Present:
    """Sessions and pauses of Weibull lengths, shape 0.6; sessions of 8 rounds in the mean."""
    return _sessions(random, rounds, lambda n: random.weibull(0.6, n) / math.gamma(1 + 1 / 0.6))


def pareto_sessions(random: np.random.Generator, rounds: int) -> Present:
    """Sessions and pauses of Pareto lengths, shape 1.5, whose variance is infinite."""
    return _sessions(random, rounds, lambda n: (1 + random.pareto(1.5, n)) / 3)


def cool_down(random: np.random.Generator, rounds: int) -> Present:
    """A client rests 24 rounds after each in which it took part."""
    willing = 0.5 * (0.01 / 0.5) ** (np.arange(CLIENTS) / (CLIENTS - 1))
    warm_up = 500
    present = random.random((warm_up + rounds, CLIENTS)) < willing
    ready = np.zeros(CLIENTS)
    for t, row in enumerate(present):
        row &= ready <= t
        ready[row] = t + 25
    return present[warm_up:]


def groups_in_turn(random: np.random.Generator, rounds: int) -> Present:
    """Five groups take turns of 20 rounds; 5 of the 10 clients of the group (paper 002)."""
    group = _turns(random, rounds, groups=5, length=20)
    on = np.arange(CLIENTS) // 10 == group[:, None]
    return _smallest(np.where(on, random.random(on.shape), np.inf), 5)


def group_permutations(random: np.random.Generator, rounds: int) -> Present:
    """Five groups take turns of 10 rounds, the next 5 of a permutation of the group (paper 000)."""
    group = _turns(random, rounds, groups=5, length=10)
    present = np.zeros((rounds, CLIENTS), dtype=bool)
    queues: list[list[int]] = [[] for _ in range(5)]
    for t, g in enumerate(group):
        queues[g] = queues[g] or (10 * g + random.permutation(10)).tolist()
        present[t, queues[g][:5]] = True
        queues[g] = queues[g][5:]
    return present


def own_cycles(random: np.random.Generator, rounds: int) -> Present:
    """Each client is on for its own share of every 100 rounds (paper 001)."""
    phase = random.integers(100, size=CLIENTS)
    return (np.arange(rounds)[:, None] + phase) % 100 < np.round(100 * RATES)


def time_zones(random: np.random.Generator, rounds: int) -> Present:
    """Three time zones of 8 hours; half of the clients whose day it is, few of the others."""
    zone = _turns(random, rounds, groups=3, length=8)
    day = np.arange(CLIENTS) * 3 // CLIENTS == zone[:, None]
    return random.random(day.shape) < np.where(day, 0.5, 0.02)


def rise_and_fade(random: np.random.Generator, rounds: int) -> Present:
    """One half of the clients fades from 0.4 to 0.02, the other rises from 0.02 to 0.4."""
    rising = np.linspace(0.02, 0.4, rounds)[:, None]
    first = np.arange(CLIENTS) < CLIENTS // 2
    return random.random((rounds, CLIENTS)) < np.where(first, rising[::-1], rising)


def churn(random: np.random.Generator, rounds: int) -> Present:
    """A third leaves for good, another third joins; a fifth of those there takes part."""
    third = CLIENTS // 3
    join, leave = np.zeros(CLIENTS), np.full(CLIENTS, rounds)
    leave[:third] = random.uniform(0.2, 0.6, third) * rounds
    join[third : 2 * third] = random.uniform(0.4, 0.8, third) * rounds
    t = np.arange(rounds)[:, None]
    return (join <= t) & (t < leave) & (random.random((rounds, CLIENTS)) < 0.2)


def phones(random: np.random.Generator, rounds: int) -> Present:
    """Phones that charge: log-normal sessions that begin by the hour, mostly at night.

    A round is an hour. Client n begins 1.5 to 0.1 sessions a day, most at its own hour between 20
    and 2 o'clock (von Mises, κ = 1.5), a third more at weekends; the median length is 3 hours.
    """
    hours = rounds + 48
    clock = np.arange(hours)[:, None]
    share = np.arange(CLIENTS) / (CLIENTS - 1)
    daily = 1.5 * (0.1 / 1.5) ** share
    peak = 20 + 6 * share
    shape = np.exp(1.5 * np.cos(2 * np.pi * (clock - peak) / 24)) / (24 * np.i0(1.5))
    weekend = np.where(clock // 24 % 7 >= 5, 1.33, 1.0)
    begun = random.random((hours, CLIENTS)) < 1 - np.exp(-daily * shape * weekend)
    length = np.ceil(3 * np.exp(0.9 * random.normal(size=begun.shape)))
    end = np.maximum.accumulate(np.where(begun, clock + length, 0), axis=0)
    return (clock < end)[48:]


LAWS: dict[str, Law] = {
    "independent, uneven rates": Law(independent),
    "uniform cohorts": Law(uniform),
    "cohorts by weight": Law(weighted),
    "bursts": Law(bursts),
    "bursts, 5 of the available": Law(bursts_of_which_five),
    "longest absent first": Law(longest_absent),
    "Weibull sessions": Law(weibull_sessions),
    "Pareto sessions": Law(pareto_sessions),
    "cool-down of 24 rounds": Law(cool_down),
    "five groups in turn": Law(groups_in_turn),
    "groups in turn, permutations": Law(group_permutations),
    "own cycles of 100 rounds": Law(own_cycles),
    "three time zones": Law(time_zones),
    "halves that rise and fade": Law(rise_and_fade),
    "churn": Law(churn),
    "phones": Law(phones),
    "uniform, weighted by data": Law(uniform, declared=RATES / RATES.sum()),
}


# Held out


def log_normal_sessions(random: np.random.Generator, rounds: int) -> Present:
    """Sessions and pauses of log-normal lengths with a coefficient of variation of 1.8."""
    spread = math.sqrt(math.log(1 + 1.8**2))
    return _sessions(random, rounds, lambda n: random.lognormal(-(spread**2) / 2, spread, n))


def arrivals(random: np.random.Generator, rounds: int) -> Present:
    """Clients arrive all the time, stay for a fifth of the log or more, and do not return."""
    arrive = random.uniform(-0.4, 0.7, CLIENTS) * rounds
    stay = (0.2 + random.exponential(0.3, CLIENTS)) * rounds
    t = np.arange(rounds)[:, None]
    there = (arrive <= t) & (t < np.maximum(arrive, 0) + stay)
    return there & (random.random((rounds, CLIENTS)) < RATES)


def wandering_rates(random: np.random.Generator, rounds: int) -> Present:
    """The logit of each client's rate wanders by a random walk of its own, up or down by 2."""
    steps = random.normal(0, 2 / math.sqrt(rounds), (rounds, CLIENTS))
    logits = np.log(RATES / (1 - RATES)) + np.cumsum(steps, axis=0)
    return random.random((rounds, CLIENTS)) < 1 / (1 + np.exp(-logits))


def regions_and_devices(random: np.random.Generator, rounds: int) -> Present:
    """Rates are those of five regions times those of the devices in them, both log-normal."""
    fixed = np.random.default_rng(5)
    rates = 0.1 * np.repeat(fixed.lognormal(0, 0.8, 5), 10) * fixed.lognormal(0, 0.8, CLIENTS)
    return random.random((rounds, CLIENTS)) < np.clip(rates, 0.01, 0.9)


def cycles_of_many_lengths(random: np.random.Generator, rounds: int) -> Present:
    """Cycles of 16, 24, 36, 60 or 90 rounds; a client is there for its share of them, mostly."""
    length = np.array([16, 24, 36, 60, 90])[np.arange(CLIENTS) % 5]
    place = (np.arange(rounds)[:, None] + random.integers(90, size=CLIENTS)) % length
    on = place < np.maximum(1, np.round(RATES * length))
    return on & (random.random(on.shape) < 0.8)


def outages(random: np.random.Generator, rounds: int) -> Present:
    """Each group of ten clients is down together, for 40 rounds after 80 on average."""
    lengths = random.exponential(1.0, (5, rounds // 10, 2)) * [80, 40]
    ends = np.cumsum(lengths.reshape(5, -1), axis=1) - 200
    t = np.arange(rounds)
    up = np.stack([np.searchsorted(row, t, side="right") % 2 == 0 for row in ends], axis=1)
    return np.repeat(up, 10, axis=1) & (random.random((rounds, CLIENTS)) < RATES)


def separated_by_day(random: np.random.Generator, rounds: int) -> Present:
    """Five at random of the clients present, mostly by day, and unused in the last 12 rounds."""
    peak = 24 * np.arange(CLIENTS) / CLIENTS
    chance = 0.35 * (1 + np.cos(2 * np.pi * (np.arange(rounds)[:, None] - peak) / 24))
    available = random.random((rounds, CLIENTS)) < chance
    present, last = np.zeros_like(available), np.full(CLIENTS, -13)
    for t in range(rounds):
        keys = np.where(available[t] & (t - last > 12), random.random(CLIENTS), np.inf)
        present[t] = _smallest(keys[None], 5)[0] & np.isfinite(keys)
        last[present[t]] = t
    return present


def short_charges(random: np.random.Generator, rounds: int) -> Present:
    """Phones of another population: rounds of half an hour, gamma-distributed sessions.

    Client n begins 4 to 0.3 sessions a day, most between 6 and 10 o'clock or twelve hours later;
    they last 1.5 hours on average, and half as many begin at weekends. On a fifth of its days a
    client does not charge at all.
    """
    steps = rounds + 96
    clock = np.arange(steps)[:, None] / 2
    share = np.arange(CLIENTS) / (CLIENTS - 1)
    daily = 4 * (0.3 / 4) ** share
    shape = np.exp(2.5 * np.cos(4 * np.pi * (clock - 6 - 4 * share) / 24)) / (48 * np.i0(2.5))
    weekend = np.where(clock // 24 % 7 >= 5, 0.5, 1.0)
    active = random.random((steps // 48 + 1, CLIENTS)) < 0.8
    chance = 1 - np.exp(-daily * shape * weekend)
    begun = active[np.arange(steps) // 48] & (random.random((steps, CLIENTS)) < chance)
    length = np.ceil(random.gamma(2.0, 1.5, begun.shape))
    end = np.maximum.accumulate(np.where(begun, 2 * clock + length, 0), axis=0)
    return (2 * clock < end)[96:]


def favourites(random: np.random.Generator, rounds: int) -> Present:
    """The ten available clients that a server prefers, each of which fails at its own rate."""
    available = random.random((rounds, CLIENTS)) < 0.6
    liking = np.linspace(1.0, 0.0, CLIENTS) + random.gumbel(0, 0.25, (rounds, CLIENTS))
    chosen = _smallest(np.where(available, -liking, np.inf), 10) & available
    return chosen & (random.random(chosen.shape) < np.linspace(0.9, 0.5, CLIENTS)[::-1])


def fleet_update(random: np.random.Generator, rounds: int) -> Present:
    """Half-way, a third of the clients comes a tenth as often, and another third twice as often."""
    third = np.arange(CLIENTS) * 3 // CLIENTS
    later = 0.25 * np.array([0.1, 2.0, 1.0])[third]
    rates = np.where(np.arange(rounds)[:, None] < rounds // 2, 0.25, later)
    return random.random((rounds, CLIENTS)) < rates


HELD_OUT: dict[str, Law] = {
    "log-normal sessions": Law(log_normal_sessions),
    "arrivals and departures": Law(arrivals),
    "wandering rates": Law(wandering_rates),
    "regions and devices": Law(regions_and_devices),
    "cycles of many lengths": Law(cycles_of_many_lengths),
    "outages of groups": Law(outages),
    "separated, by day": Law(separated_by_day),
    "short charges": Law(short_charges),
    "favourites that fail": Law(favourites),
    "fleet update": Law(fleet_update),
}


def _smallest(values: Numbers, size: int) -> Present:
    """Return where each row has its `size` smallest values."""
    chosen = np.argpartition(values, size - 1, axis=1)[:, :size]
    present = np.zeros(values.shape, dtype=bool)
    np.put_along_axis(present, chosen, True, axis=1)
    return present


def _chains(random: np.random.Generator, rounds: int, correlations: Numbers) -> Present:
    """Stationary two-state chains with the rates `RATES`."""
    draws = random.random((rounds, CLIENTS))
    stay = RATES + (1 - RATES) * correlations
    begin = RATES * (1 - correlations)
    present = draws < RATES
    for t in range(1, rounds):
        present[t] = draws[t] < np.where(present[t - 1], stay, begin)
    return present


def _sessions(
    random: np.random.Generator, rounds: int, lengths: Callable[[int], Numbers]
) -> Present:
    """Alternating sessions of 8 rounds in the mean and pauses, by client; `lengths` have mean 1."""
    warm_up = 2000
    present = np.zeros((rounds, CLIENTS), dtype=bool)
    for n, rate in enumerate(RATES):
        means = np.tile([8.0, 8.0 * (1 - rate) / rate], 2000)
        ends = np.cumsum(means * lengths(len(means)))
        phase = np.searchsorted(ends, warm_up + np.arange(rounds), side="right")
        present[:, n] = phase % 2 == 0
    return present


def _turns(random: np.random.Generator, rounds: int, groups: int, length: int) -> NDArray[np.int64]:
    """Return whose turn it is in each round, shape (T,), from a random offset."""
    start = random.integers(groups * length)
    return (np.arange(rounds) + start) // length % groups
