"""Rows of features and labels from Parquet files in the Hugging Face form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError
from fedtide.problems.datasets.image_decoding import Pixels, decoded, remembered

_IMAGE = ("image", "img")
_LABEL = ("label", "fine_label")  # as CIFAR-100's are called on the hub


@dataclass(frozen=True, eq=False)
class Rows:
    """The samples of a file, in its order.

    Args:
        features: uint8 pixels (n, C, H, W), or float32 numbers (n, …).
        labels: shape (n,).
        columns: every column but the image, by name, each of shape (n,).
    """

    features: NDArray[Any]
    labels: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]


def read_folder(folder: Path) -> tuple[Rows, Rows]:
    """Return the rows of train.parquet and of test.parquet.

    Raises:
        InvalidInputError: a file that is missing or broken, or columns that are.
    """
    train, test = (_read(folder / f"{split}.parquet") for split in ("train", "test"))
    return train, test


def _read(file: Path) -> Rows:
    if not file.is_file():
        raise InvalidInputError(
            f"dataset: there is no {file}; write it with the columns image and label"
        )
    status = file.stat()
    return _read_version(file, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=8)
def _read_version(file: Path, size: int, time: int) -> Rows:
    """Read a file; its size and time tell its versions apart in the cache of this function."""
    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise InvalidInputError(
            f"dataset: {file} is not readable as Parquet ({str(error).splitlines()[0]}); write it "
            f"anew with the columns image and label"
        ) from error
    return rows_of(table, str(file), lambda decode: remembered(file, decode))


def rows_of(
    table: pa.Table,
    where: str,
    remember: Callable[[Callable[[], Pixels]], Pixels] = lambda decode: decode(),
) -> Rows:
    """Return the rows of a table with an image (or features) and a label in each.

    Args:
        table: `image` (or `img`): encoded bytes, alone or in a struct as Hugging Face writes them,
            or a list of numbers, nested at will, that is taken as it is; `label` (or
            `fine_label`): integers.
        where: the name of the table, for complaints.
        remember: wraps the decoding of images, which is slow.

    Raises:
        InvalidInputError: no rows; a column that is missing or of another type; broken images; features
            that are not finite or not all of one shape.
    """
    image, label = (_column(table, names, where) for names in (_IMAGE, _LABEL))
    if table.num_rows == 0:
        raise InvalidInputError(f"dataset: {where} has no rows; at least one sample is needed")
    values = table[label].combine_chunks()
    if not pa.types.is_integer(values.type) or values.null_count:
        raise InvalidInputError(f"label: {where} holds {values.type}; give an integer in every row")
    labels = values.to_numpy().astype(np.int64)
    try:
        features = _features(table[image].combine_chunks(), remember)
    except InvalidInputError as error:
        raise InvalidInputError(f"{error} ({where})") from error
    others = [name for name in table.column_names if name not in (image, label)]
    columns = {name: table[name].to_numpy() for name in others}
    return Rows(features, labels, MappingProxyType({**columns, "label": labels}))


def _column(table: pa.Table, names: Sequence[str], where: str) -> str:
    for name in names:
        if name in table.column_names:
            return name
    raise InvalidInputError(
        f"dataset: {where} has no column {names[0]!r} but {table.column_names}; rename the one "
        f"that holds it"
    )


def _features(column: pa.Array, remember: Callable[[Callable[[], Pixels]], Pixels]) -> NDArray[Any]:
    if pa.types.is_struct(column.type):
        column = column.field("bytes")
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return remember(lambda: decoded(column.to_pylist()))
    return _numbers(column)


def _numbers(column: pa.Array) -> NDArray[np.float32]:
    """Return lists of numbers as one array, shape (n, …)."""
    try:
        features = np.array(column.to_pylist(), dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"image: {column.type} is neither an encoded image nor a list of numbers of one shape; "
            f"write PNG or JPEG bytes"
        ) from error
    wrong = np.flatnonzero(~np.isfinite(features.reshape(len(features), -1)).all(axis=1))
    if len(wrong):
        raise InvalidInputError(
            f"image: sample {wrong[0]} holds NaN or infinity; give finite numbers"
        )
    return features
