"""The target of a supervised problem: classes, tokens or numbers from columns of a table."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError
from fedtide.problems.datasets.sources import Table
from fedtide.problems.datasets.table_columns import (
    Column,
    Ints,
    Ragged,
    refuse_stray_text,
    require_finite,
    to_array,
    to_ragged,
)
from fedtide.problems.losses import TargetKind

_logger = logging.getLogger("fedtide")

_BINS = 10  # quantile bins of a numeric target, for partitions by class
_MOST_CLASSES = 1000  # as many are allowed even if there are fewer training samples


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
    if len(kinds := list(dict.fromkeys(map(_describe, columns)))) > 1:
        raise InvalidInputError(
            f"target: column {target!r} holds {kinds[0]} in train and {kinds[1]} in test; give "
            "both the same"
        )
    if any(isinstance(column, Ragged) for column in columns):
        columns = [to_ragged(column) for column in columns]
    sizes = [int(column.sizes.max()) for column in columns if isinstance(column, Ragged)]
    length = None if length is None else max(length, *sizes, 0)
    padded = [to_array(column, length) for column in columns]
    parts, masks = [array for array, _ in padded], [mask for _, mask in padded]
    if parts[0].dtype == object:
        return _encode_text(parts, masks, kind, target)
    parts = [_convert_target(part, kind, target) for part in parts]
    if kind == "classes":
        _refuse_unknown(*(p if m is None else p[m] for p, m in zip(parts, masks, strict=True)))
    return Target(parts, masks)


def _describe(column: Column) -> str:
    """Return what a column holds, in words."""
    values = column.values if isinstance(column, Ragged) else column
    what = "text" if values.dtype == object else "numbers"
    return f"lists of {what}" if isinstance(column, Ragged) or values.ndim > 1 else what


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
        refuse_stray_text("target", target, parts[0])
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
    if isinstance(target, str):
        column = table.column("target", target)
        values = column.values if isinstance(column, Ragged) else column
        if values.dtype == object and (isinstance(column, Ragged) or values.ndim > 1):
            raise InvalidInputError(
                f"target: column {target!r} holds lists of text; number the classes from 0"
            )
        return column
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
        require_finite("target", str(name), numbers)
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


def warn_of_classes(target: Target, classes: int) -> None:
    """Warn if the training samples lack most classes, as where they are numbered from 1.

    Args:
        target: of a loss that expects classes.
        classes: C.
    """
    found = np.unique(target.train)
    if len(found) == 1:
        _logger.warning(
            "target: all training samples are of one class (%s), so there is nothing to learn; "
            "name another column",
            target.names[0] if target.names else found[0],
        )
    elif 2 * len(found) < classes or found[0] > 0:
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
