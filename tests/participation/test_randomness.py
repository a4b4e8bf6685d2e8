"""Counter-based randomness: what a draw depends on, and the independence of neighbours."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from fedtide.participation import Bernoulli, PermutationOf, Schedule, correlated_rates
from fedtide.population import Population
from fedtide.randomness import generator, random_words, uniforms

KINDS = [np.uint8, np.uint64]


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_and_rounds_may_be_integers_of_numpy(kind: type[np.integer]) -> None:
    """A loop over np.arange(5) gives such seeds."""
    assert generator(kind(3), "x", kind(7)).random() == generator(3, "x", 7).random()
    assert random_words(kind(3), "x", kind(7)) == random_words(3, "x", 7)
    population = Population(clients=50)
    schedule = Schedule(Bernoulli(0.5), PermutationOf(3))
    found, expected = (schedule.start(population, seed).round(2) for seed in (kind(3), 3))
    np.testing.assert_array_equal(found.selected, expected.selected)
    np.testing.assert_array_equal(
        correlated_rates(np.eye(4), seed=kind(3)), correlated_rates(np.eye(4), seed=3)
    )


NEIGHBOURS: dict[str, Callable[[int], np.ndarray]] = {
    "clients": lambda n: uniforms(0, "drop", 5, np.arange(n)),
    "rounds": lambda n: uniforms(0, "drop", np.arange(n), 5),
    "clients of other rounds": lambda n: uniforms(0, "drop", np.arange(n), np.arange(n)),
    "distant clients": lambda n: uniforms(0, "drop", 5, np.arange(n) << 32),
    "seeds": lambda n: np.array([uniforms(seed, "drop", 5, 5) for seed in range(n)]),
    "seeds without an index": lambda n: np.array([uniforms(seed, "drop") for seed in range(n)]),
    "purposes": lambda n: np.array([uniforms(0, f"purpose {k}", 5) for k in range(n)]),
    "generators": lambda n: np.array([generator(0, "drop", t).random() for t in range(n)]),
    "generators of seeds": lambda n: np.array([generator(s, "drop", 0).random() for s in range(n)]),
}


@pytest.mark.statistical
@pytest.mark.parametrize("what", NEIGHBOURS)
def test_neighbouring_draws_are_uniform_and_independent(what: str) -> None:
    """Chi-square tests of the highest and lowest bits, and of pairs; each fails once in 1e7."""
    u = NEIGHBOURS[what](1 << 14)
    cells = [(u * 64).astype(int), (u * 2.0**53).astype(np.int64) % 64]
    cells.append(8 * (u[1:] * 8).astype(int) + (u[:-1] * 8).astype(int))
    for cell in cells:
        assert stats.chisquare(np.bincount(cell, minlength=64)).pvalue > 1e-7


@pytest.mark.statistical
@pytest.mark.parametrize(
    "other", [(0, "drop", 6), (1, "drop", 5), (0, "epoch", 5)], ids=["round", "seed", "purpose"]
)
def test_the_bits_of_words_with_other_keys_are_uncorrelated(other: tuple[int, str, int]) -> None:
    """Each of 64 * 64 correlations has standard deviation 1/sqrt(n); 6.5 is passed once in 3e6."""
    clients = np.arange(1 << 15)
    bits = [
        np.unpackbits(random_words(seed, purpose, t, clients).view(np.uint8)).reshape(-1, 64)
        for seed, purpose, t in [(0, "drop", 5), other]
    ]
    centred = [2.0 * bit - 1 for bit in bits]
    correlations = centred[0].T @ centred[1] / len(clients)
    assert np.abs(correlations).max() * np.sqrt(len(clients)) < 6.5
