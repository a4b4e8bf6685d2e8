"""The contract of a partition, and the two ways to say which samples each client holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Columns = Mapping[str, NDArray[Any]]
NO_COLUMNS: Columns = MappingProxyType({})


class Shards(ABC):
    """Which client holds which training samples.

    Attributes:
        sizes: how many samples each client holds, shape (N,).
    """

    sizes: Ints
    names: NDArray[Any] | None = None

    @abstractmethod
    def locate(self, clients: Ints, positions: Ints) -> Ints:
        """Return the training samples at these positions among the clients' own samples.

        Args:
            clients: client ids, shape (S,).
            positions: positions among a client's own samples, from 0, shape (..., S, B).

        Returns:
            Indices into the training set, same shape as `positions`.
        """

    def client_means(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean of `values` over the samples of each client.

        Args:
            values: one number for each training sample, shape (n,).

        Returns:
            Shape (N,).
        """
        owners, samples = self.list_pairs()
        sums = np.bincount(owners, weights=values[samples], minlength=len(self.sizes))
        return sums / self.sizes

    def class_shares(self, labels: Ints, classes: int) -> NDArray[np.float64]:
        """Return the share of each class in each client's samples, shape (N, classes)."""
        owners, samples = self.list_pairs()
        counts = np.bincount(
            owners * classes + labels[samples], minlength=len(self.sizes) * classes
        )
        return counts.reshape(-1, classes) / self.sizes[:, None]

    def list_pairs(self) -> tuple[Ints, Ints]:
        """Return the owner and the index of every sample held by a client."""
        owners = np.repeat(np.arange(len(self.sizes)), self.sizes)
        first = np.repeat(np.cumsum(self.sizes) - self.sizes, self.sizes)
        positions = np.arange(len(owners)) - first
        return owners, self.locate(owners, positions[:, None])[:, 0]


@dataclass(frozen=True, eq=False)
class StoredShards(Shards):
    """Shards as arrays: client n holds `samples[offsets[n]:offsets[n + 1]]`.

    Args:
        samples: indices into the training set, client after client.
        offsets: the boundaries between clients, shape (N + 1,).
    """

    samples: Ints
    offsets: Ints
    names: NDArray[Any] | None = None

    @classmethod
    def from_lists(cls, lists: Sequence[NDArray[np.integer[Any]]]) -> StoredShards:
        """Return the shards in which client n holds the samples `lists[n]`.

        >>> shards = StoredShards.from_lists([np.array([4, 2]), np.array([0])])
        >>> shards.sizes, shards.locate(np.array([1, 0]), np.array([[0], [1]])).tolist()
        (array([2, 1]), [[0], [2]])
        """
        offsets = np.cumsum([0, *map(len, lists)])
        return cls(np.concatenate(lists).astype(np.int64), offsets)

    @classmethod
    def from_owners(cls, owners: Ints, clients: int) -> StoredShards:
        """Return the shards in which sample i belongs to client `owners[i]`, shape (n,)."""
        sizes = np.bincount(owners, minlength=clients)
        return cls(np.argsort(owners, kind="stable"), np.concatenate([[0], np.cumsum(sizes)]))

    @property
    def sizes(self) -> Ints:  # type: ignore[override]
        """How many samples each client holds, shape (N,)."""
        return np.diff(self.offsets)

    def locate(self, clients: Ints, positions: Ints) -> Ints:
        """Return the training samples at these positions, same shape as `positions`."""
        samples: Ints = self.samples[self.offsets[clients][:, None] + positions]
        return samples


class Partition(ABC):
    """A rule that divides the training samples among clients (a frozen dataclass)."""

    @property
    def shares_samples(self) -> bool:
        """Whether clients may hold the same samples; then N may exceed the number of samples."""
        return False

    @abstractmethod
    def split(self, labels: Ints, clients: int, seed: int, columns: Columns = NO_COLUMNS) -> Shards:
        """Return which client holds which samples.

        Args:
            labels: the class of each training sample, in file order, shape (n,).
            clients: N, the number of clients.
            seed: of the random draws.
            columns: the file's other columns by name, each of shape (n,).

        Raises:
            InvalidInputError: the samples cannot be divided in this way.
        """
