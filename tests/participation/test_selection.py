"""The contract of every selection, and each against a literal reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedtide.participation import (
    SELECTIONS,
    All,
    Availability,
    AvailableClients,
    GroupCycle,
    LeastFrequent,
    LeastServed,
    LongestAbsent,
    MinSeparation,
    PermutationOf,
    Schedule,
    Selection,
    UniformOf,
)
from fedtide.population import Population
from fedtide.randomness import random_words
from fedtide.testing import check_selection

CASES: dict[str, Selection] = {
    "all": All(),
    "uniform-of": UniformOf(4),
    "permutation-of": PermutationOf(4),
    "longest-absent": LongestAbsent(4),
    "least-served": LeastServed(4, period=7),
    "least-frequent": LeastFrequent(4, beta=0.2),
    "min-separation": MinSeparation(4, rounds=1),
}
every_selection = pytest.mark.parametrize("name", CASES)
rounds_of_ids = st.lists(st.sets(st.integers(0, 9)).map(sorted), min_size=1, max_size=25)


def available(ids: list[int]) -> AvailableClients:
    return AvailableClients(np.array(ids, dtype=np.int64))


def test_every_registered_selection_has_a_case() -> None:
    assert set(CASES) == set(SELECTIONS)


@every_selection
@given(rounds=rounds_of_ids)
@settings(max_examples=40)
def test_as_many_clients_are_selected_as_are_asked_for(name: str, rounds: list[list[int]]) -> None:
    assert isinstance(CASES[name], SELECTIONS[name])
    running = CASES[name].start(Population(clients=10), seed=0)
    for t, ids in enumerate(rounds):
        selected = running.select(t, available(ids))
        assert set(selected.tolist()) <= set(ids)
        if name != "min-separation":  # whose clients rest
            assert len(selected) == (len(ids) if name == "all" else min(4, len(ids)))


@every_selection
def test_a_selection_keeps_its_contract(name: str) -> None:
    check_selection(CASES[name])


@pytest.mark.statistical
def test_uniform_of_is_uniform() -> None:
    """Chi-squared over 5 available clients, wrong with probability 1e-6."""
    running = UniformOf(1).start(Population(clients=10), seed=0)
    ids = [1, 3, 4, 8, 9]
    counts = np.zeros(10)
    for t in range(5000):
        counts[running.select(t, available(ids))] += 1
    assert stats.chisquare(counts[ids]).pvalue > 1e-6


@given(rounds=rounds_of_ids, size=st.integers(1, 10), seed=st.integers(0, 2**32))
def test_permutation_of_consumes_a_shuffled_list(
    rounds: list[list[int]], size: int, seed: int
) -> None:
    """The authors' shuffled list, consumed one by one; no client twice in a round."""

    def shuffled(number: int) -> list[int]:
        words = random_words(seed, "permutation-of", number, np.arange(10)) >> np.uint64(1)
        return sorted(range(10), key=lambda n: words[n])

    running = PermutationOf(size).start(Population(clients=10), seed)
    number, queue = 0, shuffled(0)
    for t, ids in enumerate(rounds):
        selected: list[int] = []
        while len(selected) < min(size, len(ids)):
            if not queue:
                number += 1
                queue = shuffled(number)
            n = queue.pop(0)
            if n in ids and n not in selected:
                selected.append(n)
        assert running.select(t, available(ids)).tolist() == sorted(selected)


@given(rounds=rounds_of_ids, size=st.integers(1, 10))
def test_longest_absent_sorts_by_last_selection(rounds: list[list[int]], size: int) -> None:
    by_id = LongestAbsent(size, ties="id").start(Population(clients=10), seed=0)
    at_random = LongestAbsent(size).start(Population(clients=10), seed=0)
    last, own = dict.fromkeys(range(10), -1), dict.fromkeys(range(10), -1)
    for t, ids in enumerate(rounds):
        expected = sorted(ids, key=lambda n: (last[n], n))[:size]
        assert by_id.select(t, available(ids)).tolist() == sorted(expected)
        last.update(dict.fromkeys(expected, t))
        selected = at_random.select(t, available(ids)).tolist()
        assert sorted(own[n] for n in selected) == sorted(own[n] for n in ids)[:size]
        own.update(dict.fromkeys(selected, t))


