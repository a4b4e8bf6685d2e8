"""Division of the samples by a partition."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtide.errors import InvalidInputError, quantify
from fedtide.problems.partitions.base import Columns, Ints, Partition, Shards
from fedtide.problems.partitions.flwr_datasets import split_by


def split(
    partition: Partition | Any, labels: Ints, clients: int, seed: int, columns: Columns
) -> Shards:
    """Return which client holds which samples; every client holds at least one.

    Args:
        partition: a partition, or a partitioner object of flwr-datasets.
        labels: of the samples, (n,).
        clients: N.
        seed: of the draws.
        columns: by which a partition may divide them.

    Raises:
        InvalidInputError: the samples cannot be divided like this, a client gets none, or the
            partition divides them among another number of clients.
    """
    if clients > len(labels) and not getattr(partition, "shares_samples", False):
        raise InvalidInputError(
            f"clients: {clients} for {quantify(len(labels), 'training sample')}; give at most "
            f"{len(labels)}, or a shared pool"
        )
    if isinstance(partition, Partition):
        shards = partition.split(labels.copy(), clients, seed, columns)
    else:
        shards = split_by(partition, labels, columns)
    if len(shards.sizes) != clients:
        raise InvalidInputError(
            f"clients: {clients} given, but {type(partition).__name__} divides the samples among "
            f"{quantify(len(shards.sizes), 'client')}; give clients: {len(shards.sizes)}"
        )
    empty = np.flatnonzero(shards.sizes == 0)
    if len(empty):
        raise InvalidInputError(
            f"clients: {len(empty)} of {clients} would get no samples (the first is client "
            f"{empty[0]}); give fewer clients, a more even partition or another seed"
        )
    return shards


def check_partition(clients: int, partition: Partition | Any) -> None:
    """Raise InvalidInputError unless there is a client, and this is a partition or partitioner."""
    if clients < 1:
        raise InvalidInputError(f"clients: {clients} clients; give at least 1")
    if not isinstance(partition, Partition) and not hasattr(partition, "load_partition"):
        raise InvalidInputError(
            f"partition: {partition!r} is not a partition; give one such as Dirichlet(0.1)"
        )
