"""The shared pool: summaries of clients against their samples, and the distribution of draws."""

import numpy as np

from fedtide.problems import SharedPool

LABELS = np.repeat(np.arange(5), [7, 1, 20, 11, 4])


def list_samples(shards, clients):
    """Return the samples of every client, located one by one."""
    return [
        [int(shards.locate(np.array([n]), np.array([[k]]))[0, 0]) for k in range(shards.sizes[n])]
        for n in range(clients)
    ]


def test_means_are_those_of_the_clients_samples():
    shards = SharedPool(samples=6).split(LABELS, clients=9, seed=4)
    samples = list_samples(shards, 9)
    values = np.random.default_rng(0).normal(size=len(LABELS))
    assert np.allclose(shards.client_means(values), [values[s].mean() for s in samples])


def test_locating_many_positions_equals_locating_one_by_one():
    shards = SharedPool(samples=8).split(LABELS, clients=50, seed=1)
    clients, positions = np.array([3, 41]), np.arange(8).reshape(1, 1, 8).repeat(2, axis=1)
    samples = list_samples(shards, 50)
    assert shards.locate(clients, positions)[0].tolist() == [samples[3], samples[41]]


def test_draws_from_the_whole_pool_are_uniform():
    shards = SharedPool(samples=20).split(LABELS, clients=2000, seed=2)
    clients = np.arange(2000)
    samples = shards.locate(clients, np.arange(20) + np.zeros((2000, 1), dtype=int))
    counts = np.bincount(samples.ravel(), minlength=len(LABELS))
    expected = 40_000 / len(LABELS)
    # chi-square with 42 degrees of freedom exceeds 84 with probability 1e-4; the seed is fixed
    assert ((counts - expected) ** 2 / expected).sum() < 84