def test_clients_absent_equally_long_are_selected_at_random() -> None:
    """Chi-squared test at level 0.001: the first of 5 clients, in 3000 streams."""
    streams = (LongestAbsent(1).start(Population(clients=5), seed) for seed in range(3000))
    counts = np.bincount([stream.select(0, available(range(5)))[0] for stream in streams])
    assert ((counts - 600) ** 2 / 600).sum() < 18.47


@given(rounds=rounds_of_ids, rest=st.integers(0, 4), size=st.integers(1, 2))
def test_a_client_rests_after_each_selection(rounds: list[list[int]], rest: int, size: int) -> None:
    running = MinSeparation(size, rest).start(Population(clients=10), seed=0)
    last = dict.fromkeys(range(10), -99)
    for t, ids in enumerate(rounds):
        rested = [n for n in ids if t - last[n] > rest]
        selected = running.select(t, available(ids)).tolist()
        assert set(selected) <= set(rested)
        assert len(selected) == min(size, len(rested))
        last.update(dict.fromkeys(selected, t))


def test_rested_clients_are_selected_with_equal_probability() -> None:
    """Chi-squared test at level 0.001: 3000 first rounds of 3 of 9 clients."""
    draws = [
        MinSeparation(3, 2).start(Population(9), seed).select(0, available([*range(9)]))
        for seed in range(3000)
    ]
    counts = np.bincount(np.concatenate(draws), minlength=9)
    # Without replacement, counts vary less than a multinomial law by the factor (N − S)/(N − 1).
    statistic = ((counts - 1000) ** 2 / 1000).sum() * 8 / 6
    assert stats.chi2.sf(statistic, 8) > 0.001


@given(
    rounds=rounds_of_ids,
    size=st.integers(1, 10),
    period=st.integers(1, 8),
    given_weights=st.booleans(),
)
def test_least_served_sorts_by_accumulated_weight(
    rounds: list[list[int]], size: int, period: int, given_weights: bool
) -> None:
    running = LeastServed(size, period).start(Population(clients=10), seed=0)
    last = dict.fromkeys(range(10), -1)
    served = dict.fromkeys(range(10), 0.0)
    for t, ids in enumerate(rounds):
        if t % period == 0:
            served = dict.fromkeys(range(10), 0.0)
        expected = sorted(ids, key=lambda n: (served[n], last[n], n))[:size]
        clients = np.array(ids, dtype=np.int64)
        weights = 1.0 / (1 + clients) if given_weights else None
        selected = running.select(t, AvailableClients(clients, weights))
        assert selected.tolist() == sorted(expected)
        for n in expected:
            served[n] += 1 / (1 + n) if given_weights else 1 / len(expected)
            last[n] = t


def mean_irregularity(
    process: Availability, selection: Selection, clients: int, period: int
) -> float:
    """Return equation (15)'s N Σ_n (q̄_n − 1/N)², averaged over 20 windows of `period` rounds."""
    running = Schedule(process, selection).start(Population(clients=clients), seed=4)
    values = []
    for window in range(20):
        mean = np.zeros(clients)
        for t in range(window * period, (window + 1) * period):
            who = running.round(t)
            mean[who.reported] += who.weights / period
        values.append(clients * ((mean - 1 / clients) ** 2).sum())
    return float(np.mean(values))


@pytest.mark.statistical
def test_least_served_is_the_most_regular() -> None:
    """5 groups of 10 clients, 4 of them a round, turns of 10 rounds, windows of one cycle (50).

    A regular selection picks each client 4 times per window. At random this number has a variance
    of about 4 · 0.6; a permutation leaves some variance and the least served none.
    """
    process = GroupCycle(groups=5, rounds=10, offset=3)
    values = {
        name: mean_irregularity(process, selection, clients=50, period=50)
        for name, selection in {
            "uniform": UniformOf(4),
            "permutation": PermutationOf(4),
            "least": LeastServed(4, period=50),
        }.items()
    }
    assert values["least"] < 1e-20
    assert 0 < values["permutation"] < values["uniform"] / 3
