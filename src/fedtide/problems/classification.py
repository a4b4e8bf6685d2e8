"""Classification of images that are partitioned among clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedtide.configurable import configurable
from fedtide.errors import InvalidInputError
from fedtide.problems.augmentation import changes_colours, check_augmentations
from fedtide.problems.base import BufferMode, Problem
from fedtide.problems.datasets.catalogue import (
    Dataset,
    Normalise,
    check_constants,
    load,
    standardisation,
)
from fedtide.problems.losses import cross_entropy
from fedtide.problems.models import Model, resolve_model
from fedtide.problems.models.network_building import build_network, parameter_dtype
from fedtide.problems.partitions import Partition
from fedtide.problems.partitions.splitting import check_partition, split
from fedtide.problems.sample_metrics import METRICS
from fedtide.problems.supervised_data import Samples, SupervisedData, to_device
from fedtide.problems.supervised_task import SupervisedTask


@configurable
class Classification(Problem):
    """`Supervised` for data sets of labelled images by name: the loss is the cross-entropy.

    Args:
        dataset: "digits" (bundled), "mnist", "fashion_mnist", "cifar10", "cifar100", "svhn",
            "cinic10", or a folder with train.parquet and test.parquet; see
            `fedtide.problems.datasets.catalogue.load`.
        partition: which client holds which training samples: a partition, or a partitioner object
            of flwr-datasets.
        clients: N.
        model: a name in `MODELS`, an import path "package.module:Class", a mapping with `type` and
            its parameters, or a model object.
        augment: augmentations of the training images, in order: first those of colours ("sharpen",
            "jitter", "posterize", "equalize"), then "pad-crop" (4 zeros on every side, then a
            random window) and "flip" (left to right with probability 1/2); see `augmentation`.
        normalise: a mean and a standard deviation for pixels / 255 instead of the data set's own;
            (0.5, 0.5) as Yan et al., (0, 1) for pixels in [0, 1], "pixels" for each pixel's own.
        samples: use only the first `samples` training samples; None: all.
        buffers: how running statistics are handled; see `Supervised`.

    Raises:
        InvalidInputError: an unknown name or a parameter out of range; in `prepare`, data that are
            not available, a partition that leaves a client without samples, or a model that does
            not fit the data.

    >>> from fedtide.problems import Dirichlet
    >>> problem = Classification("digits", Dirichlet(alpha=0.1), clients=100)
    >>> task = problem.prepare(seed=1, device=torch.device("cpu"), dtype=torch.float32)
    >>> task.layout.size, int(task.population.samples.sum())
    (650, 1437)
    """

    dataset: str | Path
    partition: Partition | Any
    clients: int
    model: str | Mapping[str, Any] | Model = "logistic"
    augment: Sequence[str] | None = None
    normalise: Normalise | None = None
    samples: int | None = None
    buffers: BufferMode = "average"

    def __post_init__(self) -> None:
        check_partition(self.clients, self.partition)
        check_augmentations(self._augmentations)
        if not isinstance(self.normalise, str):
            check_constants(self.normalise)
        resolve_model(self.model)

    def fingerprint(self) -> str:
        """Return a hash of the features and labels."""
        data = load(self.dataset)
        return f"{data.train.fingerprint[:32]}{data.test.fingerprint[:32]}"

    @property
    def _augmentations(self) -> tuple[str, ...]:
        names = () if self.augment is None else self.augment
        return (names,) if isinstance(names, str) else tuple(names)

    def prepare(self, seed: int, device: torch.device, dtype: torch.dtype) -> SupervisedTask:
        data = load(self.dataset, self.normalise, self.samples)
        self._check_augmentations(data)
        labels, kept = data.train.labels, parameter_dtype(dtype)
        pixels = standardisation(data.mean, data.std, device, kept)
        train, test = (
            to_device(Samples((rows.features,), rows.labels), device, kept, pixels)
            for rows in (data.train, data.test)
        )
        supervised = SupervisedData(
            train=train,
            test=test,
            shards=split(self.partition, labels, self.clients, seed, data.train.columns),
            labels=labels,
            classes=data.classes,
            names=(None,),
        )
        shape = data.train.features.shape[1:]
        module = build_network(self.model, shape, data.classes, seed, device, dtype)
        return SupervisedTask(
            supervised,
            module,
            cross_entropy,
            {"accuracy": METRICS["accuracy"]},
            self.buffers,
            self._augmentations,
            pixels,
            dtype,
        )

    def _check_augmentations(self, data: Dataset) -> None:
        if self._augmentations and data.train.features.ndim != 4:
            raise InvalidInputError("augment: the features are not images; leave it out")
        if changes_colours(self._augmentations) and data.train.features.dtype != np.uint8:
            raise InvalidInputError(
                "augment: the images are not pixels of 0..255; leave out colour augmentations"
            )
