"""Columns of a table as arrays: numbers, text, images or sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from PIL import Image

from fedtide.errors import InvalidInputError
from fedtide.problems.datasets.image_decoding import decode_images

Ints = NDArray[np.int64]

_IMAGE_BYTES = "bytes"  # the file, in the struct in which Hugging Face stores an image


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences of different lengths: row n is `values[offsets[n]:offsets[n + 1]]`.

    Args:
        values: the elements of all sequences, one after another, shape (m, ...).
        offsets: the boundaries between sequences, shape (n + 1,).

    Raises:
        InvalidInputError: a sequence without elements.

    >>> padded, mask = Ragged(np.array([5, 6, 7]), np.array([0, 1, 3])).pad()
    >>> padded.tolist(), mask.tolist()
    ([[5, 0], [6, 7]], [[True, False], [True, True]])
    """

    values: NDArray[Any]
    offsets: Ints

    def __post_init__(self) -> None:
        if len(self) and not self.sizes.min():
            raise InvalidInputError(f"the list in row {self.sizes.argmin()} is empty; remove it")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Ints:
        """The length of each sequence, (n,)."""
        return np.diff(self.offsets)

    def pad(self, length: int | None = None) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return the sequences filled with zeros to one length, (n, L, ...), and their mask.

        Args:
            length: L; None: that of the longest.
        """
        longest = int(self.sizes.max()) if length is None else length
        mask = np.arange(longest) < self.sizes[:, None]
        padded = np.zeros((*mask.shape, *self.values.shape[1:]), self.values.dtype)
        padded[mask] = self.values
        return padded, mask


Column = NDArray[Any] | Ragged
"""One value per row, (n, ...): numbers, booleans, text (dtype object), uint8 images (n, C, H, W),
or sequences of different lengths."""


def to_column(value: Any) -> Column:
    """Return a column from an array, a tensor, a list, or a column of Arrow, Polars or pandas.

    Raises:
        InvalidInputError: missing values, or values of a type that no network can use.
        TypeError, ValueError, pyarrow.ArrowException: values that are not of one type.
    """
    if isinstance(value, torch.Tensor):
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy(force=True)
    elif isinstance(value, pl.Series):
        value = value.to_arrow()
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return from_arrow(value)
    if len(value) and isinstance(next(iter(value)), Image.Image):
        return decode_images(list(value))
    try:
        array = np.asarray(value)
    except ValueError:  # arrays of different lengths
        return _from_cells(value)
    return array if array.dtype.kind in "biuf" else _from_cells(value)


def _from_cells(values: Any) -> Column:
    """Return a column from text, or from lists or arrays in the cells of a table."""
    try:
        return from_arrow(pa.array(values, from_pandas=True))
    except (pa.ArrowException, TypeError, ValueError) as error:  # arrays of several dimensions
        if isinstance(error, InvalidInputError):
            raise
        arrays = [np.asarray(cell) for cell in values]
        if any(array.ndim == 0 or array.dtype.kind not in "biuf" for array in arrays):
            raise
        if len({array.shape for array in arrays}) == 1:
            return np.stack(arrays)
        offsets = np.concatenate([[0], np.cumsum([len(array) for array in arrays])])
        return Ragged(np.concatenate(arrays), offsets)


def from_arrow(
    values: pa.Array | pa.ChunkedArray, cache: Callable[[Any], Any] = lambda decode: decode()
) -> Column:
    """Return an Arrow column.

    Args:
        values: numbers, text, encoded images (bytes, or a struct with `bytes`), or (nested) lists.
        cache: wraps the decoding of images, which is slow.

    Raises:
        InvalidInputError: missing values, or another type.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    kind, types = values.type, pa.types
    if count := values.null_count:
        raise InvalidInputError(
            f"{count} of {len(values)} values {'is' if count == 1 else 'are'} missing (the first "
            f"in row {values.is_null().index(True)}); fill them in or remove the rows"
        )
    if types.is_dictionary(kind):
        return from_arrow(values.dictionary_decode(), cache)
    if types.is_struct(kind) and kind.get_field_index(_IMAGE_BYTES) >= 0:
        return from_arrow(values.field(_IMAGE_BYTES), cache)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return np.asarray(cache(lambda: decode_images(values.to_pylist())))
    if types.is_decimal(kind):
        values = values.cast(pa.float64())
    if types.is_primitive(values.type) and not types.is_temporal(kind):
        return np.array(values.to_numpy(zero_copy_only=False))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _from_lists(values)
    if types.is_temporal(kind):  # which may name clients
        values = values.cast(pa.string())
    if types.is_string(values.type) or types.is_large_string(kind) or kind == pa.string_view():
        return np.array(values.to_pylist(), dtype=object)
    raise InvalidInputError(
        f"its type {kind} is not numeric; give numbers, text, images, or lists of numbers"
    )


def _from_lists(values: pa.Array) -> Column:
    """Return lists as an array if they have the same length, otherwise as sequences."""
    sizes = pc.list_value_length(values).to_numpy().astype(np.int64)
    inner = from_arrow(values.flatten())
    if isinstance(inner, Ragged):
        raise InvalidInputError("its lists differ in length on two levels; pad the inner ones")
    longest = int(sizes.max(initial=0))
    if (sizes == longest).all() and inner.size:
        return inner.reshape(len(values), longest, *inner.shape[1:])
    return Ragged(inner, np.concatenate([[0], np.cumsum(sizes)]))


def to_array(column: Column, length: int | None) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Return a column, sequences padded to this length, and the mask of sequences."""
    return column.pad(length) if isinstance(column, Ragged) else (column, None)


def to_ragged(column: Column) -> Ragged:
    """Return sequences of one length, (n, L, ...), in the form for different lengths."""
    if isinstance(column, Ragged):
        return column
    rows, length = column.shape[:2]
    return Ragged(column.reshape(-1, *column.shape[2:]), np.arange(rows + 1) * length)


def require_finite(field: str, name: str | Sequence[str], values: NDArray[Any]) -> None:
    """Raise InvalidInputError if a column of floating-point numbers holds NaN or infinity."""
    finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
    wrong = np.flatnonzero(~finite)
    if len(wrong):
        raise InvalidInputError(
            f"{field}: column {name!r} holds NaN or infinity (first in row {wrong[0]}); fill such "
            "values in or remove the rows"
        )
