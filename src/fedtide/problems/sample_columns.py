"""The columns of a supervised problem: what the network gets, and what it should return."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError
from fedtide.problems.datasets.sources import Table
from fedtide.problems.datasets.table_columns import (
    Column,
    Ints,
    Ragged,
    require_finite,
    to_array,
    to_ragged,
)
from fedtide.problems.losses import TargetKind

Inputs = str | Sequence[str] | Mapping[str, str | Sequence[str]]
"""Which columns the network gets: one name, several in order, or a mapping by argument name."""

_logger = logging.getLogger("fedtide")

_BINS = 10  # quantile bins of a numeric target, for partitions by class
_MOST_CLASSES = 1000  # as many are allowed even if there are fewer training samples


def column_names(inputs: Inputs) -> list[str]:
    """Return all columns that `inputs` names.

    Raises:
        InvalidInputError: a column is named twice, or by something other than text.
    """
    if isinstance(inputs, str):
        return [inputs]
    names: list[Any] = []
    for entry in inputs.values() if isinstance(inputs, Mapping) else inputs:
        names += entry if isinstance(entry, list | tuple) else [entry]
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise InvalidInputError(f"inputs: {names!r:.60} are no columns or name one twice")
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
    length = max(lengths.values(), default=None)
    padded = [to_array(column, length) for column in _arguments(table, inputs, lengths)]
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
        return [_arguments(table, entry, lengths)[0] for entry in inputs.values()]
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


def _input_column(table: Table, name: str, lengths: Mapping[str, int]) -> Column:
    column = table.column("inputs", name)
    if name in lengths:
        column = to_ragged(column)
    values = column.values if isinstance(column, Ragged) else column
    if values.dtype == object:
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


@dataclass(frozen=True, eq=False)
class Target:
    """The target of training and test samples.

    Args:
        parts: of the training and the test samples, (n, ...): int64 classes or tokens, or
            floating-point numbers.
        masks: False where the sequences of a target are padded, (n, L); None: it is not a sequence,
            or all have the same length.
        names: the names of the classes, if they were text.
    """

    parts: Sequence[NDArray[Any]]
    masks: Sequence[NDArray[np.bool_] | None]
    names: tuple[str, ...] | None = None

    @property
    def train(self) -> NDArray[Any]:
        """The target of the training samples."""
        return self.parts[0]


def read_target(
    tables: Sequence[Table],
    target: str | Sequence[str],
    kind: TargetKind | None,
    length: int | None,
) -> Target:
    """Return the target, text encoded as the position of each class in sorted order.

    Args:
        tables: of the training and the test samples.
        target: a column, or several numeric ones.
        kind: what the loss expects; None: as stored.
        length: to which sequences are at least padded; None: that of the longest.

    Raises:
        InvalidInputError: a column that is missing or does not fit the loss, or classes in the
            test data that the training data lack.
    """
    columns: Sequence[Column] = [_target_column(table, target) for table in tables]
    if any(isinstance(column, Ragged) for column in columns):
        columns = [to_ragged(column) for column in columns]
    sizes = [int(column.sizes.max()) for column in columns if isinstance(column, Ragged)]
    length = None if length is None else max(length, *sizes, 0)
    padded = [to_array(column, length) for column in columns]
    parts, masks = [array for array, _ in padded], [mask for _, mask in padded]
    if len({(part.ndim, part.dtype == object) for part in parts}) > 1:
        raise InvalidInputError(
            f"target: column {target!r} holds one number, text or list per row in train and "
            "another kind of value in test; give both the same"
        )
    if parts[0].dtype == object:
        return _encode_text(parts, masks, kind, target)
    parts = [_convert_target(part, kind, target) for part in parts]
    if kind == "classes":
        _refuse_unknown(*(p if m is None else p[m] for p, m in zip(parts, masks, strict=True)))
    return Target(parts, masks)


def _encode_text(
    parts: Sequence[NDArray[Any]],
    masks: Sequence[NDArray[np.bool_] | None],
    kind: TargetKind | None,
    target: str | Sequence[str],
) -> Target:
    """Return a target of text: the position of each class in sorted order."""
    names = sorted(set(parts[0]))
    _refuse_unknown(*parts)
    if kind == "numbers" and len(names) != 2:
        raise InvalidInputError(
            f"target: column {target!r} holds text ({', '.join(names[:3])}); give numbers, or "
            "loss='cross_entropy' for classes"
        )
    codes = [np.searchsorted(np.array(names, dtype=object), part) for part in parts]
    dtype = np.float64 if kind == "numbers" else np.int64
    return Target([code.astype(dtype) for code in codes], masks, tuple(names))


def _refuse_unknown(train: NDArray[Any], *tests: NDArray[Any]) -> None:
    """Raise InvalidInputError if a class of the test data does not occur in training."""
    known = {*train.ravel().tolist()}
    unknown = sorted({label for part in tests for label in part.ravel().tolist()} - known)
    if unknown:
        raise InvalidInputError(
            f"target: the training data lack {len(unknown)} of the classes of the test data "
            f"({', '.join(map(str, unknown[:5]))}); remove their rows, or add samples to train"
        )


def _target_column(table: Table, target: str | Sequence[str]) -> Column:
    """Return the target as it is stored, several columns as one of vectors."""
    if isinstance(target, str):
        return table.column("target", target)
    columns = [table.column("target", name) for name in target]
    for name, column in zip(target, columns, strict=True):
        if isinstance(column, Ragged) or column.dtype == object or column.ndim > 1:
            raise InvalidInputError(
                f"target: column {name!r} does not hold one number per row; several targets must"
            )
    return np.stack([np.asarray(column) for column in columns], axis=1)


def _convert_target(
    values: NDArray[Any], kind: TargetKind | None, name: str | Sequence[str]
) -> NDArray[Any]:
    if values.dtype == np.uint8 and values.ndim >= 3 and kind != "classes":
        return values  # pixels, standardised like those of inputs
    if kind == "numbers" or (kind is None and values.dtype.kind == "f"):
        numbers = values.astype(np.float64)
        require_finite("target", name, numbers)
        return numbers
    if values.dtype.kind == "f":
        raise InvalidInputError(
            f"target: column {name!r} holds numbers of type {values.dtype}; for classes give text "
            "or whole numbers from 0, for numbers a loss such as 'mse'"
        )
    classes = values.astype(np.int64)
    if kind == "classes" and classes.min(initial=0) < 0:
        raise InvalidInputError(
            f"target: {classes.min()} is not a class; number the classes from 0"
        )
    return classes


def count_classes(target: Target, kind: TargetKind | None) -> int:
    """Return the number of classes or tokens; 0 if the target is numeric.

    Args:
        target: of training and test samples.
        kind: what the loss expects; None: as stored.

    Raises:
        InvalidInputError: the loss expects classes, but whole numbers are too large to be classes.
    """
    if kind == "numbers" or target.train.dtype.kind != "i":
        return 0
    classes = max(int(part.max(initial=0)) for part in target.parts) + 1
    least, largest = target.train.min(initial=0), target.train.max(initial=0)
    most = max(_MOST_CLASSES, len(target.train))
    if kind is None and target.train.ndim == 1 and not 0 <= least <= largest < most:
        return 0  # whole numbers that are not classes
    if kind != "classes":
        return len(target.names) if target.names else classes
    if target.names is None and classes > most:
        raise InvalidInputError(
            f"target: its whole numbers go up to {classes - 1:,}, which would make {classes:,} "
            f"classes for {len(target.train):,} training samples; if they are amounts, give "
            "loss: mse; if they are codes of classes, number them from 0 without gaps, or give text"
        )
    return classes


def warn_of_gaps(target: NDArray[Any], classes: int) -> None:
    """Warn if training samples lack most of the C classes, as where these are numbered from 1."""
    found = np.unique(target)
    if 2 * len(found) < classes or found[0] > 0:
        _logger.warning(
            "target: only %d of the classes 0 to %d occur, and the network gets outputs for all; "
            "number them from 0 without gaps, or give text",
            len(found),
            classes - 1,
        )


def partition_labels(target: NDArray[Any], kind: TargetKind | None, classes: int) -> Ints | None:
    """Return the label by which partitions group samples, (n,); None: they have none.

    It is the class, or for a number its decile in the training data; up to ten different whole
    numbers that are not classes are labels themselves.

    Args:
        target: of the training samples, (n, ...).
        kind: what the loss expects; None: as stored.
        classes: how many there are, see `count_classes`; 0: the target is numeric.

    >>> partition_labels(np.arange(20) / 7, "numbers", classes=0).tolist()
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9]
    """
    if target.ndim != 1 or kind == "tokens":
        return None
    if target.dtype.kind == "i":
        if classes:
            return target
        values, places = np.unique(target, return_inverse=True)
        if len(values) <= _BINS:
            return places.astype(np.int64)
    edges = np.quantile(target, np.arange(1, _BINS) / _BINS)
    bins = np.searchsorted(edges, target, side="right")
    return np.unique(bins, return_inverse=True)[1].astype(np.int64)
