"""Clients that leave or join, on logs drawn with NumPy alone.

On stationary logs any client called gone or late is an error, which at most 1% of the logs may
have. With a rate of 1%, more than 3 of 60 logs have one with probability 0.003.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.auditing.logs import Present, build_log, draw_cohorts

import fedtide as ft
from fedtide.auditing.statistics.churn import Churn, find_churn

Random = np.random.Generator


def bernoulli(random: Random, clients: int, rounds: int) -> Present:
    rates = np.clip(random.gamma(1.0, 0.15, clients), 0.02, 0.9)
    return random.random((rounds, clients)) < rates


def markov(random: Random, clients: int, rounds: int) -> Present:
    """Correlation 0.9 between neighbouring rounds."""
    rates = np.clip(random.gamma(2.0, 0.1, clients), 0.02, 0.9)
    present = np.zeros((rounds, clients), dtype=bool)
    present[0] = random.random(clients) < rates
    draws = random.random((rounds, clients))
    for t in range(1, rounds):
        stay = np.where(present[t - 1], 1 - 0.1 * (1 - rates), 0.1 * rates)
        present[t] = draws[t] < stay
    return present


def weibull(random: Random, clients: int, rounds: int) -> Present:
    """Sessions of 10 rounds and breaks of 30 on average, Weibull with shape 0.6."""
    present = np.zeros((rounds, clients), dtype=bool)
    for n in range(clients):
        lengths = random.weibull(0.6, (rounds, 2)) / 1.5046 * (10, 30)
        ends = np.cumsum(lengths.ravel()) - random.uniform(1, 8) * rounds
        present[:, n] = np.searchsorted(ends, np.arange(rounds)) % 2 == 0
    return present


def phones(random: Random, clients: int, rounds: int) -> Present:
    """Nightly sessions, fewer at weekends, with idle spells of some days."""
    present = np.zeros((rounds, clients), dtype=bool)
    for n in range(clients):
        start, length = random.normal(23, 2.5), random.uniform(3, 9)
        habit, weekend = random.beta(2, 1.2), random.uniform(0.4, 1)
        active = True
        for day in range(-1, rounds // 24 + 1):
            active ^= random.random() < 0.12
            if random.random() < habit * (weekend if day % 7 > 4 else 1) * (1 if active else 0.2):
                begin = day * 24 + start + random.normal(0, 1)
                end = begin + length * random.lognormal(0, 0.3)
                present[max(0, int(begin)) : max(0, int(end)), n] = True
    return present


def selected_markov(random: Random, clients: int, rounds: int) -> Present:
    return draw_cohorts(random, markov(random, clients, rounds), 5)


def selected_weibull(random: Random, clients: int, rounds: int) -> Present:
    return draw_cohorts(random, weibull(random, clients, rounds), 5)


def cool_down(random: Random, clients: int, rounds: int) -> Present:
    """A fortieth of the clients a round, each of which then rests for 24 rounds."""
    present = np.zeros((rounds, clients), dtype=bool)
    weights, rested = np.exp(random.normal(0, 0.5, clients)), np.zeros(clients)
    for t in range(rounds):
        clocks = np.where(rested <= t, random.exponential(size=clients) / weights, np.inf)
        chosen = np.argsort(clocks)[: max(1, clients // 40)]
        present[t, chosen] = True
        rested[chosen] = t + 25
    return present


def few_in_sessions(random: Random, clients: int, rounds: int) -> Present:
    """A tenth in sessions of 100 rounds after 300, the others in independent rounds."""
    present = random.random((rounds, clients)) < 0.2
    few = np.arange(0, clients, 10)
    on = random.random(len(few)) < 0.25
    for t, draws in enumerate(random.random((rounds, len(few)))):
        present[t, few] = on
        on = np.where(on, draws >= 1 / 100, draws < 1 / 300)
    return present


def find(present: Present) -> Churn:
    log, size = build_log(present), present.shape[1]
    independent: Any = SimpleNamespace(
        intervals=True, autocorrelation_time=np.ones(size), freedom=np.full(size, np.inf)
    )
    return find_churn(log, independent)


FAMILIES = [
    bernoulli,
    markov,
    weibull,
    phones,
    selected_markov,
    selected_weibull,
    cool_down,
    few_in_sessions,
]


def count_false(
    process: Callable[[Random, int, int], Present], clients: int, rounds: int, logs: int
) -> int:
    random = np.random.default_rng(0)
    found = [find(process(random, clients, rounds)) for _ in range(logs)]
    return sum(len(churn.gone) + len(churn.late) > 0 for churn in found)


@pytest.mark.parametrize(
    "process", [bernoulli, markov, phones, selected_markov, cool_down, few_in_sessions]
)
def test_stationary_logs_have_no_churn(process: Callable[[Random, int, int], Present]) -> None:
    assert count_false(process, 40, 400, 5) == 0


@pytest.mark.statistical
@pytest.mark.parametrize("process", FAMILIES)
def test_one_log_in_a_hundred_has_false_churn(
    process: Callable[[Random, int, int], Present],
) -> None:
    assert count_false(process, 60, 1000, 40) + count_false(process, 150, 500, 20) <= 3


def test_clients_that_leave_or_join_half_way_are_found() -> None:
    """Independent rounds, rate 0.1 and more: 100 participations before leaving half-way."""
    random = np.random.default_rng(1)
    present = random.random((1000, 100)) < random.uniform(0.1, 0.6, 100)
    present[500:, :5] = False
    present[:500, 5:10] = False
    churn = find(present)
    assert churn.gone.tolist() == [0, 1, 2, 3, 4]
    assert churn.late.tolist() == [5, 6, 7, 8, 9]
    assert churn.states[[0, 5, 10]].tolist() == ["gone", "late", "present"]
    assert (churn.last[:5] < 500).all()
    assert (churn.first[5:10] >= 500).all()
    for n in range(10):  # without the participation that marks joining or leaving
        inside = present[: churn.last[n]] if n < 5 else present[churn.first[n] + 1 :]
        assert churn.rates[n] == inside[:, n].mean()


def test_a_client_may_join_and_leave() -> None:
    random = np.random.default_rng(2)
    present = random.random((900, 50)) < 0.3
    present[:300, 7] = present[600:, 7] = False
    assert find(present).states[7] == "late, gone"


def test_bursty_clients_that_leave_are_found_in_long_logs() -> None:
    """Sessions of 12 rounds, breaks of 50: 24 sessions before leaving half-way."""
    random = np.random.default_rng(3)
    present = np.zeros((3000, 100), dtype=bool)
    for t, draws in enumerate(random.random((2999, 100)), start=1):
        present[t] = np.where(present[t - 1], draws >= 0.08, draws < 0.02)
    present[1500:, ::10] = False
    gone = find(present).gone
    assert set(gone) <= set(range(0, 100, 10))
    assert len(gone) >= 5


def test_a_few_sessions_tell_nothing() -> None:
    """In 500 rounds, the same clients have four sessions before leaving: no one can tell."""
    random = np.random.default_rng(4)
    present = np.zeros((500, 100), dtype=bool)
    for t, draws in enumerate(random.random((499, 100)), start=1):
        present[t] = np.where(present[t - 1], draws >= 0.08, draws < 0.02)
    present[250:, ::10] = False
    assert find(present).gone.tolist() == []


def test_rate_is_that_from_joining_to_leaving() -> None:
    """The interval covers the rate before leaving in about 95% of 40 clients that left."""
    random = np.random.default_rng(5)
    present = random.random((1000, 200)) < 0.2
    present[400:, :40] = False
    churn = find(present)
    assert set(range(40)) <= set(churn.gone.tolist())
    covered = (churn.low[:40] <= 0.2) & (churn.high[:40] >= 0.2)
    assert covered.sum() >= 34  # P < 0.003 at 0.95
    assert churn.rates[100] == present[:, 100].mean()


def test_audit_names_who_left() -> None:
    random = np.random.default_rng(7)
    present = random.random((600, 30)) < 0.3
    present[300:, 4] = False
    rounds, clients = np.nonzero(present)
    result = ft.audit(pl.DataFrame({"round": rounds + 10, "client": clients}), clients=31)
    gone = result.to_dict()["churn"]["gone"]
    assert list(gone) == ["4"]
    assert gone["4"]["last_round"] == 10 + np.flatnonzero(present[:, 4])[-1]
    table = result.clients()
    assert table["state"][4] == "gone"
    assert table["state"][30] == "never"
    assert table["last_round"][30] is None
    assert any("stopped coming return (4)" in limit for limit in result.limits)
