"""Rates: resolution, and correlated rates against their formula."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtide.errors import InvalidInputError
from fedtide.participation import (
    Bernoulli,
    Correlated,
    RateLaw,
    Sessions,
    correlated_rates,
    resolve_rates,
)
from fedtide.population import Population
from fedtide.randomness import generator


@given(
    clients=st.integers(1, 12),
    classes=st.integers(1, 8),
    alpha=st.floats(0.05, 5),
    mean=st.floats(0, 1),
    floor=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
def test_correlated_rates_follow_the_formula(
    clients: int, classes: int, alpha: float, mean: float, floor: float, seed: int
) -> None:
    shares = np.random.default_rng(seed).dirichlet(np.ones(classes), size=clients)
    q = generator(seed, "correlated-rates").dirichlet([alpha] * classes)
    expected = []
    for share in shares:
        rate = classes * mean * sum(share[c] * q[c] for c in range(classes))
        expected.append(min(1.0, max(floor, rate)))
    rates = correlated_rates(shares, alpha, mean, floor, seed)
    np.testing.assert_allclose(rates, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.statistical
def test_correlated_rates_have_the_given_mean() -> None:
    """Over 4000 draws of q, E p = mean for any shares; tolerance 6 standard errors (1e-8)."""
    shares = np.array([[1.0, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0]])
    draws = np.array([correlated_rates(shares, 1.0, 0.1, 0.0, seed) for seed in range(4000)])
    error = draws.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(axis=0) - 0.1) < 6 * error).all()


def test_numbers_arrays_and_correlated_rates_are_resolved() -> None:
    shares = np.array([[1.0, 0.0], [0.2, 0.8]])
    population = Population(clients=2, class_shares=shares)
    assert resolve_rates(0.3, population, 0).tolist() == [0.3, 0.3]
    assert resolve_rates([0.1, 1], population, 0).tolist() == [0.1, 1.0]
    assert resolve_rates(np.array([0.1, 1]), population, 0).tolist() == [0.1, 1.0]
    law = Correlated(alpha=0.5, mean=0.2, floor=0.01)
    by_run = correlated_rates(shares, 0.5, 0.2, 0.01, seed=7)
    np.testing.assert_array_equal(resolve_rates(law, population, 7), by_run)
    law = Correlated(alpha=0.5, mean=0.2, floor=0.01, seed=7)
    np.testing.assert_array_equal(resolve_rates(law, population, 8), by_run)


class Given(RateLaw):
    """A law of the user's own."""

    def __init__(self, rates: Any) -> None:
        self.rates = rates

    def rates_of(self, class_shares: Any, seed: int) -> Any:
        return self.rates


@pytest.mark.parametrize(
    ("rates", "complaint"),
    [
        ([2.0, 0.5], "2 is not within"),
        ([0.5, np.nan], "nan is not finite"),
        ([0.5], "1 entry for 2 clients"),
        ([[0.5], [0.5]], "dimensions"),
        ("often", "not an array of numbers"),
    ],
    ids=repr,
)
def test_rates_of_a_law_of_ones_own_are_checked(rates: Any, complaint: str) -> None:
    population = Population(clients=2, class_shares=np.eye(2))
    for rate in (Bernoulli, Sessions):
        with pytest.raises(InvalidInputError, match=f"^rates: .*{complaint}.*; give"):
            rate(Given(rates)).begin(population, seed=0)
        with pytest.raises(InvalidInputError, match=f"^rates: .*{complaint}.*; give"):
            rate(Given(rates)).known_rates(population, seed=0)


def test_small_concentrations_keep_the_mean() -> None:
    rates = correlated_rates(np.eye(10), alpha=0.01, mean=0.1, seed=1)
    assert rates.sum() == pytest.approx(1.0)
