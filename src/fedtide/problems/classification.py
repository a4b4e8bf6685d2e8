"""Classification of images that are partitioned among clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fedtide.errors import InvalidInputError
from fedtide.problems.augmentation import changes_colours, check_augmentations
from fedtide.problems.base import BufferMode
from fedtide.problems.datasets.catalogue import Normalise, check_constants, load
from fedtide.problems.models import Model, resolve_model
from fedtide.problems.partitions import Partition
from fedtide.problems.partitions.splitting import check_partition
from fedtide.problems.supervised import SupervisedProblem
from fedtide.problems.supervised_data import ReadData, Samples
from fedtide.spec import Code, spec


@spec
class Classification(SupervisedProblem):
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

    >>> import torch
    >>> from fedtide.problems import Dirichlet
    >>> problem = Classification("digits", Dirichlet(alpha=0.1), clients=100)
    >>> task = problem.prepare(seed=1, device=torch.device("cpu"), dtype=torch.float32)
    >>> task.layout.size, int(task.population.samples.sum())
    (650, 1437)
    """

    dataset: str | Path
    partition: Partition | Any
    clients: int
    model: Annotated[str | Mapping[str, Any] | Model, Code] = "logistic"
    augment: Sequence[str] | None = None
    normalise: Normalise | None = None
    samples: int | None = None
    buffers: BufferMode = "average"

    test, loss, metrics = None, "cross_entropy", None  # of `Supervised`; no fields here

    def __post_init__(self) -> None:
        check_partition(self.clients, self.partition)
        check_augmentations(self.augmentations)
        check_constants(self.normalise)
        resolve_model(self.model)

    @property
    def augmentations(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the augmentations, in order."""
        names = () if self.augment is None else self.augment
        return (names,) if isinstance(names, str) else tuple(names)

    def _read(self) -> ReadData:
        data = load(self.dataset, self.normalise, self.samples)
        if changes_colours(self.augmentations) and data.train.features.dtype != np.uint8:
            raise InvalidInputError(
                "augment: the images are not pixels of 0..255; leave out colour augmentations"
            )
        train, test = (Samples((rows.features,), rows.labels) for rows in (data.train, data.test))
        return ReadData(
            train,
            test,
            kind="classes",
            classes=data.classes,
            columns=data.train.columns,
            mean=data.mean,
            std=data.std,
        )
