"""Exact inclusion probabilities of successive sampling."""

from itertools import permutations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedtide.participation import inclusion_probabilities


def enumerate_successive_sampling(weights: list[float], size: int) -> np.ndarray:
    """Return the inclusion probabilities by summing over all ordered draws."""
    result = np.zeros(len(weights))
    for picks in permutations(range(len(weights)), size):
        probability, left = 1.0, sum(weights)
        for n in picks:
            probability *= weights[n] / left
            left -= weights[n]
        result[list(picks)] += probability
    return result


@given(
    weights=st.lists(st.floats(0.01, 100), min_size=2, max_size=6),
    data=st.data(),
)
def test_inclusion_probabilities_match_enumeration(
    weights: list[float], data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, len(weights) - 1))
    exact = enumerate_successive_sampling(weights, size)
    np.testing.assert_allclose(inclusion_probabilities(weights, size), exact, atol=1e-9)


def test_inclusion_probabilities_of_zero_equal_and_all_weights() -> None:
    weights = np.array([0.0, 1.0, 3.0])
    np.testing.assert_allclose(inclusion_probabilities(weights, 1), weights / 4, atol=1e-12)
    np.testing.assert_array_equal(inclusion_probabilities(weights, 2), [0, 1, 1])
    equal = inclusion_probabilities(np.ones(500), 60)
    np.testing.assert_allclose(equal, 60 / 500, atol=1e-10)
