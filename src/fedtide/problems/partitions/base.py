"""The contract of a partition, and of shards, which say which samples each client holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError
from fedtide.population import Names

Ints = NDArray[np.int64]
Columns = Mapping[str, NDArray[Any]]
NO_COLUMNS: Columns = MappingProxyType({})


class Shards(ABC):
    """Which client holds which training samples.

    Attributes:
        sizes: how many samples each client holds, shape (N,).
        names: the clients' names in the data, shape (N,); None if they have none.
    """

    sizes: Ints
    names: Names | None = None

    @abstractmethod
    def locate(self, clients: Ints, positions: Ints) -> Ints:
        """Return the training samples at these positions among the clients' own samples.

        Args:
            clients: client ids, shape (S,).
            positions: positions among a client's own samples, from 0, shape (..., S, B).

        Returns:
            Indices into the training set, same shape as `positions`.
        """

    def held_by(self, client: int) -> Ints:
        """Return the training samples that a client holds, in order of their positions."""
        held: Ints = self.locate(np.array([client]), np.arange(self.sizes[client])[None])[0]
        return held

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
        names: the clients' names, shape (N,), or None.
    """

    samples: Ints
    offsets: Ints
    names: Names | None = None

    @classmethod
    def from_lists(
        cls, lists: Sequence[NDArray[np.integer[Any]]], names: Names | None = None
    ) -> StoredShards:
        """Return the shards in which client n holds the samples `lists[n]`.

        >>> shards = StoredShards.from_lists([np.array([4, 2]), np.array([0])])
        >>> shards.sizes, shards.locate(np.array([1, 0]), np.array([[0], [1]])).tolist()
        (array([2, 1]), [[0], [2]])
        """
        samples = np.concatenate([np.asarray(one, dtype=np.int64) for one in lists])
        return cls(samples, np.cumsum([0, *map(len, lists)]), names)

    @classmethod
    def from_owners(cls, owners: Ints, clients: int, names: Names | None = None) -> StoredShards:
        """Return the shards in which sample i belongs to client `owners[i]`, shape (n,)."""
        sizes = np.bincount(owners, minlength=clients)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return cls(np.argsort(owners, kind="stable"), offsets, names)

    @classmethod
    def from_column(cls, field: str, column: str, values: NDArray[Any]) -> StoredShards:
        """Return the shards with one client for each distinct value of a column, in sorted order.

        Args:
            field: the field that an error names.
            column: the name of the column.
            values: one for each sample, shape (n,).

        Raises:
            InvalidInputError: values that `to_names` rejects.

        >>> shards = StoredShards.from_column("column", "user", np.array(["bob", "ann", "bob"]))
        >>> shards.names, shards.sizes
        (array(['ann', 'bob'], dtype=object), array([1, 2]))
        """
        found = pa.array(to_names(field, column, values)).dictionary_encode()  # sorts no rows
        names, places = np.unique(np.asarray(found.dictionary), return_inverse=True)
        owners = places.astype(np.int64)[np.asarray(found.indices)]
        return cls.from_owners(owners, len(names), names)

    @property
    def sizes(self) -> Ints:  # type: ignore[override]
        """How many samples each client holds, shape (N,)."""
        return np.diff(self.offsets)

    def locate(self, clients: Ints, positions: Ints) -> Ints:
        """Return the training samples at these positions, same shape as `positions`."""
        samples: Ints = self.samples[self.offsets[clients][:, None] + positions]
        return samples


def to_names(field: str, column: str, values: NDArray[Any] | Sequence[Any]) -> Names:
    """Return values of the data as names of clients.

    Whole numbers stay numbers, also those stored as floats; values of any other type, such as
    dates, become strings.

    Args:
        field: the field that an error names.
        column: the name of the column that holds the values.
        values: the values.

    Raises:
        InvalidInputError: a missing value (None, NaN or another null), values of different types
            (1 and "1" would be two clients of one name), or lists and other data.

    >>> to_names("column", "user", [2.0, 7.0]), to_names("column", "user", [0.5, 2.0])
    (array([2, 7]), array(['0.5', '2'], dtype=object))
    """
    try:
        array = pa.array(values, from_pandas=True)
        if array.null_count:
            raise InvalidInputError(
                f"{field}: {column!r} is missing in {array.null_count:,} of {len(array):,} rows; "
                "complete these rows or remove them"
            )
        if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
            with suppress(pa.ArrowInvalid):  # fractions, or more than 64 bits
                return np.asarray(array.cast(pa.int64()))
        return np.asarray(array.cast(pa.large_string()))
    except (pa.ArrowException, TypeError, OverflowError):
        raise InvalidInputError(
            f"{field}: {column!r} holds values of different types, or no names; convert them to "
            "whole numbers or to strings"
        ) from None


class Partition(ABC):
    """A rule that divides the training samples among clients (a frozen dataclass)."""

    shares_samples: ClassVar[bool] = False
    """Whether clients may hold the same samples; N may then exceed the number of samples."""
    needs_labels: ClassVar[bool] = False
    """Whether it divides samples by their class, so that every sample must have one."""

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
