"""Features and labels from Parquet files in the format of Hugging Face."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedtide.content_hash import fingerprint
from fedtide.errors import InvalidInputError, first_line
from fedtide.problems.datasets.image_decoding import Pixels, decode_cached, decode_images
from fedtide.problems.datasets.table_columns import from_arrow

_IMAGE = ("image", "img")
_LABEL = ("label", "fine_label")  # of CIFAR-100 on the hub


Cache = Callable[[str, Callable[[], Pixels]], Pixels]


@dataclass(frozen=True, eq=False)
class Rows:
    """The samples of a file, in file order.

    Args:
        features: uint8 pixels (n, C, H, W), or float32 numbers (n, …).
        labels: shape (n,).
        columns: all columns except the image, by name, each of shape (n,).
    """

    features: NDArray[Any]
    labels: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the content; rows do not change once they are read."""
        return fingerprint({"features": self.features, **self.columns})


def read_folder(folder: Path) -> tuple[Rows, Rows]:
    """Return the rows of train.parquet and of test.parquet.

    Raises:
        InvalidInputError: a file or a column is missing or broken.
    """
    train, test = (_read_file(folder / f"{split}.parquet") for split in ("train", "test"))
    return train, test


def _read_file(file: Path) -> Rows:
    if not file.is_file():
        raise InvalidInputError(
            f"dataset: {file} does not exist; write it with the columns image and label"
        )
    status = file.stat()
    return _read_version(file, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=8)
def _read_version(file: Path, size: int, time: int) -> Rows:
    """Read a file; its size and modification time identify its version in this function's cache."""
    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise InvalidInputError(
            f"dataset: {file} is not readable as Parquet ({first_line(error)}); write it again "
            f"with the columns image and label"
        ) from error
    return read_table(table, str(file), partial(decode_cached, file))


def read_table(table: pa.Table, source: str, cache: Cache = lambda _, decode: decode()) -> Rows:
    """Return the features and labels of a table.

    Args:
        table: `image` (or `img`): encoded bytes, alone or in a struct as Hugging Face writes them,
            or (nested) lists of numbers, used unchanged; `label` (or `fine_label`): integers.
        source: the name of the table in error messages.
        cache: takes the name of a column and the decoding of its images, which is slow.

    Raises:
        InvalidInputError: there are no rows, a column is missing or has another type, images are
            broken, or features are not finite or differ in shape.
    """
    image, label = (_find_column(table, names, source) for names in (_IMAGE, _LABEL))
    if table.num_rows == 0:
        raise InvalidInputError(f"dataset: {source} has no rows; give at least one")
    values = table[label].combine_chunks()
    if not pa.types.is_integer(values.type) or values.null_count:
        raise InvalidInputError(f"label: {source} holds {values.type}; give an integer in each row")
    labels = values.to_numpy().astype(np.int64)
    try:
        features = _read_features(table[image].combine_chunks(), partial(cache, image))
    except InvalidInputError as error:
        raise InvalidInputError(f"{error} ({source})") from error
    others = [name for name in table.column_names if name not in (image, label)]
    columns = {name: table[name].to_numpy() for name in others}
    return Rows(features, labels, MappingProxyType({**columns, "label": labels}))


def _find_column(table: pa.Table, names: Sequence[str], source: str) -> str:
    for name in names:
        if name in table.column_names:
            return name
    raise InvalidInputError(
        f"dataset: {source} has no column {names[0]!r} but {table.column_names}; rename the column "
        f"that holds it"
    )


def _read_features(
    column: pa.Array, cache: Callable[[Callable[[], Pixels]], Pixels]
) -> NDArray[Any]:
    if pa.types.is_struct(column.type):
        column = column.field("bytes")
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return cache(lambda: decode_images(column.to_pylist()))
    numbers: object = None
    with suppress(InvalidInputError):
        numbers = from_arrow(column)
    if not isinstance(numbers, np.ndarray) or numbers.dtype == object:
        raise InvalidInputError(
            f"image: {column.type} is neither an encoded image nor a list of numbers of one shape; "
            f"write PNG or JPEG bytes"
        )
    features = numbers.astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(features.reshape(len(features), -1)).all(axis=1))
    if len(wrong):
        raise InvalidInputError(
            f"image: sample {wrong[0]} holds NaN or infinity; give finite numbers"
        )
    return features
