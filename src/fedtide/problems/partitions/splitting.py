"""Division of the samples by a partition."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtide.errors import InvalidInputError, quantify
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
            does not exist, or the partition divides them among another number of clients.
    """
    if not isinstance(partition, Partition):
        partition = FlwrInstance(partition)
    if clients > len(labels) and not partition.shares_samples:
        raise InvalidInputError(
            f"clients: {clients} for {quantify(len(labels), 'training sample')}; give at most "
            f"{len(labels)}, or a shared pool"
        )
    shards = partition.split(labels.copy(), clients, seed, columns)
    name = type(partition).__name__
    if len(shards.sizes) != clients:
        raise InvalidInputError(
            f"clients: {clients} given, but {name} divides the samples among "
            f"{quantify(len(shards.sizes), 'client')}; give clients: {len(shards.sizes)}"
        )
    empty = np.flatnonzero(shards.sizes == 0)
    if len(empty):
        raise InvalidInputError(
            f"clients: {len(empty)} of {clients} would get no samples (the first is client "
            f"{empty[0]}); give fewer clients, a more even partition or another seed"
        )
    if isinstance(shards, StoredShards):
        low, high = shards.samples.min(), shards.samples.max()
        if low < 0 or high >= len(labels):
            raise InvalidInputError(
                f"partition: {name} gives samples {low} to {high}; the training samples are 0 to "
                f"{len(labels) - 1}"
            )
    return shards


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
