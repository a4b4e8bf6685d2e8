"""Division of the samples by a partition, with checks of the result."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtide.errors import InvalidInputError, quantify
from fedtide.problems.partitions.base import Columns, Ints, Partition, Shards
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
        InvalidInputError: the samples cannot be divided like this, or a client gets none.
    """
    if not isinstance(partition, Partition):
        partition = FlwrInstance(partition)
    if clients > len(labels) and not partition.shares_samples:
        raise InvalidInputError(
            f"clients: {clients} for {quantify(len(labels), 'training sample')}; give at most "
            f"{len(labels)}, or a shared pool"
        )
    shards = partition.split(labels, clients, seed, columns)
    empty = np.flatnonzero(shards.sizes == 0)
    if len(empty):
        raise InvalidInputError(
            f"clients: {len(empty)} of {clients} would get no samples (the first is client "
            f"{empty[0]}); give fewer clients, a more even partition or another seed"
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
