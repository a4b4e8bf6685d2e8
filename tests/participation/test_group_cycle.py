"""Group cycles against their formulas, written out literally."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedtide.participation import GroupCycle
from fedtide.population import Population


@given(
    clients=st.integers(5, 40),
    count=st.integers(1, 5),
    g=st.integers(1, 6),
    offset=st.integers(0, 50),
)
def test_equal_turns(clients: int, count: int, g: int, offset: int) -> None:
    ends = [round(k * clients / count) for k in range(count + 1)]
    running = GroupCycle(count, g, offset).begin(Population(clients=clients), seed=0)
    for t in range(40):
        k = ((t + offset) // g) % count
        assert running.round(t).clients.tolist() == list(range(ends[k], ends[k + 1]))


@given(
    labels=st.lists(st.integers(0, 2), min_size=1, max_size=15),
    turns=st.lists(st.integers(1, 5), min_size=3, max_size=4),
    offset=st.integers(0, 20),
)
def test_unequal_turns_of_labelled_groups(labels: list[int], turns: list[int], offset: int) -> None:
    order = [k for k, turn in enumerate(turns) for _ in range(turn)]
    running = GroupCycle(labels, turns, offset).begin(Population(clients=len(labels)), seed=0)
    for t in range(30):
        k = order[(t + offset) % len(order)]
        assert running.round(t).clients.tolist() == [n for n, m in enumerate(labels) if m == k]


@pytest.mark.statistical
def test_random_offset_is_uniform_over_the_first_turn() -> None:
    """A chi-squared test over 3000 seeds, wrong with probability 1e-6."""
    remaining = []
    for seed in range(3000):
        running = GroupCycle(2, [6, 3]).begin(Population(clients=2), seed)
        first = [running.round(t).clients.tolist() == [0] for t in range(7)]
        remaining.append(first.index(False))
    counts = np.bincount(remaining, minlength=7)
    assert counts[0] == 0
    assert stats.chisquare(counts[1:]).pvalue > 1e-6


def test_soft_turns_are_independent_coins() -> None:
    """Binomial tests for each group in and out of turn, over clients and lag 1; 1e-6 each."""
    rounds, clients = 400, 60
    labels = np.arange(clients) % 3
    process = GroupCycle(labels, rounds=2, offset=0, on=0.7, off=0.1)
    running = process.begin(Population(clients=clients), seed=1)
    available = np.zeros((rounds, clients), dtype=bool)
    for t in range(rounds):
        available[t, running.round(t).clients] = True
    turn = (np.arange(rounds)[:, None] // 2) % 3 == labels[None, :]
    for mask, probability in ((turn, 0.7), (~turn, 0.1)):
        assert (
            stats.binomtest(int(available[mask].sum()), int(mask.sum()), probability).pvalue > 1e-6
        )
    per_client = available.sum(axis=0)
    expected = turn.sum(axis=0) * 0.7 + (~turn).sum(axis=0) * 0.1
    assert (np.abs(per_client - expected) < 6 * np.sqrt(expected)).all()
    again = available[1:] & available[:-1] & turn[1:] & turn[:-1]
    before = available[:-1] & turn[1:] & turn[:-1]
    assert stats.binomtest(int(again.sum()), int(before.sum()), 0.7).pvalue > 1e-6


def test_the_largest_offset_is_counted_exactly() -> None:
    """2⁶³ − 1 is 1 modulo 6, and the group changes every two rounds."""
    running = GroupCycle(3, 2, offset=2**63 - 1).begin(Population(clients=3), seed=0)
    found = [running.round(t).clients.tolist() for t in range(4)]
    assert found == [[0], [1], [1], [2]]


@given(labels=st.lists(st.sampled_from(["north", "east", "Süd", ""]), min_size=1, max_size=12))
def test_groups_may_be_texts_and_take_turns_in_sorted_order(labels: list[str]) -> None:
    names = sorted(set(labels))
    turns = [2 + k for k in range(len(names))]
    numbers = [names.index(label) for label in labels]
    named = {f"client {n}": label for n, label in enumerate(labels)}
    population = Population(clients=len(labels), names=np.array([*named]))
    expected = GroupCycle(numbers, turns, offset=3)
    for groups in (labels, np.array(labels), dict(reversed(named.items()))):
        process = GroupCycle(groups, turns, offset=3)
        running, reference = (one.begin(population, seed=0) for one in (process, expected))
        for t in range(30):
            assert running.round(t).clients.tolist() == reference.round(t).clients.tolist()
        rates = process.known_rates(population, seed=0)
        np.testing.assert_array_equal(rates, expected.known_rates(population, seed=0))
