"""The partitions of the papers, by column, and for millions of clients."""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.problems.partitions.base import (
    NO_COLUMNS,
    Columns,
    Ints,
    Partition,
    Shards,
    StoredShards,
)
from fedtide.randomness import generator, random_words
from fedtide.spec import AtLeast, Positive, Unit, spec

_BLOCK = 2**16  # how many clients' samples are computed together


@spec
class Iid(Partition):
    """Shuffles all samples and divides them evenly; sizes differ by at most one.

    >>> Iid().split(np.zeros(10, dtype=int), clients=4, seed=0).sizes
    array([2, 3, 2, 3])
    """

    def split(self, labels: Ints, clients: int, seed: int, columns: Columns = NO_COLUMNS) -> Shards:
        order = generator(seed, "partition").permutation(len(labels))
        return StoredShards(order, np.arange(clients + 1) * len(labels) // clients)


@spec
class Dirichlet(Partition):
    """Gives each client its own mixture of classes (Wang & Ji 2024, section 6).

    Client n draws κ_n ~ Dir(α, …, α) over the classes. The n_i samples of class i, in file order,
    are cut into consecutive pieces, one per client, whose boundaries are
    round(n_i · (κ_1i + … + κ_ni) / Σ_m κ_mi), halves to even. Every sample is assigned, and client
    sizes differ. A class in which every share is 0 is divided evenly.

    Args:
        alpha: α > 0; small: few classes per client, large: all clients alike. The paper uses 0.1.

    Raises:
        InvalidInputError: alpha is not a positive number.

    >>> labels = np.repeat([0, 1], 50)
    >>> Dirichlet(alpha=0.1).split(labels, clients=4, seed=0).class_shares(labels, 2).round(2)
    array([...])
    """

    needs_labels = True

    alpha: Annotated[float, Positive]

    def split(self, labels: Ints, clients: int, seed: int, columns: Columns = NO_COLUMNS) -> Shards:
        classes = int(labels.max()) + 1
        shares = generator(seed, "partition").dirichlet(np.full(classes, self.alpha), clients)
        owners = np.empty_like(labels)
        for label in range(classes):
            samples = np.flatnonzero(labels == label)
            owners[samples] = _divide(len(samples), shares[:, label])
        return StoredShards.from_owners(owners, clients)


@spec
class MajorityClass(Partition):
    """Gives each client mostly one class (Wang & Ji 2022; Crawshaw & Liu 2024).

    Class i belongs to the clients round(i·N/C) .. round((i+1)·N/C) − 1. Samples are assigned in
    file order: with probability s to one of all N clients, uniformly, otherwise to the client of
    its class with the fewest samples so far (ties: the lowest id).

    Args:
        similarity: s within [0, 1]; 0: one class per client, 1: all clients alike. The papers use
            0.05.

    Raises:
        InvalidInputError: similarity is outside [0, 1], or there are fewer clients than classes.

    >>> labels = np.tile([0, 1], 50)
    >>> MajorityClass(similarity=0).split(labels, clients=4, seed=0).class_shares(labels, 2)
    array([[1., 0.], [1., 0.], [0., 1.], [0., 1.]])
    """

    needs_labels = True

    similarity: Annotated[float, Unit]

    def split(self, labels: Ints, clients: int, seed: int, columns: Columns = NO_COLUMNS) -> Shards:
        bounds = _class_bounds(labels, clients)
        draw = generator(seed, "partition")
        foreign = draw.random(len(labels)) < self.similarity
        anyone = draw.integers(clients, size=len(labels))
        owners = _assign(labels, np.where(foreign, anyone, -1), bounds)
        return StoredShards.from_owners(owners, clients)


@spec
class SingleClass(Partition):
    """Gives each client samples of a single class, with varying sizes (Yan et al., section 5).

    Class i belongs to the clients round(i·N/C) .. round((i+1)·N/C) − 1. A client's size is drawn
    from N(mean, spread²), clipped to mean ± 2·spread, and scaled so that the sizes of a class's
    clients add up to the class; its samples are consecutive in file order. Only spread / mean
    matters: with the defaults, the standard deviation of the sizes is about a fifth of their mean.

    Args:
        mean: the mean size, before scaling.
        spread: the standard deviation of the sizes, before scaling; at least 0, below mean / 2.

    Raises:
        InvalidInputError: sizes could be 0 or less, or there are fewer clients than classes.

    >>> labels = np.tile([0, 1], 50)
    >>> SingleClass(spread=0).split(labels, clients=4, seed=0).sizes
    array([25, 25, 25, 25])
    """

    needs_labels = True

    mean: Annotated[float, Positive] = 5.0
    spread: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= 2 * self.spread < self.mean:
            raise InvalidInputError(
                f"spread: with {self.spread} the least size, mean - 2 spread, is "
                f"{self.mean - 2 * self.spread}; give at least 0 and less than mean / 2"
            )

    def split(self, labels: Ints, clients: int, seed: int, columns: Columns = NO_COLUMNS) -> Shards:
        bounds = _class_bounds(labels, clients)
        draws = generator(seed, "partition").normal(self.mean, self.spread, clients)
        sizes = draws.clip(self.mean - 2 * self.spread, self.mean + 2 * self.spread)
        owners = np.empty_like(labels)
        for label, (first, last) in enumerate(pairwise(bounds)):
            samples = np.flatnonzero(labels == label)
            owners[samples] = first + _divide(len(samples), sizes[first:last])
        return StoredShards.from_owners(owners, clients)


@spec
class Natural(Partition):
    """Creates one client per distinct value of a column, such as writers, devices or hospitals.

    Client n is the n-th of the sorted values, which is its name in logs, traces and results.

    Args:
        column: a column of train.parquet other than the image ("label": one client per class).

    Raises:
        InvalidInputError: the column is missing, or a sample has no value.

    >>> labels = np.array([3, 3, 5])
    >>> shards = Natural("label").split(labels, clients=2, seed=0, columns={"label": labels})
    >>> shards.names, shards.sizes
    (array([3, 5]), array([2, 1]))
    """

    column: str

    def split(self, labels: Ints, clients: int, seed: int, columns: Columns = NO_COLUMNS) -> Shards:
        if self.column not in columns:
            raise InvalidInputError(
                f"column: the training data have no {self.column!r}; "
                f"{did_you_mean(self.column, columns)}"
            )
        return StoredShards.from_column("column", self.column, columns[self.column])


@spec
class SharedPool(Partition):
    """Gives each client `samples` draws, with replacement, from a pool that all clients share.

    A draw is a function of (seed, client, position), so that clients take no memory and may
    outnumber the samples.

    Args:
        samples: how many samples each client holds.

    Raises:
        InvalidInputError: a number below 1.

    >>> shards = SharedPool(samples=60).split(np.arange(10), clients=10_000_000, seed=0)
    >>> shards.locate(np.array([9_999_999]), np.array([[0, 1, 2]])).shape
    (1, 3)
    """

    shares_samples = True

    samples: Annotated[int, AtLeast(1)]

    def split(self, labels: Ints, clients: int, seed: int, columns: Columns = NO_COLUMNS) -> Shards:
        return PoolShards(self.samples, len(labels), clients, seed)


class PoolShards(Shards):
    """Shards whose samples are computed from (seed, client, position).

    Args:
        samples: how many samples each client holds.
        pool: how many there are.
        clients: N.
        seed: of the draws.
    """

    def __init__(self, samples: int, pool: int, clients: int, seed: int) -> None:
        self.sizes = np.broadcast_to(np.int64(samples), (clients,))
        self._pool, self._seed = pool, seed

    def locate(self, clients: Ints, positions: Ints) -> Ints:
        """Return the training samples at these positions, same shape as `positions`."""
        owner = np.broadcast_to(clients[:, None], positions.shape)
        draw = random_words(self._seed, "pool", owner, positions)
        return (draw % np.uint64(self._pool)).astype(np.int64)

    def client_means(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean of `values` over the samples of each client, shape (N,)."""
        positions, means = np.arange(self.sizes[0]), []
        for first in range(0, len(self.sizes), _BLOCK):
            block = np.arange(first, min(first + _BLOCK, len(self.sizes)))
            held = self.locate(block, np.broadcast_to(positions, (len(block), len(positions))))
            means.append(values[held].mean(axis=1))
        return np.concatenate(means)

    def class_shares(self, labels: Ints, classes: int) -> NDArray[np.float64]:
        """Return the pool's share of each class, the same for all clients, (N, classes)."""
        shares = np.bincount(labels, minlength=classes) / len(labels)
        return np.broadcast_to(shares, (len(self.sizes), classes))


def _divide(samples: int, weights: NDArray[np.float64]) -> Ints:
    """Return the owner of each sample in a sequence cut into pieces proportional to `weights`."""
    if not weights.sum() > 0:
        weights = np.ones(len(weights))
    cumulated = np.cumsum(weights)
    boundaries = np.rint(samples * cumulated / cumulated[-1]).astype(np.int64)
    return np.repeat(np.arange(len(weights)), np.diff(boundaries, prepend=0))


def _class_bounds(labels: Ints, clients: int) -> Ints:
    """Return round(i·N/C) for i = 0..C: the first client of each class, and N."""
    classes = int(labels.max()) + 1
    if clients < classes:
        raise InvalidInputError(
            f"clients: {clients} for {classes} classes; each class needs a client, so give at "
            f"least {classes}"
        )
    return np.rint(np.arange(classes + 1) * clients / classes).astype(np.int64)


def _assign(labels: Ints, forced: Ints, bounds: Ints) -> Ints:
    """Return the owner of each sample: the forced one or, for -1, its class's smallest client."""
    sizes = [0] * int(bounds[-1])
    heaps = [
        [(0, client) for client in range(first, last)] for first, last in pairwise(bounds.tolist())
    ]
    owners = np.empty_like(labels)
    for sample, (label, owner) in enumerate(zip(labels.tolist(), forced.tolist(), strict=True)):
        if owner < 0:
            owner = _find_smallest(heaps[label], sizes)
        sizes[owner] += 1
        owners[sample] = owner
    return owners


def _find_smallest(heap: list[tuple[int, int]], sizes: list[int]) -> int:
    """Return the client with the smallest (size, id); outdated heap entries are updated."""
    size, client = heap[0]
    while size != sizes[client]:
        heapq.heapreplace(heap, (sizes[client], client))
        size, client = heap[0]
    return client
