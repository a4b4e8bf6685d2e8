"""False alarms of the audit's verdicts on stationary logs, and its power against drift.

Families come from `participation_families`, drawn with NumPy alone; a false alarm is a verdict that
claims an effect which the process does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from audit_record import TABLES, Row, Share, report
from fedtide.auditing import ParticipationLog
from fedtide.auditing.statistics.pattern import Pattern, find_pattern
from participation_families import FAMILIES, Draw, chain_states, smallest

Numbers = NDArray[np.float64]
Present = NDArray[np.bool_]
Random = np.random.Generator


STATES = ("positive", "negative", "none")


@dataclass(frozen=True)
class Truth:
    """Which effects a stationary process has.

    Args:
        memory: the states of memory that are right.
        period: of which any period found must be a multiple; None if there is none.
    """

    memory: tuple[str, ...] = ("positive",)
    period: int | None = None


INDEPENDENT, DEPENDENT, EVEN = Truth(("none",)), Truth(), Truth(("negative",))
EITHER = Truth(STATES)

STATIONARY: dict[str, Truth] = {
    "Bernoulli, uneven rates": INDEPENDENT,
    "Bernoulli, uneven rates, server down at times": INDEPENDENT,
    "uniform, a tenth a round": INDEPENDENT,
    "paper 004's weights, stretched to N clients": INDEPENDENT,
    "four regions, each up in half of the rounds": INDEPENDENT,
    "Markov, correlation 0.3, uneven rates": DEPENDENT,
    "Markov, correlation up to 0.95, uneven rates": DEPENDENT,
    "Markov, correlation 0.75, all 0.2": DEPENDENT,
    "Markov, correlation 0.75, all 0.2, server down at times": DEPENDENT,
    "Markov, correlation 0.95, all 0.3": DEPENDENT,
    "four regions, each a chain of correlation 0.8": DEPENDENT,
    "Markov 0.9, server takes 5 at random": DEPENDENT,
    "Markov 0.9, server takes the 5 longest absent": EITHER,
    "Weibull(0.6) sessions": DEPENDENT,
    "Pareto(1.5) sessions": DEPENDENT,
    "log-normal sessions": DEPENDENT,
    "a tenth in sessions of 100 rounds": DEPENDENT,
    "bad rounds common to all": DEPENDENT,
    "pause of 24 rounds": EVEN,
    "a fortieth a round, pause of 24 rounds": EVEN,
    "weeks of phones, redrawn": Truth(STATES, 8),
    "cycles of 24 rounds": Truth(("negative",), 24),
    "cycles of 100 rounds": Truth(("negative",), 100),
    "three groups in turn, at random within": Truth(("none", "negative"), 60),
    "permutations": EVEN,
    "two regimes of 80 rounds, common to all": EITHER,
    "five regions, shocks of 40 rounds": EITHER,
}
"""Memory is judged besides the cycle. Regimes and shocks are causes that clients have in common."""


def regions(random: Random, logs: int, rounds: int, clients: int, correlation: float) -> Present:
    """Four regions go up and down; the clients of one that is up take part with 0.5."""
    rates = np.full(4, 0.5)
    up = chain_states(random, logs, rounds, rates, np.full(4, correlation))
    return up[:, :, np.arange(clients) % 4] & (random.random((logs, rounds, clients)) < 0.5)


def regimes(random: Random, logs: int, rounds: int, clients: int) -> Present:
    """Two regimes of 80 rounds on average; in one of them all clients come 0.4 times as often."""
    bad = chain_states(random, logs, rounds, np.full(1, 0.5), np.full(1, 1 - 2 / 80))
    rates = np.linspace(0.1, 0.5, clients)
    return random.random((logs, rounds, clients)) < rates * np.where(bad, 0.4, 1.0)


def shocks(random: Random, logs: int, rounds: int, clients: int) -> Present:
    """Five regions; a fifth of the time one is down, for 40 rounds on average."""
    down = chain_states(random, logs, rounds, np.full(5, 0.2), np.full(5, 1 - 1.25 / 40))
    rates = np.linspace(0.1, 0.5, clients)
    factors = np.where(down, 0.2, 1.0)[:, :, np.arange(clients) % 5]
    return random.random((logs, rounds, clients)) < rates * factors


def interrupted(draw: Draw) -> Draw:
    """The same, without three times up to 24 rounds in which the server is down."""

    def draw_rest(random: Random, logs: int, rounds: int) -> Present:
        present = draw(random, logs, rounds)
        for log in present:
            for begin in random.integers(0, rounds, 3):
                log[begin : begin + random.integers(1, 25)] = False
        return present

    return draw_rest


def make_draw(name: str, clients: int) -> Draw:
    if name.endswith(", server down at times"):
        return interrupted(FAMILIES[name.removesuffix(", server down at times")](clients).draw)
    if name.startswith(("two regimes", "five regions")):
        law = regimes if name.startswith("two") else shocks
        return lambda random, logs, rounds: law(random, logs, rounds, clients)
    if name.startswith("four regions"):
        correlation = 0.8 if "chain" in name else 0.0
        return lambda random, logs, rounds: regions(random, logs, rounds, clients, correlation)
    if name == "Markov, correlation 0.95, all 0.3":
        rates, slow = np.full(clients, 0.3), np.full(clients, 0.95)
        return lambda random, logs, rounds: chain_states(random, logs, rounds, rates, slow)
    return FAMILIES[name](clients).draw


def scaled(factors: Callable[[Numbers, Numbers], Numbers], correlation: float = 0.0) -> Callable:
    """Rates from 0.1 to 0.4, multiplied by factors of time (T, 1), 0 to 1, and client (N,)."""

    def draw(random: Random, logs: int, rounds: int, clients: int) -> Present:
        time = (np.arange(rounds)[:, None] + 0.5) / rounds
        rates = np.linspace(0.1, 0.4, clients) * factors(time, np.arange(clients))
        draws = random.random((logs, rounds, clients))
        present = draws < rates
        for t in range(1, rounds if correlation else 0):
            before = present[:, t - 1]
            present[:, t] = draws[:, t] < rates[t] * (1 - correlation) + correlation * before
        return present

    return draw


def swapped(random: Random, logs: int, rounds: int, clients: int) -> Present:
    """A tenth of the clients a round; every second has threefold weight, the others from T / 2."""
    clocks = random.exponential(size=(logs, rounds, clients))
    even = (np.arange(clients) + (np.arange(rounds)[:, None] >= rounds // 2)) % 2 == 0
    keys = np.where(even, clocks / 3, clocks).reshape(-1, clients)
    return smallest(keys, max(1, clients // 10)).reshape(logs, rounds, clients)


CHANGES: dict[str, Callable] = {
    "step: rates halve half-way": scaled(lambda u, n: np.where(u < 0.5, 1.0, 0.5)),
    "step: rates halve after a quarter": scaled(lambda u, n: np.where(u < 0.25, 1.0, 0.5)),
    "ramp: rates fall to half": scaled(lambda u, n: 1 - 0.5 * u),
    "half of the clients rise by a half, half fade": scaled(
        lambda u, n: 1 + np.where(n % 2, 0.5, -0.5) * (2 * u - 1)
    ),
    "step: rates halve half-way, Markov of correlation 0.5": scaled(
        lambda u, n: np.where(u < 0.5, 1.0, 0.5), 0.5
    ),
    "step: rates halve half-way, Markov of correlation 0.75": scaled(
        lambda u, n: np.where(u < 0.5, 1.0, 0.5), 0.75
    ),
    "two steps: rates are halved in the middle third": scaled(
        lambda u, n: np.where(abs(u - 0.5) > 1 / 6, 1.0, 0.5)
    ),
    "weights of 3 and 1 swap half-way, a tenth a round": swapped,
}


def find_patterns(draw: Draw, logs: int, rounds: int) -> list[Pattern]:
    found = []
    for seed in range(0, logs, 20):
        for present in draw(np.random.default_rng(seed), min(20, logs - seed), rounds):
            numbers, ids = np.nonzero(present)
            names = pl.Series("client", np.arange(present.shape[1]))
            span = (0, len(present))
            log = ParticipationLog.from_entries(names, numbers, ids.astype(np.int32), span)
            found.append(find_pattern(log))
    return found


def tabulate_false_alarms(logs: int, clients: int, rounds: int, only: str, record: bool) -> None:
    """Print, and record, how often verdicts claim an effect that a stationary process lacks."""
    print(f"{clients} clients, about {rounds} rounds, in percent\n{TABLES['false alarms'].head()}")
    for name, truth in STATIONARY.items():
        if only not in name:
            continue
        length = rounds // 56 * 56 if "phones" in name else rounds
        found = find_patterns(make_draw(name, clients), logs, length)
        wrong = [p.period is not None and p.period % (truth.period or 10**6) != 0 for p in found]
        memory = {state: Share.count([p.memory.state == state for p in found]) for state in STATES}
        row: Row = {
            "drift": Share.count([p.drift.found is True for p in found]),
            "untested": Share.count([p.drift.found is None for p in found]),
            "period": Share.count(wrong),
            **{state: None if state in truth.memory else memory[state] for state in STATES},
        }
        report("false alarms", name, row, record)


def tabulate_power(logs: int, clients: int, rounds: int, only: str, record: bool) -> None:
    """Print, and record, how often drift is found."""
    print(f"\n{clients} clients, {rounds} rounds, in percent\n{TABLES['power'].head()}")
    for name, draw in CHANGES.items():
        if only not in name:
            continue
        found = find_patterns(lambda r, m, t, d=draw: d(r, m, t, clients), logs, rounds)
        row: Row = {
            "found": Share.count([p.drift.found is True for p in found]),
            "untested": Share.count([p.drift.found is None for p in found]),
        }
        report("power", name, row, record)
