"""Exact inclusion probabilities of successive sampling."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtide.errors import InvalidInputError
from fedtide.participation import inclusion, inclusion_probabilities


def test_inclusion_probabilities_of_zero_equal_and_all_weights() -> None:
    weights = np.array([0.0, 1.0, 3.0])
    np.testing.assert_allclose(inclusion_probabilities(weights, 1), weights / 4, atol=1e-12)
    np.testing.assert_array_equal(inclusion_probabilities(weights, 2), [0, 1, 1])
    equal = inclusion_probabilities(np.ones(500), 60)
    np.testing.assert_allclose(equal, 60 / 500, atol=1e-10)


def sum_over_drawn_sets(weights: list[float], size: int) -> np.ndarray:
    """Return the inclusion probabilities in fractions, set by set of the clients drawn so far."""
    w = [Fraction(weight) for weight in weights]
    chance = {frozenset[int](): Fraction(1)}
    for _ in range(size):
        longer = dict[frozenset[int], Fraction]()
        for drawn, probability in chance.items():
            left = set(range(len(w))) - drawn
            total = sum(w[n] for n in left)
            for n in left:
                after = drawn | {n}
                longer[after] = longer.get(after, Fraction(0)) + probability * w[n] / total
        chance = longer
    return np.array([float(sum(q for s, q in chance.items() if n in s)) for n in range(len(w))])


@pytest.mark.parametrize(
    "weights",
    [
        [1e300, 1.0, 1.0],
        [1e308, 1.0, 3e-300, 1e-300],
        [1.0] * 4 + [1e-30],
        [1.0, 1.0, 1e-40, 1e-40, 1e-40],
        [10.0 ** (-4 * n) for n in range(8)],
        [5e-324, 5e-324, 1e-323],
        [1e200, 1.0, 1e-50, 2e-50, 1e-90, 1e-200],
    ],
)
def test_rates_of_extreme_weights_match_enumeration(weights: list[float]) -> None:
    """Also those of rare clients, whose inverses are the weights of known rates."""
    for size in range(1, len(weights)):
        expected = sum_over_drawn_sets(weights, size)
        np.testing.assert_allclose(
            inclusion_probabilities(weights, size), expected, rtol=1e-10, atol=1e-300
        )


@given(
    exponents=st.lists(st.floats(-150, 150), min_size=2, max_size=6),
    data=st.data(),
)
def test_rates_of_weights_of_any_size_match_enumeration(
    exponents: list[float], data: st.DataObject
) -> None:
    weights = [10.0**exponent for exponent in exponents]
    size = data.draw(st.integers(1, len(weights) - 1))
    expected = sum_over_drawn_sets(weights, size)
    found = inclusion_probabilities(weights, size)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-300)


@pytest.mark.parametrize(
    ("decay", "clients", "size"), [(2, 1000, 100), (10, 300, 130), (10, 300, 299), (0.05, 40, 3)]
)
def test_rates_of_many_unequal_clients_add_up_and_fall(
    decay: float, clients: int, size: int
) -> None:
    """Each of the S draws takes client 0, if still there, with at least 1 − e^{−1/τ}."""
    weights = np.exp(-np.arange(clients) / decay)
    rates = inclusion_probabilities(weights, size)
    assert rates.sum() == pytest.approx(size, rel=1e-11)
    assert (np.diff(rates) <= 1e-12).all()
    assert rates[0] >= 1 - np.exp(-size / decay) - 1e-12
    assert rates.max() <= 1 + 1e-12


def test_two_kinds_of_clients_far_apart_share_the_draws_that_are_left() -> None:
    """The 40 heavy ones are always drawn, and the 60 light ones share the other 20 draws."""
    weights = np.repeat([1.0, 1e-250], [40, 60])
    rates = inclusion_probabilities(weights, 60)
    np.testing.assert_allclose(rates, np.repeat([1.0, 1 / 3], [40, 60]), rtol=1e-10)


def test_rates_that_cannot_be_computed_are_refused_or_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inclusion, "_MAX_INTERVALS", 64)
    with pytest.raises(InvalidInputError, match=r"^weights: fewer are positive .2. than"):
        inclusion_probabilities([1.0, 2.0], 5)
    weights = np.exp(-np.arange(200) / 2)
    with pytest.raises(InvalidInputError, match=r"^weights: .*; "):
        inclusion_probabilities(weights, 100)
