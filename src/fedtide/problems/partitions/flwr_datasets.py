"""Partitions of Flower's flwr-datasets."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.problems.partitions.base import (
    NO_COLUMNS,
    Columns,
    Ints,
    Partition,
    Shards,
    StoredShards,
)

_SAMPLE = "fedtide_sample"


@dataclass(frozen=True)
class Flwr(Partition):
    """Asks a partitioner of flwr-datasets (extra `partitioners`), by its class name.

    What the partitioner takes and `arguments` leaves out is filled in: `num_partitions` with the
    number of clients, `partition_by` with "label", `seed` with the run's seed.

    Args:
        name: a class of `flwr_datasets.partitioner`, such as "DirichletPartitioner".
        arguments: of its constructor, by name.

    Raises:
        InvalidInputError: flwr-datasets is not installed; an unknown name; arguments that the partitioner
            refuses; a number of clients that is not that of its partitions.

    >>> labels = np.tile([0, 1], 50)
    >>> Flwr("IidPartitioner").split(labels, clients=4, seed=0).sizes
    array([25, 25, 25, 25])
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def split(self, labels: Ints, clients: int, seed: int, columns: Columns = NO_COLUMNS) -> Shards:
        """Return who holds which samples."""
        constructor = _constructor(self.name)
        defaults = {"num_partitions": clients, "partition_by": "label", "seed": seed}
        taken = inspect.signature(constructor).parameters
        filled = {name: value for name, value in defaults.items() if name in taken}
        try:
            partitioner = constructor(**{**filled, **self.arguments})
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"arguments: {self.name} refuses them: {error}") from error
        return FlwrInstance(partitioner).split(labels, clients, seed, columns)


@dataclass(frozen=True)
class FlwrInstance(Partition):
    """Asks this partitioner object of flwr-datasets.

    Args:
        partitioner: an instance that has not been given a dataset.

    Raises:
        InvalidInputError: a partitioner that fails, or that makes another number of partitions.
    """

    partitioner: Any

    def split(self, labels: Ints, clients: int, seed: int, columns: Columns = NO_COLUMNS) -> Shards:
        """Return who holds which samples."""
        from datasets import Dataset

        # a partitioner takes a dataset only once, and this value may be split more often
        partitioner = copy.deepcopy(self.partitioner)
        table = {**columns, "label": labels, _SAMPLE: np.arange(len(labels))}
        try:
            partitioner.dataset = Dataset.from_dict(table)
            count = partitioner.num_partitions
            lists = [np.array(partitioner.load_partition(n)[_SAMPLE]) for n in range(count)]
        except Exception as error:
            name = type(partitioner).__name__
            raise InvalidInputError(f"partition: {name} cannot split this data: {error}") from error
        if count != clients:
            raise InvalidInputError(
                f"clients: {clients} clients, but {type(partitioner).__name__} makes {count} "
                f"partitions; give clients: {count}"
            )
        return StoredShards.of_lists(lists)


def _constructor(name: str) -> Any:
    try:
        from flwr_datasets import partitioner
    except ImportError as error:
        raise InvalidInputError(
            "partition: flwr-datasets is not installed; install fedtide[partitioners]"
        ) from error
    names = [name for name in dir(partitioner) if name.endswith("Partitioner")]
    if name not in names:
        raise InvalidInputError(f"name: unknown {name!r}; {did_you_mean(name, names)}")
    return getattr(partitioner, name)
