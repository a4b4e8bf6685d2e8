"""Columns of a table: numbers, text, images or sequences, from many sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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

from fedtide.errors import InvalidInputError, first_line, quantify
from fedtide.problems.datasets.image_decoding import decode_images

Ints = NDArray[np.int64]

_IMAGE_BYTES = "bytes"  # the file, in the struct in which Hugging Face stores an image


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences of different lengths: row n is `values[offsets[n]:offsets[n + 1]]`.

    Args:
        values: the elements of all sequences, one after another, shape (m, ...).
        offsets: the boundaries between sequences, shape (n + 1,).

    >>> padded, mask = Ragged(np.array([5, 6, 7]), np.array([0, 1, 3])).pad()
    >>> padded.tolist(), mask.tolist()
    ([[5, 0], [6, 7]], [[True, False], [True, True]])
    """

    values: NDArray[Any]
    offsets: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def pad(self, length: int | None = None) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return the sequences filled with zeros to one length, (n, L, ...), and their mask.

        Args:
            length: L; None: that of the longest.
        """
        sizes = np.diff(self.offsets)
        longest = int(sizes.max()) if length is None else length
        mask = np.arange(longest) < sizes[:, None]
        padded = np.zeros((*mask.shape, *self.values.shape[1:]), self.values.dtype)
        padded[mask] = self.values
        return padded, mask


Column = NDArray[Any] | Ragged
"""One value per row, (n, ...): numbers, booleans, text (dtype object), uint8 images (n, C, H, W),
or sequences of different lengths."""


def is_pandas(value: Any) -> bool:
    """Return whether a value is a pandas DataFrame, or one of a library that extends pandas."""
    classes = ((cls.__module__.partition(".")[0], cls.__name__) for cls in type(value).__mro__)
    return ("pandas", "DataFrame") in classes


def _join_columns(columns: Iterable[tuple[Any, Any]]) -> NDArray[Any]:
    """Return columns with one number per row side by side, (n, columns)."""
    parts = []
    for name, values in columns:
        try:
            part = to_column(values)
        except InvalidInputError as error:
            raise InvalidInputError(f"its column {name!r}: {error}") from None
        if isinstance(part, Ragged) or part.ndim > 1 or part.dtype == object:
            raise InvalidInputError(
                f"its column {name!r} does not hold one number per row; leave it out"
            )
        parts.append(part)
    if not parts:
        raise InvalidInputError("it is a table without columns")
    return np.stack(parts, axis=1)


def to_column(value: Any) -> Column:
    """Return a column from an array, a tensor, a list, a column or a table of numbers.

    Raises:
        InvalidInputError: missing values, or values of a type that no network can use.
    """
    if hasattr(value, "toarray") or getattr(value, "layout", torch.strided) is not torch.strided:
        dense = "to_dense" if isinstance(value, torch.Tensor) else "toarray"
        raise InvalidInputError(f"it is sparse; give a dense array, such as its .{dense}()")
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value.float() if value.dtype == torch.bfloat16 else value
        value = value.resolve_conj().resolve_neg().numpy()
    if isinstance(value, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(value)
        if mask.ndim and mask.any():
            missing = mask.reshape(len(mask), -1).any(1)
            raise _missing(int(missing.sum()), len(mask), int(missing.argmax()))
        value = value.data
    if is_pandas(value):
        return _join_columns(value.items())
    if isinstance(value, pl.DataFrame):
        return _join_columns(zip(value.columns, value.iter_columns(), strict=True))
    if isinstance(value, pl.Series):
        try:
            value = value.to_arrow()
        except (pa.ArrowException, pl.exceptions.PolarsError):  # 128 bits, or Python objects
            raise _no_numbers(value.dtype) from None
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return from_arrow(value)
    if isinstance(_first(value), Image.Image):
        return decode_images(list(value))
    if type(value).__module__.partition(".")[0] == "pandas":
        return _from_objects(value, from_pandas=True)
    if not isinstance(value, np.ndarray):
        value = _stack(value)
    if isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in "biuf":
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind == "S":
        with suppress(UnicodeDecodeError):  # otherwise not text
            value = np.char.decode(value, "utf-8")
    return _from_objects(value)


def _first(value: Any) -> Any:
    """Return the first element; None: there is none, or it could not be read again."""
    with suppress(TypeError):  # no dimensions
        return next(iter(value), None) if hasattr(value, "__len__") else None
    return None


def _stack(value: Any) -> Any:
    """Return a list as an array if its elements have one shape."""
    try:
        stacked = np.asarray(value)
    except ValueError:  # of different lengths
        return value
    return value if stacked.dtype.kind in "OSU" else stacked


def _from_objects(values: Any, from_pandas: bool = False) -> Column:
    """Return a column from text, or from lists or arrays in the cells of a table."""
    try:
        return from_arrow(pa.array(values, from_pandas=from_pandas))
    except InvalidInputError:
        raise
    except OverflowError:
        raise InvalidInputError(
            "its whole numbers need more than 64 bits; give text, or floating-point numbers"
        ) from None
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = first_line(error, 100)
    kinds: set[str] = set()
    try:  # PyArrow does not take arrays of several dimensions in cells
        kinds = {type(cell).__name__ for cell in values}
        arrays = [np.asarray(cell) for cell in values]
    except (TypeError, ValueError):
        arrays = []
    if (joined := _join_arrays(arrays)) is not None:
        return joined
    if len(kinds) > 1:
        raise InvalidInputError(
            f"its values are of different types ({', '.join(sorted(kinds))}); convert them to "
            "numbers or to text"
        )
    if (dimensions := getattr(values, "ndim", 1)) > 1:
        raise InvalidInputError(
            f"it is an array of {dimensions} dimensions and dtype {values.dtype}; give numbers, "
            "such as its .astype(float)"
        )
    raise InvalidInputError(
        f"it is not an array ({reason}); give numbers, text, images, or lists of numbers"
    )


def _join_arrays(arrays: Sequence[NDArray[Any]]) -> Column | None:
    """Return arrays of numbers, one per row, as a column; None: they are not arrays of numbers.

    Arrays of up to two dimensions that differ in length are sequences.
    """
    if not arrays or any(array.dtype.kind not in "biuf" for array in arrays):
        return None
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    if len({array.shape[1:] for array in arrays}) > 1 or not 1 <= arrays[0].ndim <= 2:
        return None
    sizes = [len(array) for array in arrays]
    if not min(sizes):
        raise _empty_list(sizes.index(0))
    return Ragged(np.concatenate(arrays), np.concatenate([[0], np.cumsum(sizes)]))


def _empty_list(row: int) -> InvalidInputError:
    """Return the error about a row whose sequence has no elements."""
    return InvalidInputError(f"the list in row {row} is empty; remove the row")


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
    if values.null_count:
        raise _missing(values.null_count, len(values), values.is_null().index(True).as_py())
    if pa.types.is_dictionary(kind):
        return from_arrow(values.dictionary_decode(), cache)
    if pa.types.is_struct(kind) and kind.get_field_index(_IMAGE_BYTES) >= 0:
        return from_arrow(values.field(_IMAGE_BYTES), cache)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return np.asarray(cache(lambda: decode_images(values.to_pylist())))
    if pa.types.is_decimal(kind):
        values, kind = values.cast(pa.float64()), pa.float64()
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.array(values.to_numpy(zero_copy_only=False))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view():
        return np.array(values.to_pylist(), dtype=object)
    if pa.types.is_fixed_size_list(kind):
        return _reshape(values.flatten(), len(values), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _from_lists(values)
    raise _no_numbers(kind)


def _missing(count: int, rows: int, first: int) -> InvalidInputError:
    """Return the error about a column that lacks values."""
    return InvalidInputError(
        f"{count} of {rows} values {'is' if count == 1 else 'are'} missing (the first in row "
        f"{first}); fill them in or remove the rows"
    )


def _no_numbers(kind: object) -> InvalidInputError:
    """Return the error about a column of this type."""
    return InvalidInputError(
        f"its type {kind} is not numeric; give numbers, text, images, or lists of numbers"
    )


def _reshape(values: pa.Array, rows: int, length: int) -> NDArray[Any]:
    """Return flattened lists of one length as an array (n, L, ...)."""
    inner = _from_elements(values)
    return inner.reshape(rows, length, *inner.shape[1:])


def _from_elements(values: pa.Array) -> NDArray[Any]:
    """Return flattened lists as an array."""
    inner = from_arrow(values)
    if isinstance(inner, Ragged):
        raise InvalidInputError("its lists differ in length on two levels; pad the inner ones")
    return inner


def _from_lists(values: pa.Array) -> Column:
    """Return lists as an array if they have the same length, otherwise as sequences."""
    sizes = pc.list_value_length(values).to_numpy().astype(np.int64)
    if len(sizes) and not sizes.min():
        raise _empty_list(int(sizes.argmin()))
    if len(sizes) == 0 or sizes.min() == sizes.max():
        return _reshape(values.flatten(), len(values), int(sizes.max(initial=0)))
    return Ragged(_from_elements(values.flatten()), np.concatenate([[0], np.cumsum(sizes)]))


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


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def require_finite(field: str, name: str, values: NDArray[Any]) -> None:
    """Raise InvalidInputError if a column of floating-point numbers holds NaN or infinity."""
    if values.dtype.kind != "f":
        return
    rows = values.reshape(len(values), -1)
    with np.errstate(over="ignore", invalid="ignore"):  # sums need less memory than masks
        suspects = np.flatnonzero(~np.isfinite(rows.sum(axis=1, dtype=np.float64)))
    wrong = suspects[~np.isfinite(rows[suspects]).all(axis=1)]
    if len(wrong):
        raise InvalidInputError(
            f"{field}: column {name!r} holds NaN or infinity (first in row {wrong[0]}); fill such "
            "values in or remove the rows"
        )
