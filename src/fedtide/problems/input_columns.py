"""The inputs of a supervised problem: which columns of a table the network gets, and how."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError, quantify
from fedtide.problems.datasets.sources import Table
from fedtide.problems.datasets.table_columns import (
    Column,
    Ragged,
    refuse_stray_text,
    require_finite,
    to_array,
    to_ragged,
)

Inputs = str | Sequence[str] | Mapping[str, str | Sequence[str]]
"""Which columns the network gets: one name, several in order, or a mapping by argument name."""

_logger = logging.getLogger("fedtide")

_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")

_LARGE = 100.0  # above it, warn: a standard deviation, or a ratio of two columns' largest values
_MOST_ROWS = 10_000  # the number of rows from which scales are computed


def column_names(inputs: Inputs) -> list[str]:
    """Return all columns that `inputs` names.

    Raises:
        InvalidInputError: an argument of a mapping that is neither a name nor a list of names.
    """
    if isinstance(inputs, str):
        return [inputs]
    entries: list[Any] = list(inputs.values() if isinstance(inputs, Mapping) else inputs)
    for entry in entries:
        names = entry if isinstance(entry, list | tuple) else [entry]
        if not all(isinstance(name, str) for name in names):
            raise InvalidInputError(f"inputs: {entry!r:.60} is neither a column nor a list of them")
    return [name for e in entries for name in ([e] if isinstance(e, str) else e)]


def argument_names(inputs: Inputs, arguments: int) -> tuple[str | None, ...]:
    """Return the keyword of each of the network's arguments; None: it is passed by position."""
    return tuple(inputs) if isinstance(inputs, Mapping) else (None,) * arguments


def read_inputs(
    table: Table, inputs: Inputs, lengths: Mapping[str, int]
) -> tuple[tuple[NDArray[Any], ...], NDArray[np.bool_] | None]:
    """Return the network's arguments, each (n, ...), and the mask of padded sequences, if any.

    A name alone gives the column as it is stored. Among several names, the numeric columns with
    one number per row become one vector, in the place of the first of them.

    Args:
        table: the rows.
        inputs: which columns.
        lengths: the length to which each column's sequences are padded, from `sequence_lengths`.

    Raises:
        InvalidInputError: a column that is missing or holds text, numbers that are not finite, or
            sequences of one sample that differ in length.
    """
    if isinstance(inputs, str):
        columns: list[Column] = [_input_column(table, inputs, lengths)]
    elif isinstance(inputs, Mapping):
        columns = [_argument(table, entry, lengths) for entry in inputs.values()]
    else:
        columns = _arguments(table, inputs, lengths)
    if not columns:
        raise InvalidInputError("inputs: no columns; name at least one")
    length = max(lengths.values(), default=None)
    padded = [to_array(column, length) for column in columns]
    masks = [mask for _, mask in padded if mask is not None]
    if any(mask.shape != masks[0].shape or (mask != masks[0]).any() for mask in masks):
        raise InvalidInputError(
            "inputs: the sequences of a sample have different lengths; give them the same"
        )
    return tuple(array for array, _ in padded), masks[0] if masks else None


