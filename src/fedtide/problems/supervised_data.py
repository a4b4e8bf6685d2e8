"""The samples of a supervised problem: from named columns to tensors, and who holds which."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.errors import InvalidInputError
from fedtide.problems.datasets.catalogue import PixelStandardisation
from fedtide.problems.datasets.sources import Column, Ints, Ragged, Table
from fedtide.problems.losses import TargetKind
from fedtide.problems.partitions import Shards, StoredShards
from fedtide.randomness import generator

Inputs = str | Sequence[str] | Mapping[str, str | Sequence[str]]
"""Which columns the network gets: a name, several in order, or by the name of the argument."""

NO_LENGTHS: Mapping[str, int] = MappingProxyType({})
_logger = logging.getLogger("fedtide")

_LARGE = 100.0  # a standard deviation of a column, and a ratio of the reach of two
_BINS = 10  # of a numeric target, for partitions by class
_MOST_CLASSES = 1000  # that are allowed even if there are fewer training samples


@dataclass(frozen=True, eq=False)
class Samples:
    """n samples as arrays.

    Args:
        inputs: the arguments of the network, each (n, ...): uint8 pixels, int64, or floating point.
        target: (n, ...).
        mask: False where the sequences of a sample are padded, (n, L); None: no padding.
    """

    inputs: tuple[NDArray[Any], ...]
    target: NDArray[Any]
    mask: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.target)

    def select(self, rows: Ints) -> Samples:
        """Return these rows."""
        mask = None if self.mask is None else self.mask[rows]
        return Samples(tuple(array[rows] for array in self.inputs), self.target[rows], mask)


@dataclass(frozen=True, eq=False)
class DeviceSamples:
    """n samples as tensors on the device of a run.

    Args:
        inputs: the arguments of the network, each (n, ...).
        target: (n, ...).
        mask: False where the sequences of a sample are padded, (n, L); None: no padding.
    """

    inputs: tuple[Tensor, ...]
    target: Tensor
    mask: Tensor | None = None

    def __len__(self) -> int:
        return len(self.target)


def to_device(
    samples: Samples, device: torch.device, dtype: torch.dtype, pixels: PixelStandardisation
) -> DeviceSamples:
    """Return the samples as tensors: standardised pixels, integers, and numbers of the dtype."""

    def convert(array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array)).to(device)
        if array.dtype == np.uint8:
            return pixels.apply(tensor)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    mask = None if samples.mask is None else torch.from_numpy(samples.mask).to(device)
    return DeviceSamples(
        tuple(convert(array) for array in samples.inputs), convert(samples.target), mask
    )


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
    table: Table, inputs: Inputs, lengths: Mapping[str, int] = NO_LENGTHS
) -> tuple[tuple[NDArray[Any], ...], NDArray[np.bool_] | None]:
    """Return the network's arguments, each (n, ...), and the mask of padded sequences, if any.

    A name alone gives the column as it is stored. Among several names, the numeric columns with
    one number per row become one vector, in the place of the first of them.

    Args:
        table: the rows.
        inputs: which columns.
        lengths: to which the sequences of a column are padded, as `sequence_lengths` says.

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
    masks = [column.pad(length)[1] for column in columns if isinstance(column, Ragged)]
    if any(mask.shape != masks[0].shape or (mask != masks[0]).any() for mask in masks):
        raise InvalidInputError(
            "inputs: the sequences of a sample have different lengths; give them the same"
        )
    arrays = (c.pad(length)[0] if isinstance(c, Ragged) else c for c in columns)
    return tuple(arrays), masks[0] if masks else None


def warn_of_scales(table: Table, inputs: Inputs) -> None:
    """Warn if columns of numbers are so large, or so different, that no learning rate suits all."""
    entries = inputs.values() if isinstance(inputs, Mapping) else [inputs]
    vectors = {name for entry in entries if not isinstance(entry, str) for name in entry}
    columns = {name: table.column("inputs", name) for name in column_names(inputs)}
    numbers = {
        name: column
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
            "inputs: column %r has values up to %.3g and %r up to %.3g, for which no learning rate "
            "suits both; %s",
            large,
            reach[large],
            small,
            reach[small],
            remedy,
        )


def sequence_lengths(tables: Sequence[Table], inputs: Inputs) -> dict[str, int]:
    """Return the length of the longest sequence of each column that is padded, in all tables."""
    lengths = {}
    for name in column_names(inputs):
        columns = [table.column("inputs", name) for table in tables]
        if any(isinstance(column, Ragged) for column in columns):
            lengths[name] = max(int(np.diff(_to_ragged(c).offsets).max()) for c in columns)
    return lengths


