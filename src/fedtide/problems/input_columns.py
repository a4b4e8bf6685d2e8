"""The inputs of a supervised problem: which columns of a table the network gets, and how."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError
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

_UNEVEN = 100.0  # above it, warn: a standard deviation, or a ratio of two columns' deviations
_MOST_ROWS = 10_000  # the number of rows from which deviations are computed


def column_names(inputs: Inputs) -> list[str]:
    """Return all columns that `inputs` names.

    Raises:
        InvalidInputError: a column is named twice, or by something other than text.
    """
    if isinstance(inputs, str):
        return [inputs]
    names: list[str] = []
    for entry in inputs.values() if isinstance(inputs, Mapping) else inputs:
        own: Sequence[Any] = entry if isinstance(entry, list | tuple) else [entry]
        if not all(isinstance(name, str) for name in own):
            raise InvalidInputError(f"inputs: {entry!r:.60} is neither a column nor a list of them")
        names += own
    if len(set(names)) < len(names):
        raise InvalidInputError(f"inputs: {names} names a column twice; name each once")
    return names


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
    columns = _arguments(table, inputs, lengths)
    if not columns:
        raise InvalidInputError("inputs: no columns; name at least one")
    length = max(lengths.values(), default=None)
    padded = [to_array(column, length) for column in columns]
    masks = [mask for _, mask in padded if mask is not None]
    if any((mask != masks[0]).any() for mask in masks):
        raise InvalidInputError(
            "inputs: the sequences of a sample have different lengths; give them the same"
        )
    return tuple(array for array, _ in padded), masks[0] if masks else None


def _arguments(table: Table, inputs: Inputs, lengths: Mapping[str, int]) -> list[Column]:
    """Return the network's arguments before padding."""
    if isinstance(inputs, str):
        return [_input_column(table, inputs, lengths)]
    if isinstance(inputs, Mapping):
        named = [(entry, _arguments(table, entry, lengths)) for entry in inputs.values()]
        for entry, found in named:
            if len(found) != 1:
                raise InvalidInputError(
                    f"inputs: {entry} do not hold one number per row; only such columns form a "
                    "vector"
                )
        return [found[0] for _, found in named]
    columns = {name: _input_column(table, name, lengths) for name in inputs}
    scalars = [n for n, c in columns.items() if not isinstance(c, Ragged) and c.ndim == 1]
    if scalars:
        vector = [np.asarray(columns[name], dtype=np.float64) for name in scalars]
        columns[scalars[0]] = np.stack(vector, axis=1)
    return [column for name, column in columns.items() if name not in scalars[1:]]


def sequence_lengths(tables: Sequence[Table], inputs: Inputs) -> dict[str, int]:
    """Return the length of the longest sequence of each column that is padded, in all tables."""
    lengths = {}
    for name in column_names(inputs):
        columns = [table.column("inputs", name) for table in tables]
        if any(isinstance(column, Ragged) for column in columns):
            lengths[name] = max(int(to_ragged(column).sizes.max()) for column in columns)
    return lengths


def warn_of_scales(table: Table, inputs: Inputs) -> None:
    """Warn if columns of numbers vary so much, or so differently, that no learning rate suits."""
    entries = inputs.values() if isinstance(inputs, Mapping) else [inputs]
    vectors = {name for entry in entries if not isinstance(entry, str) for name in entry}
    deviations = {}
    for name in column_names(inputs):
        column = table.column("inputs", name)
        if isinstance(column, Ragged) or column.dtype.kind not in "iuf" or not column.size:
            continue
        if name in vectors if column.ndim == 1 else column.ndim == 2 and column.dtype.kind == "f":
            sample = column[:: len(column) // _MOST_ROWS + 1]
            deviations[name] = float(sample.std(axis=0).max())
    deviations = {name: value for name, value in deviations.items() if value}
    by_size = sorted(deviations, key=lambda name: deviations[name])
    if by_size and deviations[by_size[-1]] > _UNEVEN * min(1, deviations[by_size[0]]):
        _logger.warning(
            "inputs: the standard deviation of column %r is %.3g and that of %r %.3g, with which "
            "training diverges or stalls at usual learning rates; standardise the columns "
            "(subtract the mean, divide by the standard deviation)",
            *(by_size[-1], deviations[by_size[-1]]),
            *(by_size[0], deviations[by_size[0]]),
        )


def _input_column(table: Table, name: str, lengths: Mapping[str, int]) -> Column:
    column = table.column("inputs", name)
    if name in lengths:
        column = to_ragged(column)
    values = column.values if isinstance(column, Ragged) else column
    if values.dtype == object:
        if not isinstance(column, Ragged):
            refuse_stray_text("inputs", name, values)
        raise InvalidInputError(
            f"inputs: column {name!r} holds text, such as {str(values[0])!r:.40} in row 0; turn it "
            "into numbers first: '3%' into 0.03, categories into columns of 0 and 1, sentences "
            "into the ids of their tokens, and paths into images, as with datasets.Image()"
        )
    values = _normalise_dtype(values)
    require_finite("inputs", name, values)
    return replace(column, values=values) if isinstance(column, Ragged) else values


def _normalise_dtype(values: NDArray[Any]) -> NDArray[Any]:
    """Return booleans and float16 as float32, and integers as int64; uint8 pixels are kept."""
    if values.dtype.kind in "iu" and not (values.ndim >= 3 and values.dtype == np.uint8):
        return values.astype(np.int64)
    if values.dtype == np.bool_ or values.dtype == np.float16:
        return values.astype(np.float32)
    return values.astype(values.dtype.newbyteorder("="), copy=False)