def warn_of_scales(table: Table, inputs: Inputs) -> None:
    """Warn if columns of numbers are so large, or so different, that no learning rate suits all."""
    entries = inputs.values() if isinstance(inputs, Mapping) else [inputs]
    vectors = {name for entry in entries if not isinstance(entry, str) for name in entry}
    columns = {name: table.column("inputs", name) for name in column_names(inputs)}
    numbers = {
        name: column[:: len(column) // _MOST_ROWS + 1]
        for name, column in columns.items()
        if isinstance(column, np.ndarray) and column.dtype.kind in "iuf" and column.size
        if (column.ndim == 1 and name in vectors) or (column.ndim == 2 and column.dtype.kind == "f")
    }
    if not numbers:
        return
    remedy = "standardise the columns (subtract the mean, divide by the standard deviation)"
    spread = {name: float(column.std(axis=0).max()) for name, column in numbers.items()}
    widest = max(spread, key=lambda name: spread[name])
    if spread[widest] > _LARGE:
        _logger.warning(
            "inputs: column %r has a standard deviation of %.3g, with which training diverges at "
            "usual learning rates; %s",
            widest,
            spread[widest],
            remedy,
        )
        return
    reach = {name: float(np.abs(c).max()) for name, c in numbers.items() if c.ndim == 1 and c.any()}
    if reach and max(reach.values()) > _LARGE * min(reach.values()):
        large, small = (pick(reach, key=lambda name: reach[name]) for pick in (max, min))
        _logger.warning(
            "inputs: column %r has values up to %.3g and %r up to %.3g, so that no learning rate "
            "suits both; %s",
            large,
            reach[large],
            small,
            reach[small],
            remedy,
        )


def warn_of_padding(tables: Sequence[Table], inputs: Inputs) -> None:
    """Warn of vectors that are padded like sequences, because one of them has another length.

    Args:
        tables: of the training and the test samples.
        inputs: of a network that takes vectors of one length.
    """
    for field, table in zip(("train", "test"), tables, strict=False):
        for name in column_names(inputs):
            column = table.column("inputs", name)
            if not isinstance(column, Ragged) or column.values.ndim > 1:
                continue
            if column.values.dtype.kind != "f":  # tokens
                continue
            sizes = np.diff(column.offsets)
            usual = int(np.bincount(sizes).argmax())
            others = np.flatnonzero(sizes != usual)
            if not len(others):
                continue
            _logger.warning(
                "inputs: column %r of %s: row %d has %s, %s %d; all are padded with zeros to one "
                "length, and forward takes no mask; correct the row, or let forward take mask",
                name,
                field,
                others[0],
                quantify(int(sizes[others[0]]), "number"),
                "the others" if len(others) == 1 else "most others",
                usual,
            )


def sequence_lengths(tables: Sequence[Table], inputs: Inputs) -> dict[str, int]:
    """Return the length of the longest sequence of each column that is padded, in all tables."""
    lengths = {}
    for name in column_names(inputs):
        columns = [table.column("inputs", name) for table in tables]
        if any(isinstance(column, Ragged) for column in columns):
            lengths[name] = max(int(np.diff(to_ragged(c).offsets).max()) for c in columns)
    return lengths


def _argument(table: Table, entry: str | Sequence[str], lengths: Mapping[str, int]) -> Column:
    if isinstance(entry, str):
        return _input_column(table, entry, lengths)
    arguments = _arguments(table, entry, lengths)
    if len(arguments) != 1:
        raise InvalidInputError(
            f"inputs: {list(entry)} do not hold one number per row; only such columns form a vector"
        )
    return arguments[0]


def _arguments(table: Table, names: Sequence[str], lengths: Mapping[str, int]) -> list[Column]:
    columns = {name: _input_column(table, name, lengths) for name in names}
    scalars = [name for name, c in columns.items() if not isinstance(c, Ragged) and c.ndim == 1]
    arguments: list[Column] = []
    for name, column in columns.items():
        if name not in scalars:
            arguments.append(column)
        elif name == scalars[0]:
            arguments.append(
                np.stack([np.asarray(columns[s], dtype=np.float64) for s in scalars], axis=1)
            )
    return arguments


def _input_column(table: Table, name: str, lengths: Mapping[str, int]) -> Column:
    column = table.column("inputs", name)
    if name in lengths:
        column = to_ragged(column)
    values = column.values if isinstance(column, Ragged) else column
    if values.dtype == object:
        if not isinstance(column, Ragged):
            refuse_stray_text("inputs", name, values)
        first = str(values[0]) if len(values) else ""
        found = f", such as {first!r:.40} in row 0" if len(values) else ""
        hint = (
            "turn it into numbers first: '3%' into 0.03, categories into columns of 0 and 1, "
            "sentences into the ids of their tokens"
        )
        if first.lower().endswith(_IMAGE_SUFFIXES):
            hint = (
                "let the library datasets read the images: "
                f"datasets.Dataset.from_pandas(table).cast_column({name!r}, datasets.Image())"
            )
        raise InvalidInputError(f"inputs: column {name!r} holds text{found}; {hint}")
    if values.dtype.kind == "u" and values.size and values.max() > np.iinfo(np.int64).max:
        raise InvalidInputError(
            f"inputs: column {name!r} holds {values.max()}, which is not a signed 64-bit integer; "
            "convert the column to floats, or number its values from 0"
        )
    values = _normalise_dtype(values)
    require_finite("inputs", name, values)
    return replace(column, values=values) if isinstance(column, Ragged) else values


def _normalise_dtype(values: NDArray[Any]) -> NDArray[Any]:
    """Return booleans and float16 as float32, integers as int64, and other numbers in a type that
    PyTorch has; uint8 pixels are kept."""
    if values.dtype.kind in "iu" and not (values.ndim >= 3 and values.dtype == np.uint8):
        return values.astype(np.int64)
    if values.dtype == np.bool_ or values.dtype == np.float16:
        return values.astype(np.float32)
    if values.dtype == np.longdouble:
        return values.astype(np.float64)
    return values.astype(values.dtype.newbyteorder("="), copy=False)
