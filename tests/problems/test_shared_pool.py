"""Clients by rule: what they hold, against looking every sample up."""

import numpy as np
import pytest

import fedtide as ft
from fedtide import InvalidInputError
from fedtide.problems import SharedPool

LABELS = np.repeat(np.arange(5), [7, 1, 20, 11, 4])


def held(shards, clients):
    """Return the samples of every client, looked up one by one."""
    return [
        [int(shards.locate(np.array([n]), np.array([[k]]))[0, 0]) for k in range(shards.sizes[n])]
        for n in range(clients)
    ]


@pytest.mark.parametrize("classes", [None, 1, 3])
def test_figures_of_clients_are_those_of_the_samples_they_hold(classes):
    shards = SharedPool(samples=6, classes=classes).split(LABELS, clients=9, seed=4)
    samples = held(shards, 9)
    values = np.random.default_rng(0).normal(size=len(LABELS))
    assert np.allclose(shards.averages(values), [values[s].mean() for s in samples])
    if classes is not None:
        shares = shards.class_shares(LABELS, 5)
        assert np.allclose(shares, [np.bincount(LABELS[s], minlength=5) / 6 for s in samples])
        assert all(len(set(LABELS[s])) <= classes for s in samples)


def test_positions_are_looked_up_together_as_alone():
    shards = SharedPool(samples=8, classes=2).split(LABELS, clients=50, seed=1)
    clients, positions = np.array([3, 41]), np.arange(8).reshape(1, 1, 8).repeat(2, axis=1)
    alone = held(shards, 50)
    assert shards.locate(clients, positions)[0].tolist() == [alone[3], alone[41]]


def test_the_whole_pool_is_drawn_from_evenly():
    shards = SharedPool(samples=20).split(LABELS, clients=2000, seed=2)
    clients = np.arange(2000)
    drawn = shards.locate(clients, np.arange(20) + np.zeros((2000, 1), dtype=int))
    counts = np.bincount(drawn.ravel(), minlength=len(LABELS))
    expected = 40_000 / len(LABELS)
    # chi-square with 42 degrees of freedom exceeds 84 with probability 1e-4; the seed is fixed
    assert ((counts - expected) ** 2 / expected).sum() < 84


def test_there_may_be_more_clients_than_samples():
    result = ft.simulate(
        problem=ft.problems.Classification("digits", SharedPool(samples=20), clients=1_000_000),
        participation=ft.participation.Bernoulli(rates=2e-5),
        algorithm=ft.algorithms.FedAvg(),
        local=ft.LocalTraining(steps=2, lr=0.1, batch_size=10),
        rounds=20,
        evaluation={"every": 0, "clients": False},
        trainer="stacked",
    )
    assert result.metrics["train_loss"][-1] < 2.2


def test_bad_numbers_are_refused():
    with pytest.raises(InvalidInputError, match="samples: 0"):
        SharedPool(samples=0)
    with pytest.raises(InvalidInputError, match="classes: 6 of 5 classes"):
        SharedPool(samples=3, classes=6).split(LABELS, clients=2, seed=0)
