"""Sampling processes: uniform, permutation, weighted and subset law."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedtide.participation import (
    Permutation,
    SubsetLaw,
    Uniform,
    Weighted,
)
from fedtide.population import Population


@pytest.mark.statistical
def test_uniform_sets_are_equally_likely() -> None:
    """A chi-squared test over the 15 pairs of 6 clients, wrong with probability 1e-6."""
    running = Uniform(2).begin(Population(clients=6), seed=0)
    counts = np.zeros((6, 6))
    for t in range(6000):
        low, high = running.round(t).clients
        counts[low, high] += 1
    assert stats.chisquare(counts[np.triu_indices(6, 1)]).pvalue > 1e-6


@given(size=st.integers(1, 6), cohorts=st.integers(1, 6), seed=st.integers(0, 2**40))
def test_permutation_has_every_client_once_per_cycle(size: int, cohorts: int, seed: int) -> None:
    running = Permutation(size).begin(Population(clients=size * cohorts), seed)
    for cycle in range(4):
        rounds = [running.round(cycle * cohorts + k).clients for k in range(cohorts)]
        assert sorted(np.concatenate(rounds)) == list(range(size * cohorts))


@given(clients=st.integers(1, 12), data=st.data())
def test_permutation_balances_counts_for_any_size(clients: int, data: st.DataObject) -> None:
    """Rounds are full, and after each complete permutation all clients have the same count."""
    size = data.draw(st.integers(1, clients))
    running = Permutation(size).begin(Population(clients=clients), seed=data.draw(st.integers(0)))
    counts = np.zeros(clients, dtype=int)
    for t in range(3 * clients):
        ids = running.round(t).clients
        assert len(set(ids.tolist())) == size
        counts[ids] += 1
        # The round in which a permutation ends may already contain clients of the next one.
        whole = (t + 1) * size % clients == 0
        assert counts.max() - counts.min() <= (0 if whole else 2)


@pytest.mark.statistical
def test_permutation_orders_are_random() -> None:
    """The first client of 3000 cycles of 5 is uniform; chi-squared, wrong with 1e-6."""
    running = Permutation(1).begin(Population(clients=5), seed=0)
    firsts = [int(running.round(5 * cycle).clients[0]) for cycle in range(3000)]
    assert stats.chisquare(np.bincount(firsts, minlength=5)).pvalue > 1e-6


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("clients", "size", "decay"), [(100, 10, 10), (30, 20, 3), (8, 7, 0.5), (40, 3, 1000)]
)
def test_weighted_frequencies_match_inclusion_probabilities(
    clients: int, size: int, decay: float
) -> None:
    """Against the exact probabilities over 4000 rounds, 6 standard errors plus one (1e-8 each)."""
    process = Weighted(size, np.exp(-np.arange(clients) / decay))
    running = process.begin(Population(clients=clients), seed=2)
    counts = np.zeros(clients)
    for t in range(4000):
        counts[running.round(t).clients] += 1
    rates = process.known_rates(Population(clients=clients), seed=0)
    assert rates is not None
    assert counts.sum() == 4000 * size
    assert (np.abs(counts - 4000 * rates) <= 6 * np.sqrt(4000 * rates * (1 - rates)) + 1).all()


@pytest.mark.statistical
def test_weighted_pairs_have_their_probabilities() -> None:
    """All pairs of 4 clients against enumeration; chi-squared, wrong with probability 1e-6."""
    weights = [5.0, 2.0, 1.0, 0.2]
    expected = np.zeros((4, 4))
    for first in range(4):
        for second in set(range(4)) - {first}:
            chance = weights[first] / 8.2 * weights[second] / (8.2 - weights[first])
            expected[min(first, second), max(first, second)] += chance
    running = Weighted(2, weights).begin(Population(clients=4), seed=0)
    counts = np.zeros((4, 4))
    for t in range(5000):
        counts[tuple(running.round(t).clients)] += 1
    upper = np.triu_indices(4, 1)
    assert stats.chisquare(counts[upper], 5000 * expected[upper]).pvalue > 1e-6


@pytest.mark.parametrize("scale", [2.0**1023, 2.0**-1000, 3 * 2.0**500])
def test_weighted_draws_do_not_depend_on_the_size_of_the_weights(scale: float) -> None:
    """The sum of three weights of 2¹⁰²³ is not finite."""
    weights = np.array([1.0, 1.0, 1.0, 2.0**-20, 0.0])
    drawn = []
    for scaled in (weights, scale * weights):
        running = Weighted(1, scaled).begin(Population(clients=5), seed=3)
        drawn.append([int(running.round(t).clients[0]) for t in range(100)])
    assert drawn[0] == drawn[1]
    assert set(drawn[0]) == {0, 1, 2}


def test_rates_of_large_weighted_processes_are_unknown() -> None:
    process = Weighted(200, np.ones(10_000))
    assert process.known_rates(Population(clients=10_000), seed=0) is None


@pytest.mark.statistical
def test_subset_law_frequencies() -> None:
    """Chi-squared over three subsets, wrong with probability 1e-6."""
    subsets, q = [[0, 1], [2], []], [0.5, 0.3, 0.2]
    running = SubsetLaw(subsets, q).begin(Population(clients=3), seed=1)
    seen = [running.round(t).clients.tolist() for t in range(3000)]
    counts = [seen.count(subset) for subset in subsets]
    assert sum(counts) == 3000
    assert stats.chisquare(counts, 3000 * np.array(q)).pvalue > 1e-6
