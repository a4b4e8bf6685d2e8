"""Effective weights of plain averaging and their L1 skew."""

import numpy as np
import pytest

from fedtide.errors import InvalidInputError
from fedtide.participation import (
    Bernoulli,
    Full,
    GroupCycle,
    SubsetLaw,
    Uniform,
    Weighted,
    l1_skew,
    participation_weights,
)
from fedtide.population import Population


def test_l1_skew_of_the_agnostic_fedavg_paper() -> None:
    """N = 100, M = 10, w = exp(−i/10): 1.289078, and .7248, .6894, .6532 for the first three."""
    process = Weighted(10, np.exp(-np.arange(100) / 10))
    population = Population(clients=100)
    p = participation_weights(process, population)
    assert l1_skew(p) == pytest.approx(1.289078, abs=1e-6)
    np.testing.assert_allclose(10 * p[:3], [0.7248, 0.6894, 0.6532], atol=5e-5)


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [([], "weights: none"), ([3, 1], "weights: the sum is 4"), ([1.5, -0.5], "weights: -0.5")],
)
def test_only_weights_that_add_up_to_1_have_a_skew(weights: list[float], sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^{sentence}"):
        l1_skew(weights)


def test_participation_weights_of_known_processes() -> None:
    four = Population(clients=4)
    np.testing.assert_allclose(participation_weights(Full(), four), 0.25)
    np.testing.assert_allclose(participation_weights(Uniform(3), four), 0.25)
    law = SubsetLaw([[0, 1], [2], []], [0.5, 0.3, 0.2])
    expected = np.array([0.25, 0.25, 0.3, 0]) / 0.8
    np.testing.assert_allclose(participation_weights(law, four), expected)


@pytest.mark.statistical
def test_participation_weights_by_simulation() -> None:
    """Two clients of rates p, q against E[1[n ∈ S] / |S|]; 20 000 rounds, 6 standard errors."""
    p, q = 0.8, 0.3
    nonempty = 1 - (1 - p) * (1 - q)
    exact = (p * (1 - q) + p * q / 2) / nonempty
    weights = participation_weights(Bernoulli([p, q]), Population(clients=2))
    assert abs(weights[0] - exact) < 6 * 0.5 / np.sqrt(20_000 * nonempty)


@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_weights_of_groups_in_turn_are_those_of_whole_cycles(rounds: int) -> None:
    """One number for each turn over the size of its group, however many rounds are simulated."""
    turns = GroupCycle(groups=2, rounds=3)
    np.testing.assert_allclose(participation_weights(turns, Population(4), rounds=rounds), 0.25)
    uneven = GroupCycle(groups=[0, 2, 2, 2], rounds=[1, 5, 2])  # nobody is there in group 1's turn
    weights = participation_weights(uneven, Population(4), rounds=rounds)
    np.testing.assert_allclose(weights, np.array([3, 2, 2, 2]) / 9)
    running, sums = uneven.begin(Population(4), seed=0), np.zeros(4)
    for t in range(uneven.rounds[0], 8 * 100 + 1):
        came = running.round(t).clients
        sums[came] += 1 / max(1, len(came))
    np.testing.assert_allclose(weights, sums / sums.sum(), rtol=1e-12)
    partly = GroupCycle(groups=2, rounds=3, on=0.5)
    assert participation_weights(partly, Population(4)) == pytest.approx(0.25, abs=0.02)
