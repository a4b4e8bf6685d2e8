"""Division of the samples by a partition, with checks of the result."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtide.errors import InvalidInputError, quantify
from fedtide.population import read_only
from fedtide.problems.partitions.base import Columns, Ints, Partition, Shards, StoredShards
from fedtide.problems.partitions.flwr_datasets import FlwrInstance


def split(
    partition: Partition | Any,
    labels: Ints,
    clients: int,
    seed: int,
    columns: Columns,
) -> Shards:
    """Return which client holds which samples; every client holds at least one.

    Raises:
        InvalidInputError: the samples cannot be divided like this, a client gets none or one that
            does not exist or the same one twice, or the partition does not return shards of N
            clients.
    """
    if not isinstance(partition, Partition):
        partition = FlwrInstance(partition)
    if clients > len(labels) and not partition.shares_samples:
        raise InvalidInputError(
            f"clients: {clients} for {quantify(len(labels), 'training sample')}; give at most "
            f"{len(labels)}, or a shared pool"
        )
    shown = {name: read_only(column) for name, column in columns.items()}
    shards = partition.split(read_only(labels), clients, seed, shown)
    _check_sizes(shards, clients, type(partition).__name__)
    empty = np.flatnonzero(shards.sizes == 0)
    if len(empty):
        raise InvalidInputError(
            f"clients: {len(empty)} of {clients} would get no samples (the first is client "
            f"{empty[0]}); give fewer clients, a more even partition or another seed"
        )
    if isinstance(shards, StoredShards):
        _check_samples(shards, len(labels))
    return shards


def _check_sizes(shards: Any, clients: int, name: str) -> None:
    """Raise InvalidInputError unless a partition of this name returned shards of N clients."""
    if not isinstance(shards, Shards):
        raise InvalidInputError(
            f"partition: split of {name} returned a {type(shards).__name__}; return shards, such "
            "as StoredShards.from_lists(lists) with a list of samples for each client"
        )
    sizes: Any = shards.sizes
    if not isinstance(sizes, np.ndarray) or sizes.ndim != 1 or sizes.dtype.kind != "i":
        raise InvalidInputError(
            f"partition: the sizes of the shards of {name} are {sizes!r:.60}; give one number per "
            "client, in an array of signed whole numbers"
        )
    if len(sizes) != clients:
        raise InvalidInputError(
            f"clients: {clients} given, but {name} divides the samples among "
            f"{quantify(len(sizes), 'client')}; return the samples of {clients}"
        )


def _check_samples(shards: StoredShards, count: int) -> None:
    """Raise InvalidInputError unless each client holds different ones of `count` samples."""
    samples = shards.samples
    if samples.min() < 0 or samples.max() >= count:
        place = int(((samples < 0) | (samples >= count)).argmax())
        raise InvalidInputError(
            f"partition: {_owner(shards, place)} holds sample {samples[place]}; the training "
            f"samples are 0 to {count - 1}"
        )
    if np.bincount(samples).max() == 1:
        return
    owners = np.repeat(np.arange(len(shards.sizes)), shards.sizes)
    order = np.lexsort((samples, owners))
    ordered = samples[order]
    again = np.flatnonzero((ordered[1:] == ordered[:-1]) & (owners[1:] == owners[:-1]))
    if len(again):
        place = int(order[again[0]])
        raise InvalidInputError(
            f"partition: {_owner(shards, place)} holds sample {samples[place]} twice; list each "
            "sample of a client once"
        )


def _owner(shards: StoredShards, place: int) -> str:
    """Return which client holds the sample at this place of `shards.samples`, in words."""
    return f"client {np.searchsorted(shards.offsets, place, side='right') - 1}"


def check_partition(clients: int, partition: Partition | Any) -> None:
    """Check a number of clients and a partition.

    Raises:
        InvalidInputError: fewer than one client, or something that is not a partition.
    """
    if clients < 1:
        raise InvalidInputError(f"clients: {clients} clients; give at least 1")
    if not isinstance(partition, Partition) and not hasattr(partition, "load_partition"):
        raise InvalidInputError(
            f"partition: {partition!r} is not a partition; give one such as Dirichlet(0.1)"
        )
