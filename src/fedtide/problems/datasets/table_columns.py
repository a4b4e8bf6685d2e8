"""Columns of a table as arrays: numbers, text, images or sequences."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from PIL import Image

from fedtide.errors import InvalidInputError, quantify
from fedtide.problems.datasets.image_decoding import decode_images

Ints = NDArray[np.int64]

_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
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

    @classmethod
    def of_arrays(cls, arrays: Sequence[NDArray[Any]]) -> Ragged:
        """Return arrays, one per row, as sequences of their elements."""
        offsets = np.concatenate([[0], np.cumsum([len(array) for array in arrays])])
        return cls(np.concatenate(arrays), offsets)

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


def is_pandas(value: Any) -> bool:
    """Return whether a value is a DataFrame of pandas; nothing is imported for it."""
    return "pandas" in sys.modules and isinstance(value, sys.modules["pandas"].DataFrame)


def to_column(value: Any) -> Column:
    """Return a column from an array, a tensor, a list, or a column of Arrow, Polars or pandas.

    A table of numbers, as of pandas, is a column of vectors.

    Raises:
        InvalidInputError: missing values, or values of a type that no network can use.
        TypeError, ValueError, pyarrow.ArrowException: values that are not of one type.
    """
    if isinstance(value, torch.Tensor):
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy(force=True)
    elif isinstance(value, pl.DataFrame) or is_pandas(value):
        value = value.to_numpy()
    elif isinstance(value, pl.Series):
        value = value.to_arrow()
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return from_arrow(value)
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidInputError("it is a masked array; fill missing values in, or leave them out")
    if len(value) and isinstance(next(iter(value)), Image.Image):
        return decode_images(list(value))
    is_series = type(value).__module__.partition(".")[0] == "pandas"  # where NaN means missing
    array = value if is_series or isinstance(value, np.ndarray) else _stack(value)
    if isinstance(array, np.ndarray) and array.dtype.kind in "biuf":
        return array
    return _from_objects(value, is_series)


def _stack(values: Any) -> NDArray[Any] | None:
    """Return numbers, or arrays of one shape, as an array; None: they are something else."""
    try:
        return np.asarray(values)
    except ValueError:  # of different lengths
        return None


def _from_objects(values: Any, from_pandas: bool) -> Column:
    """Return a column from text, or from lists or arrays in the cells of a table."""
    try:
        return from_arrow(pa.array(values, from_pandas=from_pandas))
    except InvalidInputError:
        raise
    except (pa.ArrowException, TypeError, ValueError):  # of arrays of several dimensions, too
        arrays = [np.asarray(cell) for cell in values]
        shapes = {array.shape for array in arrays}
        if any(array.ndim == 0 or array.dtype.kind not in "biuf" for array in arrays):
            raise
        if len(shapes) == 1:
            return np.stack(arrays)
        if len({shape[1:] for shape in shapes}) > 1 or arrays[0].ndim > 2:
            raise
    return Ragged.of_arrays(arrays)


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
    kind = values.type
    if count := values.null_count:
        raise InvalidInputError(
            f"{count} of {len(values)} values {'is' if count == 1 else 'are'} missing (the first "
            f"in row {values.is_null().index(True)}); fill them in or remove the rows"
        )
    if pa.types.is_dictionary(kind):
        return from_arrow(values.dictionary_decode(), cache)
    if pa.types.is_struct(kind) and kind.get_field_index(_IMAGE_BYTES) >= 0:
        return from_arrow(values.field(_IMAGE_BYTES), cache)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return np.asarray(cache(lambda: decode_images(values.to_pylist())))
    if pa.types.is_decimal(kind):
        return from_arrow(values.cast(pa.float64()))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.array(values.to_numpy(zero_copy_only=False))
    if pa.types.is_temporal(kind):  # which may name clients
        return from_arrow(values.cast(pa.string()))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view():
        return np.array(values.to_pylist(), dtype=object)
    if any(is_list(kind) for is_list in _LISTS):
        return _from_lists(values)
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


def refuse_stray_text(field: str, name: str | Sequence[str], values: NDArray[Any]) -> None:
    """Raise InvalidInputError with the first text in a column that otherwise holds numbers."""
    stray = [row for row, value in enumerate(values) if not _is_number(value)]
    if 0 < len(stray) < len(values) / 2:
        raise InvalidInputError(
            f"{field}: column {name!r} holds numbers, and {quantify(len(stray), 'other value')} "
            f"(the first is {str(values[stray[0]])!r:.40} in row {stray[0]}); correct them or "
            "remove the rows"
        )


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        float(text)
        return True
    return False


def require_finite(field: str, name: str, values: NDArray[Any]) -> None:
    """Raise InvalidInputError if a column of floating-point numbers holds NaN or infinity."""
    finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
    wrong = np.flatnonzero(~finite)
    if len(wrong):
        raise InvalidInputError(
            f"{field}: column {name!r} holds NaN or infinity (first in row {wrong[0]}); fill such "
            "values in or remove the rows"
        )
