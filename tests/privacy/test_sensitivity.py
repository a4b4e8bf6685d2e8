"""What one client can change: brute force over all participation patterns."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.references import algorithm_2

from fedtide.algorithms import FedAU, FedAvg, KnownRates
from fedtide.differential_privacy.mechanisms import relative_losses
from fedtide.privacy import Gaussian, MatrixFactorisation

from .rounds import all_patterns, banded_root, drive

ROUNDS = 12
NO_NOISE = Gaussian(clip=2.0, noise_multiplier=0.0, delta=1e-5)


@pytest.mark.parametrize("cutoff", [1, 2, 3, 5, 20])
def test_no_participation_pattern_gives_fedau_a_weight_above_its_cutoff(cutoff):
    weights = np.array([algorithm_2(pattern, cutoff)[:-1] for pattern in all_patterns(10)])
    assert weights.max() <= cutoff
    assert weights.max() == min(cutoff, 9)  # it is reached, by a client that stays away


TWELVE = pytest.param(3, ROUNDS, marks=pytest.mark.statistical)


@pytest.mark.parametrize(("cutoff", "rounds"), [(1, 8), (3, 8), (5, 8), TWELVE])
def test_fedau_moves_by_what_is_accounted_under_every_pattern(cutoff, rounds):
    """Client n has the pattern n, and a direction of its own in which its updates are too long."""
    patterns = all_patterns(rounds)
    clients = len(patterns)

    def deltas(t, ids):
        rows = np.zeros((len(ids), clients), dtype=np.float32)
        rows[np.arange(len(ids)), ids] = 5.0 * NO_NOISE.clip
        return rows

    driver, moved = drive(FedAU(cutoff=cutoff), NO_NOISE, patterns.T, deltas, clients)
    # Without the client, its direction would stay zero: this is all that it changes.
    changed = (moved * clients) ** 2
    bound = (cutoff * NO_NOISE.clip) ** 2
    assert changed.max() <= bound
    stated = driver.state.lost.numpy() * bound
    assert (changed.sum(axis=0) <= stated + 1e-12).all()
    np.testing.assert_allclose(changed.sum(axis=0), stated, rtol=1e-5)
    reference = np.array([(np.square(algorithm_2(p, cutoff)[:-1]) * p).sum() for p in patterns])
    np.testing.assert_allclose(stated, reference * NO_NOISE.clip**2, rtol=1e-12)


@pytest.mark.parametrize(("bands", "apart"), [(1, 1), (2, 2), (3, 3), (3, 5), (4, 4)])
def test_correlated_noise_costs_no_pattern_more_than_its_participations(bands, apart):
    mechanism = MatrixFactorisation(1.0, 1.0, 1e-5, min_separation=apart, bands=bands)
    C = banded_root(bands, ROUNDS)
    chosen = [p for p in all_patterns(ROUNDS) if (np.diff(np.flatnonzero(p)) >= apart).all()]
    patterns = np.array(chosen)[1:]  # without that of a client that never takes part
    true = ((C @ patterns.T) ** 2).sum(axis=0)
    clients, rounds = np.nonzero(patterns)
    ones = np.ones(len(clients))
    found = relative_losses(mechanism.coefficients, clients, rounds, ones, ROUNDS)
    np.testing.assert_allclose(found, true, rtol=1e-12)
    without_end = relative_losses(mechanism.coefficients, clients, rounds, ones)
    np.testing.assert_allclose(without_end, patterns.sum(axis=1), rtol=1e-12)
    assert (true <= without_end + 1e-12).all()


@settings(max_examples=40)
@given(st.integers(1, 6), st.integers(0, 2**ROUNDS - 1), st.integers(0, 10**6))
def test_no_directions_of_updates_cost_more_than_what_is_accounted(bands, number, seed):
    """Also for participations closer than the bands, which a log may have."""
    rounds = np.flatnonzero(number >> np.arange(ROUNDS) & 1)
    draws = np.random.default_rng(seed)
    weights = draws.random(len(rounds))
    C = banded_root(bands, ROUNDS)
    same = np.zeros(len(rounds), dtype=np.int64)
    stated = relative_losses(C[:bands, 0], same, rounds, weights, ROUNDS).sum()
    updates = draws.normal(size=(len(rounds), 3))
    updates *= (weights / np.linalg.norm(updates, axis=1))[:, None]
    assert ((C[:, rounds] @ updates) ** 2).sum() <= stated + 1e-12
    aligned = (C[:, rounds] @ weights) ** 2
    assert stated == pytest.approx(aligned.sum(), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "shares"),
    [
        (FedAvg(server_lr=3.0, weights="all"), [1.0, 1.0]),
        (KnownRates(rates=[0.5, 0.1]), [0.2, 1.0]),
    ],
)
def test_shares_are_relative_to_the_largest_weight(algorithm, shares):
    present = np.array([[True, True], [True, False]])
    driver, _ = drive(algorithm, NO_NOISE, present, lambda t, ids: np.zeros((len(ids), 1)), 1)
    first, second = shares
    assert driver.state.lost.tolist() == pytest.approx([2 * first**2, second**2])
