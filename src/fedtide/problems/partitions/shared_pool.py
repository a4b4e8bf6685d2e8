"""A partition for millions of clients, whose samples are computed rather than stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError
from fedtide.problems.partitions.base import NO_COLUMNS, Columns, Ints, Partition, Shards
from fedtide.randomness import random_words
from fedtide.spec import AtLeast, spec

_BLOCK = 2**16  # how many clients' samples are computed together


@spec
class SharedPool(Partition):
    """Gives each client `samples` draws, with replacement, from a pool that all clients share.

    A draw is a function of (seed, client, position), so that clients take no memory and may
    outnumber the samples.

    Args:
        samples: how many samples each client holds.
        classes: how many classes they come from, in equal parts (the same class may be drawn
            twice); None draws from the whole pool.

    Raises:
        InvalidInputError: a number below 1; in `split`, more classes than the pool has.

    >>> shards = SharedPool(samples=60).split(np.arange(10), clients=10_000_000, seed=0)
    >>> shards.locate(np.array([9_999_999]), np.array([[0, 1, 2]])).shape
    (1, 3)
    """

    shares_samples = True

    samples: Annotated[int, AtLeast(1)]
    classes: Annotated[int, AtLeast(1)] | None = None

    def split(self, labels: Ints, clients: int, seed: int, columns: Columns = NO_COLUMNS) -> Shards:
        present = np.unique(labels)
        if self.classes is not None and self.classes > len(present):
            raise InvalidInputError(
                f"classes: {self.classes} of {len(present)} classes; give at most {len(present)}"
            )
        return PoolShards(self, labels, clients, seed)


class PoolShards(Shards):
    """Shards whose samples are computed from (seed, client, position).

    Args:
        rule: the partition.
        labels: the class of each sample of the pool, shape (n,).
        clients: N.
        seed: of the draws.
    """

    def __init__(self, rule: SharedPool, labels: Ints, clients: int, seed: int) -> None:
        self.sizes = np.broadcast_to(np.int64(rule.samples), (clients,))
        self._classes, self._seed = rule.classes, seed
        self._by_class = np.argsort(labels, kind="stable")
        self._counts = np.unique(labels, return_counts=True)[1]
        self._starts = np.cumsum(self._counts) - self._counts

    def locate(self, clients: Ints, positions: Ints) -> Ints:
        """Return the training samples at these positions, same shape as `positions`."""
        owner = np.broadcast_to(clients[:, None], positions.shape)
        draw = random_words(self._seed, "pool", owner, positions)
        if self._classes is None:
            return (draw % np.uint64(len(self._by_class))).astype(np.int64)
        kind = random_words(self._seed, "classes", owner, positions % self._classes)
        chosen = (kind % np.uint64(len(self._counts))).astype(np.int64)
        within = (draw % self._counts[chosen].astype(np.uint64)).astype(np.int64)
        samples: Ints = self._by_class[self._starts[chosen] + within]
        return samples

    def client_means(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean of `values` over the samples of each client, shape (N,)."""
        means = [values[samples].mean(axis=1) for samples in self._blocks()]
        return np.concatenate(means)

    def class_shares(self, labels: Ints, classes: int) -> NDArray[np.float64]:
        """Return the share of each class, (N, classes); without `classes`, the pool's shares."""
        if self._classes is None:
            pool = np.bincount(labels, minlength=classes) / len(labels)
            return np.broadcast_to(pool, (len(self.sizes), classes))
        return np.concatenate([_row_shares(labels[block], classes) for block in self._blocks()])

    def _blocks(self) -> Iterator[Ints]:
        """Yield the samples of all clients, block by block, each of shape (clients, samples)."""
        positions = np.arange(self.sizes[0])
        for first in range(0, len(self.sizes), _BLOCK):
            block = np.arange(first, min(first + _BLOCK, len(self.sizes)))
            yield self.locate(block, np.broadcast_to(positions, (len(block), len(positions))))


def _row_shares(labels: Ints, classes: int) -> NDArray[np.float64]:
    """Return the share of each class in each row of labels."""
    rows = np.arange(len(labels))[:, None]
    counts = np.bincount((rows * classes + labels).ravel(), minlength=len(labels) * classes)
    shares: NDArray[np.float64] = counts.reshape(-1, classes) / labels.shape[1]
    return shares