def _to_ragged(column: Column) -> Ragged:
    """Return sequences of one length, (n, L, ...), as sequences of different lengths."""
    if isinstance(column, Ragged):
        return column
    rows, length = column.shape[:2]
    return Ragged(column.reshape(-1, *column.shape[2:]), np.arange(rows + 1) * length)


def _argument(table: Table, entry: str | Sequence[str], lengths: Mapping[str, int]) -> Column:
    if isinstance(entry, str):
        return _input_column(table, entry, lengths)
    arguments = _arguments(table, entry, lengths)
    if len(arguments) != 1:
        raise InvalidInputError(
            f"inputs: {list(entry)} are not one number each; only such columns form a vector"
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
        column = _to_ragged(column)
    values = column.values if isinstance(column, Ragged) else column
    if values.dtype == object:
        if not isinstance(column, Ragged):
            _refuse_stray_text("inputs", name, values)
        found = f", such as {str(values[0])!r:.40} in row 0" if len(values) else ""
        raise InvalidInputError(
            f"inputs: column {name!r} holds text{found}; turn it into numbers first: '3%' into "
            "0.03, categories into columns of 0 and 1, sentences into the ids of their tokens"
        )
    if values.dtype.kind == "u" and values.size and values.max() > np.iinfo(np.int64).max:
        raise InvalidInputError(
            f"inputs: column {name!r} holds {values.max()}, which is no signed 64-bit integer; "
            "convert the column to floats, or number its values from 0"
        )
    values = _normalise_dtype(values, keep_pixels=values.ndim >= 3)
    _require_finite("inputs", name, values)
    return replace(column, values=values) if isinstance(column, Ragged) else values


def _refuse_stray_text(field: str, name: str | Sequence[str], values: NDArray[Any]) -> None:
    """Raise InvalidInputError with the first text in a column that otherwise holds numbers."""
    stray = [row for row, value in enumerate(values) if not _is_number(value)]
    if 0 < len(stray) < len(values) / 2:
        raise InvalidInputError(
            f"{field}: column {name!r} holds numbers, but {len(stray):,} values that are none (the "
            f"first is {str(values[stray[0]])!r:.40} in row {stray[0]}); correct them or remove "
            "the rows"
        )


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _normalise_dtype(values: NDArray[Any], keep_pixels: bool = False) -> NDArray[Any]:
    """Return truth values and halves as float32, other numbers of a type that PyTorch has, integers
    as int64; uint8 pixels are kept."""
    if values.dtype.kind in "iu" and not (keep_pixels and values.dtype == np.uint8):
        return values.astype(np.int64)
    if values.dtype == np.bool_ or values.dtype == np.float16:
        return values.astype(np.float32)
    if values.dtype == np.longdouble:
        return values.astype(np.float64)
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _require_finite(field: str, name: str, values: NDArray[Any]) -> None:
    if values.dtype.kind != "f":
        return
    wrong = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
    if len(wrong):
        raise InvalidInputError(
            f"{field}: column {name!r} holds NaN or infinity (first in row {wrong[0]}); fill such "
            "values in or remove the rows"
        )


@dataclass(frozen=True, eq=False)
class Target:
    """The target of training and test samples.

    Args:
        parts: of the training and the test samples, (n, ...): int64 classes or tokens, or
            floating-point numbers.
        names: what the classes were called, if they were text.
        masks: False where the sequences of a target are padded, (n, L); None: it is no sequence,
            or all have one length.
    """

    parts: Sequence[NDArray[Any]]
    names: tuple[str, ...] | None = None
    masks: Sequence[NDArray[np.bool_] | None] = (None, None)

    @property
    def train(self) -> NDArray[Any]:
        """The target of the training samples."""
        return self.parts[0]


def read_target(
    tables: Sequence[Table],
    target: str | Sequence[str],
    kind: TargetKind | None,
    length: int | None = None,
) -> Target:
    """Return the target, text encoded as the position of each class in sorted order.

    Args:
        tables: of the training and the test samples.
        target: a column, or several numeric ones.
        kind: what the loss expects; None: as stored.
        length: to which sequences are padded at least; None: to that of the longest.

    Raises:
        InvalidInputError: a column that is missing or does not fit the loss, or classes in the
            test data that the training data lack.
    """
    columns = _pad_alike([_target_column(table, target) for table in tables], target)
    sizes = [int(np.diff(c.offsets).max()) for c in columns if isinstance(c, Ragged)]
    length = None if length is None else max(length, *sizes, 0)
    masks = [c.pad(length)[1] if isinstance(c, Ragged) else None for c in columns]
    parts = [c.pad(length)[0] if isinstance(c, Ragged) else c for c in columns]
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
        return Target(parts, masks=masks)
    names = sorted(set(parts[0]))
    _refuse_unknown(*parts)
    if kind == "numbers" and len(names) != 2:
        _refuse_stray_text("target", target, parts[0])
        raise InvalidInputError(
            f"target: column {target!r} holds text ({', '.join(names[:3])}); give numbers, or "
            "loss='cross_entropy' for classes"
        )
    codes = [np.searchsorted(np.array(names, dtype=object), part) for part in parts]
    dtype = np.float64 if kind == "numbers" else np.int64
    return Target([code.astype(dtype) for code in codes], tuple(names), masks)


def _pad_alike(columns: Sequence[Column], name: str | Sequence[str]) -> Sequence[Column]:
    """Return targets of training and test samples, all as sequences if those of one are padded."""
    if not any(isinstance(column, Ragged) for column in columns):
        return columns
    if any(isinstance(column, np.ndarray) and column.ndim == 1 for column in columns):
        raise InvalidInputError(
            f"target: column {name!r} holds lists in one of train and test, and single values in "
            "the other; give both the same"
        )
    return [_to_ragged(column) for column in columns]


def _refuse_unknown(train: NDArray[Any], *tests: NDArray[Any]) -> None:
    """Raise InvalidInputError if a class of the test data does not occur in training."""
    known = {*train.ravel().tolist()}
    unknown = sorted({label for part in tests for label in part.ravel().tolist()} - known)
    if unknown:
        raise InvalidInputError(
            f"target: the test data have {len(unknown)} classes that the training data lack "
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
        _require_finite("target", str(name), numbers)
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
        InvalidInputError: a loss of classes, and whole numbers so large that they are amounts.
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
    seen = len(found)
    if kind == "classes" and classes > max(_MOST_CLASSES, len(target.train)):
        raise InvalidInputError(
            f"target: its whole numbers go up to {classes - 1:,}, which would make {classes:,} "
            f"classes for {len(target.train):,} training samples; if they are amounts, give "
            "loss: mse; if they are codes of classes, number them from 0 without gaps, or give text"
        )
    if kind == "classes" and seen > 1 and (2 * seen < classes or found[0] > 0):
        _logger.warning(
            "target: only %d of the classes 0 to %d occur, and the network gets outputs for all; "
            "number them from 0 without gaps, or give text",
            seen,
            classes - 1,
        )
    return classes


def _may_be_classes(target: NDArray[Any]) -> bool:
    """Return whether whole numbers, (n,), can be classes: none is negative or a large amount."""
    most = max(_MOST_CLASSES, len(target))
    return bool(target.min(initial=0) >= 0 and target.max(initial=0) < most)


def partition_labels(target: NDArray[Any], kind: TargetKind | None, classes: int) -> Ints | None:
    """Return the label by which partitions group samples, (n,); None: they have none.

    It is the class, or for a number its tenth of the training data (by quantile); of whole numbers
    that are no classes, each is a label if there are up to ten.

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


def hold_out(
    samples: Samples, shards: Shards, share: float, seed: int
) -> tuple[Samples, Shards, Samples, Ints]:
    """Set aside a share of every client's samples as its test part, at random.

    A client with m samples keeps at least one for training and gives up round(share · m). No two
    clients may hold the same sample, as one would be tested on what the other trains on.

    Args:
        samples: all samples.
        shards: who holds which.
        share: within (0, 1).
        seed: of the draw.

    Raises:
        InvalidInputError: no client would give up a sample, or clients share samples.

    Returns:
        The training samples, who holds which, the test samples, and the owner of each, (n_test,).
    """
    sizes = shards.sizes
    owners, held = shards.list_pairs()
    if len(np.unique(held)) < len(held):
        raise InvalidInputError(
            "test: the partition gives samples to more than one client, so that a share of them "
            "would be tested on what others train on; give a table of test samples"
        )
    tested = np.minimum(np.rint(share * sizes).astype(np.int64), sizes - 1)
    if not tested.any():
        raise InvalidInputError(
            f"test: a share of {share:g} of clients with {sizes.max()} samples or fewer holds out "
            "no sample; give a larger share, or a test set"
        )
    order = np.lexsort((generator(seed, "held-out").random(len(owners)), owners))
    place = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen = np.zeros(len(owners), dtype=np.bool_)
    chosen[order] = place < tested[owners]  # `owners` is sorted, so it equals owners[order]
    return (
        samples.select(held[~chosen]),
        StoredShards.from_owners(owners[~chosen], len(sizes), shards.names),
        samples.select(held[chosen]),
        owners[chosen],
    )
