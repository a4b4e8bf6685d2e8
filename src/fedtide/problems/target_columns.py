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
    columns = _pad_alike([_target_column(table, target) for table in tables], target)
    sizes = [int(np.diff(c.offsets).max()) for c in columns if isinstance(c, Ragged)]
    length = None if length is None else max(length, *sizes, 0)
    padded = [to_array(column, length) for column in columns]
    parts, masks = [array for array, _ in padded], [mask for _, mask in padded]
    holds_text = [part.dtype == object for part in parts]
    if len(set(holds_text)) > 1:
        one, other = ("text", "numbers") if holds_text[0] else ("numbers", "text")
        raise InvalidInputError(
            f"target: column {target!r} holds {one} in train and {other} in test; give both the "
            "same"
        )
    if not holds_text[0]:
        parts = [_convert_target(part, kind, target) for part in parts]
        if kind == "classes":
            _refuse_unknown(*(p if m is None else p[m] for p, m in zip(parts, masks, strict=True)))
        return Target(parts, masks)
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


def _pad_alike(columns: Sequence[Column], name: str | Sequence[str]) -> Sequence[Column]:
    """Return the targets of training and test samples, all as sequences if any are padded."""
    if not any(isinstance(column, Ragged) for column in columns):
        return columns
    if any(isinstance(column, np.ndarray) and column.ndim == 1 for column in columns):
        raise InvalidInputError(
            f"target: column {name!r} holds lists in one of train and test, and single values in "
            "the other; give both the same"
        )
    return [to_ragged(column) for column in columns]


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
    if kind is None and target.train.ndim == 1 and not _may_be_classes(target.train):
        return 0
    found = np.unique(target.train)
    if kind == "classes" and len(found) == 1:
        _logger.warning(
            "target: all training samples are of one class (%s), so there is nothing to learn; "
            "name another column",
            target.names[0] if target.names else found[0],
        )
    if target.names:
        return len(target.names)
    classes = max(int(part.max(initial=0)) for part in target.parts) + 1
    if kind == "classes" and classes > max(_MOST_CLASSES, len(target.train)):
        raise InvalidInputError(
            f"target: its whole numbers go up to {classes - 1:,}, which would make {classes:,} "
            f"classes for {len(target.train):,} training samples; if they are amounts, give "
            "loss: mse; if they are codes of classes, number them from 0 without gaps, or give text"
        )
    if kind == "classes" and len(found) > 1 and (2 * len(found) < classes or found[0] > 0):
        _logger.warning(
            "target: only %d of the classes 0 to %d occur, and the network gets outputs for all; "
            "number them from 0 without gaps, or give text",
            len(found),
            classes - 1,
        )
    return classes


def _may_be_classes(target: NDArray[Any]) -> bool:
    """Return whether whole numbers, (n,), can be classes: none is negative or very large."""
    most = max(_MOST_CLASSES, len(target))
    return bool(target.min(initial=0) >= 0 and target.max(initial=0) < most)


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
