"""The computed experiments against independent computation."""

from itertools import permutations

import numpy as np
import pytest

from fedtide.papers.computed_experiments import (
    draw_successively,
    local_maps,
    skew_gap,
    weights_over_time,
)
from fedtide.participation import Bernoulli
from fedtide.population import Population


def test_local_maps_equal_gradient_descent():
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(3, 7, 4)), draws.normal(size=(3, 7))
    matrices, vectors = local_maps(x, y, lr=0.05, steps=6)
    start = draws.normal(size=4)
    for n in range(3):
        w = start.copy()
        for _ in range(6):
            w -= 0.05 * x[n].T @ (x[n] @ w - y[n]) / 7
        np.testing.assert_allclose(matrices[n] @ start + vectors[n], w, rtol=1e-12)


def exact_inclusion(weights, size):
    """Return P(n in S) by enumerating all orders in which clients can be drawn."""
    p = np.zeros(len(weights))
    for order in permutations(range(len(weights)), size):
        left, chance = sum(weights), 1.0
        for client in order:
            chance *= weights[client] / left
            left -= weights[client]
        p[list(order)] += chance
    return p


@pytest.mark.statistical
def test_draw_successively_has_the_exact_inclusion_probabilities():
    """40,000 draws, each share within 4 standard errors. Error probability: 3 in 10,000."""
    weights = np.array([5.0, 3.0, 2.0, 1.0, 0.5])
    rounds = 40_000
    cohorts = draw_successively(np.random.default_rng(1), weights, 2, rounds)
    assert all(len(set(cohort)) == 2 for cohort in cohorts[:100].tolist())
    p = exact_inclusion(weights, 2)
    shares = np.bincount(cohorts.ravel(), minlength=5) / rounds
    assert (np.abs(shares - p) < 4 * np.sqrt(p * (1 - p) / rounds)).all()


def test_exact_l1_skew_of_five_clients():
    settings = {
        "problem": {"clients": 5, "samples": 20, "features": 2, "informative": 1},
        "ratio": 0.5,
        "size": 2,
        "rounds": 4,
        "lr": 0.1,
        "steps": 1,
        "weighted": True,
        "estimates": 10,
        "seed": 0,
    }
    l1 = skew_gap(settings)["l1"][-1]
    shares = exact_inclusion(0.5 ** np.arange(5), 2) / 2
    assert l1 == pytest.approx(np.abs(shares - 0.2).sum(), abs=1e-9)


def algorithm_2(available, cutoff):
    """Return the weight before the last round by paper 001's Algorithm 2, line by line."""
    count, length, weight = 0, 0, 1.0
    for here in available:
        length += 1
        if here or length == cutoff:
            weight = length if count == 0 else (count * weight + length) / (count + 1)
            count, length = count + 1, 0
    return weight


@pytest.mark.parametrize("cutoff", [None, 5])
def test_weights_over_time_by_algorithm_2(cutoff):
    plain = {"type": "bernoulli", "rates": 0.3}
    settings = {"participation": plain, "clients": 8, "rounds": 60, "cutoff": cutoff, "seed": 3}
    last = weights_over_time(settings).row(-1, named=True)
    stream = Bernoulli(0.3).begin(Population(8), 3)
    available = np.zeros((60, 8), dtype=bool)
    for t in range(60):
        available[t, stream.round(t).clients] = True
    weights = [algorithm_2(available[:, n], cutoff or 10**9) for n in range(8)]
    assert last["weight"] == pytest.approx(np.mean(weights), rel=1e-12)
    assert last["count"] == available.sum(axis=0).mean()
