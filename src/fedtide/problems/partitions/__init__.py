"""Partitions: how the samples of a data set are divided among clients."""

from fedtide.problems.partitions.base import Partition, Shards, StoredShards
from fedtide.problems.partitions.flwr_datasets import Flwr
from fedtide.problems.partitions.partitioners import (
    Dirichlet,
    Iid,
    MajorityClass,
    Natural,
    SharedPool,
    SingleClass,
)

PARTITIONS: dict[str, type[Partition]] = {
    "iid": Iid,
    "dirichlet": Dirichlet,
    "majority-class": MajorityClass,
    "single-class": SingleClass,
    "natural": Natural,
    "shared-pool": SharedPool,
    "flwr": Flwr,
}
"""The partitions by their `type` in an experiment file."""

__all__ = [
    "PARTITIONS",
    "Dirichlet",
    "Flwr",
    "Iid",
    "MajorityClass",
    "Natural",
    "Partition",
    "Shards",
    "SharedPool",
    "SingleClass",
    "StoredShards",
]
