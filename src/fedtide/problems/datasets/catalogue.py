"""Data sets of labelled images: bundled, from a folder, or from the Hugging Face hub."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.problems.datasets.files import load_from_hub, read_file
from fedtide.problems.datasets.sources import PlainColumns, Table
from fedtide.problems.datasets.table_columns import require_finite
from fedtide.validation import expand_home

_CIFAR = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
_GREY = ((0.1307,), (0.3081,))
_ENCODED = (pa.types.is_struct, pa.types.is_binary, pa.types.is_large_binary)
_IMAGE, _LABEL = ("image", "img"), ("label", "fine_label")  # the names on the hub


Constants = Sequence[float] | NDArray[np.float64]
"""Of pixels / 255: one per channel, one for all, or one per pixel, (C, H, W)."""


@dataclass(frozen=True)
class DatasetInfo:
    """The source and constants of a published data set.

    Args:
        hub: its name on the Hugging Face hub, and the configuration.
        classes: C.
        mean, std: of each channel's pixels / 255, with which the papers' programs standardise.
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
"""The published data sets by name; "digits" is bundled."""


@dataclass(frozen=True, eq=False)
class PixelStandardisation:
    """The standardisation of pixels: x = (pixels / 255 − mean) / std.

    Args:
        mean, std: of each channel, (C, 1, 1), or of each pixel, (C, H, W).
    """

    mean: Tensor
    std: Tensor

    def apply(self, pixels: Tensor) -> Tensor:
        """Return x for integer pixels 0..255, shape (n, C, H, W)."""
        return pixels.to(self.mean).div_(255).sub_(self.mean).div_(self.std)

    def pixels(self, x: Tensor) -> Tensor:
        """Return the integer pixels that `apply` maps to x."""
        return ((x * self.std + self.mean) * 255).round().long()


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples in the order of their file.

    Args:
        features: uint8 pixels (n, C, H, W), or float32 numbers (n, …).
        labels: shape (n,).
        columns: the columns with one value per row, by name, each of shape (n,); `label` is one.
    """

    features: NDArray[Any]
    labels: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples.

    Args:
        train, test: the rows.
        classes: C; labels are 0..C-1.
        mean, std: of pixels in the standardisation.
    """

    train: Rows
    test: Rows
    classes: int
    mean: Constants = (0.5,)
    std: Constants = (0.5,)


def standardisation(
    mean: Constants, std: Constants, device: torch.device, dtype: torch.dtype
) -> PixelStandardisation:
    """Return the standardisation by these constants, on the device and in the dtype of results."""
    constants = (
        torch.tensor(np.reshape(c, np.shape(c) if np.ndim(c) == 3 else (-1, 1, 1)))
        for c in (mean, std)
    )
    return PixelStandardisation(*(c.to(device, dtype) for c in constants))


Normalise = Sequence[float] | Literal["pixels"]
"""A mean and a standard deviation for pixels / 255, or each pixel's own over the training set."""


def check_constants(normalise: Normalise | None) -> None:
    """Check a mean and a standard deviation of pixels; raise InvalidInputError unless they fit."""
    if normalise is None or isinstance(normalise, str):
        return
    if len(normalise) != 2 or normalise[1] <= 0:
        raise InvalidInputError(
            f"normalise: {normalise}; give a mean and a positive standard deviation"
        )


def load(
    dataset: str | Path, normalise: Normalise | None = None, samples: int | None = None
) -> Dataset:
    """Return a data set by name, or from a folder with train.parquet and test.parquet.

    The files have the columns `image` (or `img`), encoded images or (nested) lists of numbers,
    which are used unchanged, and `label` (or `fine_label`). A published data set is read from the
    folder of its name in $FEDTIDE_DATA if it exists, else from the Hugging Face hub. Its pixels,
    and those of any folder of the same name, are standardised by its constants in `KNOWN`; those of
    other data sets are scaled to [-1, 1].

    "digits" are scikit-learn's 1,797 handwritten digits, 8×8 pixels of 0..16, divided by 16. A
    fixed, stratified fifth of them is the test set.

    Args:
        dataset: "digits", a name in `KNOWN`, or a folder.
        normalise: a mean and a standard deviation for pixels / 255 instead of the default ones;
            (0, 1) leaves them in [0, 1], and "pixels" standardises each pixel by its own mean and
            standard deviation over the training samples (constant pixels become 0).
        samples: use only the first `samples` training samples; None: all.

    Raises:
        InvalidInputError: an unknown name, a folder without the files, or unreadable files.

    >>> digits = load("digits")
    >>> digits.train.features.shape, digits.test.features.shape, digits.classes
    ((1437, 1, 8, 8), (360, 1, 8, 8), 10)
    """
    data = _load_digits() if dataset == "digits" else _load_images(dataset)
    if samples is not None:
        data = replace(data, train=_take_first(data.train, samples))
    return data if normalise is None else _set_constants(data, normalise)


