"""Labelled data sets: bundled, in a folder, or from the Hugging Face hub."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.problems.datasets.parquet import Rows, read_folder, rows_of

_CIFAR = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
_GREY = ((0.1307,), (0.3081,))


@dataclass(frozen=True)
class DatasetInfo:
    """What is known about a published data set.

    Args:
        hub: its name on the Hugging Face hub, and the configuration.
        classes: C.
        mean, std: of each channel's pixels / 255, by which the papers' programs standardise.
    """

    hub: tuple[str, ...]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


KNOWN = MappingProxyType(
    {
        "mnist": DatasetInfo(("ylecun/mnist",), 10, *_GREY),
        "fashion_mnist": DatasetInfo(("zalando-datasets/fashion_mnist",), 10, *_GREY),
        "cifar10": DatasetInfo(("uoft-cs/cifar10",), 10, *_CIFAR),
        "cifar100": DatasetInfo(("uoft-cs/cifar100",), 100, *_CIFAR),
        "svhn": DatasetInfo(
            ("ufldl-stanford/svhn", "cropped_digits"),
            10,
            (0.4376821, 0.4437697, 0.47280442),
            (0.19803012, 0.20101562, 0.19703614),
        ),
        "cinic10": DatasetInfo(
            ("flwrlabs/cinic10",),
            10,
            (0.47889522, 0.47227842, 0.43047404),
            (0.24205776, 0.23828046, 0.25874835),
        ),
    }
)
"""The published data sets that can be named, beside the bundled "digits"."""


@dataclass(frozen=True, eq=False)
class PixelStandardisation:
    """How pixels are standardised: x = (pixels / 255 − mean) / std.

    Args:
        mean, std: of each channel, (C, 1, 1), or of each pixel, (C, H, W).
    """

    mean: Tensor
    std: Tensor

    def apply(self, pixels: Tensor) -> Tensor:
        """Return x for whole numbers 0..255, shape (n, C, H, W)."""
        return pixels.to(self.mean).div_(255).sub_(self.mean).div_(self.std)

    def pixels(self, x: Tensor) -> Tensor:
        """Return the whole numbers that x was made of."""
        return ((x * self.std + self.mean) * 255).round().long()


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples.

    Args:
        train, test: the rows; features are uint8 pixels (n, C, H, W), or numbers (n, …).
        classes: C; labels are 0..C-1.
        mean, std: by which pixels / 255 are standardised, one for each channel, one for all, or one
            for each pixel, (C, H, W).
    """

    train: Rows
    test: Rows
    classes: int
    mean: Sequence[float] | NDArray[np.float64] = (0.5,)
    std: Sequence[float] | NDArray[np.float64] = (0.5,)

    def standard(self, device: torch.device, dtype: torch.dtype) -> PixelStandardisation:
        """Return how pixels are standardised, on the device."""
        mean, std = (
            torch.tensor(np.reshape(c, np.shape(c) if np.ndim(c) == 3 else (-1, 1, 1)))
            for c in (self.mean, self.std)
        )
        return PixelStandardisation(mean.to(device, dtype), std.to(device, dtype))

    def features(self, rows: Rows, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return standardised pixels, or numbers as they are, on the device."""
        features = torch.from_numpy(rows.features).to(device)
        if rows.features.dtype != np.uint8:
            return features.to(dtype)
        return self.standard(device, dtype).apply(features)


Normalise = Sequence[float] | Literal["pixels"]
"""A mean and a standard deviation for pixels / 255, or each pixel's own over the training set."""


def load(
    dataset: str | Path, normalise: Normalise | None = None, samples: int | None = None
) -> Dataset:
    """Return a data set by name, or from a folder with train.parquet and test.parquet.

    A published data set is looked for in the folder of its name in $FEDTIDE_DATA, then on the
    Hugging Face hub. Its pixels are standardised by its known constants (and so are those of any
    folder that bears its name); those of others are brought to [-1, 1].

    "digits" are scikit-learn's 1,797 handwritten digits, 8×8 pixels of 0..16, here divided by 16.
    They come without a test set: a fifth, drawn once for all and stratified, is set aside.

    Args:
        dataset: "digits", a name in `KNOWN`, or a folder.
        normalise: a mean and a standard deviation for pixels / 255 instead of the known ones;
            (0, 1) leaves them in [0, 1], and "pixels" standardises each pixel by the training
            samples (those that never change become 0).
        samples: only the first so many training samples; None: all.

    Raises:
        InvalidInputError: an unknown name, a folder without the files, files that cannot be read.

    >>> digits = load("digits")
    >>> digits.train.features.shape, digits.test.features.shape, digits.classes
    ((1437, 1, 8, 8), (360, 1, 8, 8), 10)
    """
    found = _digits() if dataset == "digits" else _published(dataset)
    if samples is not None:
        found = replace(found, train=_first(found.train, samples))
    return found if normalise is None else _normalised(found, normalise)


def _published(dataset: str | Path) -> Dataset:
    name = Path(dataset).name
    folder = _folder(dataset)
    train, test = _from_hub(name) if folder is None else read_folder(folder)
    known = KNOWN.get(name)
    classes = known.classes if known else int(train.labels.max()) + 1
    _check(train, test, classes)
    mean, std = (known.mean, known.std) if known else ((0.5,), (0.5,))
    return Dataset(train, test, classes, mean, std)


def _first(rows: Rows, samples: int) -> Rows:
    """Return the first so many rows."""
    if not 1 <= samples <= len(rows.labels):
        raise InvalidInputError(
            f"samples: {samples} of {len(rows.labels)} training samples; give at least 1 and at "
            f"most {len(rows.labels)}"
        )
    columns = {name: column[:samples] for name, column in rows.columns.items()}
    return Rows(rows.features[:samples], rows.labels[:samples], MappingProxyType(columns))


def _normalised(data: Dataset, normalise: Normalise) -> Dataset:
    """Return the data with other constants; numbers that are no pixels stay as they are."""
    if not isinstance(normalise, str):
        return replace(data, mean=(normalise[0],), std=(normalise[1],))
    pixels = data.train.features / 255.0
    mean, std = pixels.mean(axis=0), pixels.std(axis=0)
    return replace(data, mean=mean, std=np.where(std > 0, std, 1.0))


def _folder(dataset: str | Path) -> Path | None:
    """Return where the files are; None: on the hub."""
    named = Path(os.environ.get("FEDTIDE_DATA", ""), dataset)
    if dataset in KNOWN:
        here = "FEDTIDE_DATA" in os.environ and (named / "train.parquet").exists()
        return named if here else None
    if Path(dataset).is_dir():
        return Path(dataset)
    raise InvalidInputError(
        f"dataset: unknown {str(dataset)!r}; {did_you_mean(str(dataset), ['digits', *KNOWN])}, or "
        f"give a folder with train.parquet and test.parquet"
    )


def _check(train: Rows, test: Rows, classes: int) -> None:
    if train.features.shape[1:] != test.features.shape[1:]:
        raise InvalidInputError(
            f"dataset: training samples have shape {train.features.shape[1:]} and test samples "
            f"{test.features.shape[1:]}; give both the same"
        )
    if classes > len(train.labels):
        raise InvalidInputError(
            f"label: {classes - 1} is out of range for {len(train.labels)} training samples; "
            f"number the classes from 0"
        )
    for file, rows in (("train", train), ("test", test)):
        wrong = rows.labels[(rows.labels < 0) | (rows.labels >= classes)]
        if len(wrong):
            raise InvalidInputError(
                f"label: {wrong[0]} in {file}.parquet is out of range; labels must lie within "
                f"0..{classes - 1}"
            )


@lru_cache(maxsize=1)
def _digits() -> Dataset:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    features = (bunch.images[:, None] / 16).astype(np.float32)
    labels = bunch.target.astype(np.int64)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0
    )
    first, second = (_labelled(features[part], labels[part]) for part in (train, test))
    return Dataset(first, second, classes=10)


def _labelled(features: NDArray[Any], labels: NDArray[np.int64]) -> Rows:
    return Rows(features, labels, MappingProxyType({"label": labels}))


@lru_cache(maxsize=2)
def _from_hub(name: str) -> tuple[Rows, Rows]:
    """Return the training and test rows of a data set on the hub, or of its local copy."""
    from datasets import Image, load_dataset

    try:
        splits = load_dataset(*KNOWN[name].hub)
    except Exception as error:
        raise InvalidInputError(
            f"dataset: {name!r} cannot be had from the Hugging Face hub "
            f"({type(error).__name__}); go online, or put {name}/train.parquet and "
            f"{name}/test.parquet into the folder that FEDTIDE_DATA names"
        ) from error
    rows = []
    for split in ("train", "test"):
        data = splits[split]
        for column, feature in data.features.items():
            if isinstance(feature, Image):
                data = data.cast_column(column, Image(decode=False))
        rows.append(rows_of(data.with_format("arrow")[:], f"{name}, split {split}"))
    return rows[0], rows[1]
