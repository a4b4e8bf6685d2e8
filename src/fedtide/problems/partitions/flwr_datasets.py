"""Partitions by the partitioners of Flower's flwr-datasets."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import field
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
    to_names,
)
from fedtide.spec import spec

_SAMPLE = "fedtide_sample"


@spec
class Flwr(Partition):
    """Uses a partitioner of flwr-datasets (extra `partitioners`), given by its class name.

    Arguments of the constructor that are missing from `arguments` get defaults: `num_partitions` is
    the number of clients, `partition_by` is "label", `seed` is the run's seed.

    Args:
        name: a class of `flwr_datasets.partitioner`, such as "DirichletPartitioner".
        arguments: of its constructor, by name.

    Raises:
        InvalidInputError: flwr-datasets is not installed, the name is unknown, or the partitioner
            fails.

    >>> labels = np.tile([0, 1], 50)
    >>> Flwr("IidPartitioner").split(labels, clients=4, seed=0).sizes
    array([25, 25, 25, 25])
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def split(self, labels: Ints, clients: int, seed: int, columns: Columns = NO_COLUMNS) -> Shards:
        try:
            from flwr_datasets import partitioner
        except ImportError as error:
            raise InvalidInputError(
                "partition: flwr-datasets is not installed; install fedtide[partitioners]"
            ) from error
        names = [name for name in dir(partitioner) if name.endswith("Partitioner")]
        if self.name not in names:
            raise InvalidInputError(
                f"name: unknown {self.name!r}; {did_you_mean(self.name, names)}"
            )
        constructor = getattr(partitioner, self.name)
        defaults = {"num_partitions": clients, "partition_by": "label", "seed": seed}
        parameters = inspect.signature(constructor).parameters
        arguments = {name: value for name, value in defaults.items() if name in parameters}
        try:
            made = constructor(**arguments | dict(self.arguments))
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"arguments: {self.name} rejects them ({error}); give those that it takes"
            ) from error
        return split_by(made, labels, columns)


def split_by(given: Any, labels: Ints, columns: Columns) -> Shards:
    """Return which client holds which samples by a partitioner object without a data set.

    Raises:
        InvalidInputError: the partitioner fails.
    """
    from datasets import Dataset

    # a partitioner takes only one data set, and may be used again
    partitioner = copy.deepcopy(given)
    table = {**columns, "label": labels, _SAMPLE: np.arange(len(labels))}
    try:
        partitioner.dataset = Dataset.from_dict(table)
        count = partitioner.num_partitions
        lists = [np.array(partitioner.load_partition(n)[_SAMPLE]) for n in range(count)]
    except Exception as error:
        raise InvalidInputError(
            f"partition: {type(partitioner).__name__} cannot split these data ({error}); use "
            "another partitioner"
        ) from error
    natural = getattr(partitioner, "partition_id_to_natural_id", None)
    named = natural and to_names("partition", "natural id", [natural[n] for n in range(count)])
    return StoredShards.from_lists(lists, named)