def _load_images(dataset: str | Path) -> Dataset:
    name, folder = Path(dataset).name, _find_folder(dataset)
    if folder is None:
        train, test = (_load_from_hub(name, split) for split in ("train", "test"))
    else:
        train, test = (_read_file(folder / f"{split}.parquet") for split in ("train", "test"))
    known = KNOWN.get(name)
    classes = known.classes if known else int(train.labels.max()) + 1
    labels = np.concatenate([train.labels, test.labels])
    if labels.min() < 0 or labels.max() >= min(classes, len(train.labels)):
        raise InvalidInputError(
            f"label: {labels.min()} to {labels.max()}, for {classes} classes of "
            f"{len(train.labels)} training samples; number the classes from 0, as train does"
        )
    return Dataset(train, test, classes, *((known.mean, known.std) if known else ()))


def _find_folder(dataset: str | Path) -> Path | None:
    """Return the folder with the files; None if the hub has them."""
    if dataset in KNOWN:
        folder = Path(os.environ.get("FEDTIDE_DATA", ""), dataset)
        local = "FEDTIDE_DATA" in os.environ and (folder / "train.parquet").exists()
        return folder if local else None
    if (named := expand_home(dataset)).is_dir():
        return named
    raise InvalidInputError(
        f"dataset: unknown {str(dataset)!r}; {did_you_mean(str(dataset), ['digits', *KNOWN])}, or "
        f"give a folder with train.parquet and test.parquet"
    )


def _read_file(file: Path) -> Rows:
    read_file("dataset", file)  # says so if it is no such file
    status = file.stat()
    return _read_version(file, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=8)
def _read_version(file: Path, size: int, time: int) -> Rows:
    """Read a file; its size and modification time identify its version in this function's cache."""
    return _to_rows(read_file("dataset", file), str(file), file)


@lru_cache(maxsize=4)
def _load_from_hub(name: str, split: str) -> Rows:
    hint = f"put {name}/train.parquet and {name}/test.parquet into the folder FEDTIDE_DATA"
    arrow = load_from_hub("dataset", KNOWN[name].hub, split, hint)
    return _to_rows(arrow, f"{name}, split {split}")


def _to_rows(arrow: pa.Table, source: str, file: Path | None = None) -> Rows:
    """Return the features and labels of a table, perhaps of a file."""
    table = Table.of_arrow(arrow, source, file)
    image, label = (
        next((name for name in names if name in table), names[0]) for names in (_IMAGE, _LABEL)
    )
    table.require_rows({"dataset": [image, label]})
    features, labels = table.column("dataset", image), table.column("dataset", label)
    if not isinstance(features, np.ndarray) or features.dtype == object:
        raise InvalidInputError(
            f"dataset: column {image!r} of {source} is no image; write PNG or JPEG bytes, or lists "
            "of numbers of one shape"
        )
    kind = arrow[image].type
    if not any(is_kind(kind) for is_kind in _ENCODED):  # lists of numbers, of whatever type
        features = features.astype(np.float32)
    require_finite("dataset", image, features)
    if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "iu":
        raise InvalidInputError(
            f"dataset: column {label!r} of {source} holds no whole numbers; number the classes"
        )
    labels = labels.astype(np.int64)
    return Rows(features, labels, PlainColumns(table, labels))


def _take_first(rows: Rows, samples: int) -> Rows:
    """Return the first `samples` rows."""
    if not 1 <= samples <= len(rows.labels):
        raise InvalidInputError(
            f"samples: {samples} of {len(rows.labels)} training samples; give at least 1"
        )
    columns = {name: column[:samples] for name, column in rows.columns.items()}
    return Rows(rows.features[:samples], rows.labels[:samples], MappingProxyType(columns))


def _set_constants(data: Dataset, normalise: Normalise) -> Dataset:
    """Return the data with other constants for the standardisation of pixels."""
    if not isinstance(normalise, str):
        return replace(data, mean=(normalise[0],), std=(normalise[1],))
    pixels = data.train.features / 255.0
    mean, std = pixels.mean(axis=0), pixels.std(axis=0)
    return replace(data, mean=mean, std=np.where(std > 0, std, 1.0))


@lru_cache(maxsize=1)
def _load_digits() -> Dataset:
    package = find_spec("sklearn")  # importing it takes a second
    assert package is not None
    assert package.origin is not None
    table = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    features = (table[:, :-1].reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    labels = table[:, -1].astype(np.int64)
    # train_test_split(range(1797), test_size=0.2, stratify=labels, random_state=0) of scikit-learn
    rows = np.array(Path(__file__).with_name("digits_split.txt").read_text().split(), np.int64)
    train, test = (
        Rows(features[part], labels[part], MappingProxyType({"label": labels[part]}))
        for part in np.split(rows, [1437])
    )
    return Dataset(train, test, classes=10)
