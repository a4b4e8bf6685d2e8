"""Tables from any source: arrays, data frames, data sets of other libraries, files, or names.

Everything that a user may give as data becomes a `Table` here, once; nothing else of fedtide knows
where samples come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError, did_you_mean, first_line, quantify
from fedtide.import_paths import import_object, is_import_path
from fedtide.problems.datasets.files import KINDS, embed_images, is_text, load_from_hub, read_file
from fedtide.problems.datasets.image_decoding import decode_cached
from fedtide.problems.datasets.natural import NATURAL, load_natural
from fedtide.problems.datasets.table_columns import Column, Ints, from_arrow, to_column
from fedtide.spec import Session
from fedtide.validation import expand_home


class Table:
    """Named columns of one length, each converted when it is first asked for.

    Args:
        read: for each column, a function that returns it.
        source: the name of the table in error messages.
    """

    def __init__(self, read: Mapping[str, Callable[[], Column]], source: str) -> None:
        self._read, self._columns, self._source = dict(read), dict[str, Column](), source

    @classmethod
    def of_arrow(cls, table: pa.Table, source: str, file: Path | None = None) -> Table:
        """Return an Arrow table; images are decoded only once if they are in a file."""
        columns = {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            cache = () if file is None else (partial(decode_cached, file, name),)
            columns[name] = partial(from_arrow, column, *cache)
        return cls(columns, source)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self._read)

    def __contains__(self, name: str) -> bool:
        return name in self._read

    def column(self, field: str, name: str) -> Column:
        """Return a column.

        Args:
            field: the field that an error names.
            name: of the column.

        Raises:
            InvalidInputError: the column does not exist, lacks values, or holds something other
                than numbers, text, images or lists of numbers.
        """
        if name not in self._read:
            hint = did_you_mean(name, self.names)
            raise InvalidInputError(f"{field}: {self._source} has no column {name!r}; {hint}")
        if name not in self._columns:
            what = f"{field}: column {name!r} of {self._source}"
            try:
                self._columns[name] = self._read[name]()
            except InvalidInputError as error:
                raise InvalidInputError(f"{what}: {error}") from None
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise InvalidInputError(
                    f"{what}: {first_line(error)}; give one value per row, all of one type: "
                    "numbers, text, images, or lists of numbers"
                ) from None
        return self._columns[name]

    def require_rows(self, columns: Mapping[str, Iterable[str]]) -> None:
        """Check that columns exist and have the same number of rows, at least one.

        Args:
            columns: the names of the columns that are used, by the field that names them.

        Raises:
            InvalidInputError: a column does not exist, columns differ in length, or have no rows.
        """
        pairs = [(field, name) for field, names in columns.items() for name in names]
        sizes = {name: len(self.column(field, name)) for field, name in pairs}
        if len(set(sizes.values())) > 1 or not any(sizes.values()):
            listed = ", ".join(f"{name!r} has {size}" for name, size in sizes.items())
            raise InvalidInputError(
                f"{self._source}: the columns have no rows or differ in length ({listed}); give "
                "one value per row"
            )


@dataclass(frozen=True, eq=False)
class PlainColumns(Mapping[str, NDArray[Any]]):
    """The columns of a table with one value per row, by which a partition may divide its rows.

    Args:
        table: the table, which converts a column when it is asked for.
        labels: the column `label` of a table that has none, (n,); None: there is none.
    """

    table: Table
    labels: Ints | None = None

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name == "label" and name not in self.table and self.labels is not None:
            return self.labels
        column = self.table.column("column", name) if name in self.table else None
        if not isinstance(column, np.ndarray) or column.ndim > 1:
            raise KeyError(name)
        return column

    def __iter__(self) -> Iterator[str]:
        for name in dict.fromkeys([*self.table.names, "label"]):
            with suppress(InvalidInputError):  # neither numbers nor text, or with missing values
                if name in self:
                    yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)


def read_source(field: str, source: Any, order: Sequence[str], names: str | None = None) -> Table:
    """Return the table that `source` holds.

    Args:
        field: the field that an error names.
        source: a mapping of arrays or tensors, a Polars, pandas or PyArrow table, a Hugging Face
            `Dataset`, a map-style PyTorch `Dataset` or a list of samples, a path, or text, see
            `_load_named`.
        order: the names of the elements if rows are tuples, as in a PyTorch data set.
        names: the column that names clients, if there is one: in tuples it comes last and may be
            missing, and in text files it is read as it is written ("007" is not 7).

    Raises:
        InvalidInputError: anything else, or a file that cannot be read.

    >>> table = read_source("train", {"x": [[1.0], [2.0]], "y": ["a", "b"]}, order=())
    >>> table.column("inputs", "x").shape
    (2, 1)
    """
    if isinstance(source, str):
        return read_source(field, _load_named(field, source), order, names)
    if isinstance(source, Path):
        path = expand_home(source)
        table = read_file(field, path, () if names is None else (names,))
        if names in table.column_names and is_text(path):
            place = table.column_names.index(names)
            table = table.set_column(place, names, _parse_ids(table.column(place)))
        return Table.of_arrow(table, str(path), path)
    if type(source).__module__.startswith("datasets.") and _is_stored(source):
        source = embed_images(field, source)
    if isinstance(source, pl.DataFrame):
        source = source.to_arrow()
    if isinstance(source, pa.Table | pa.RecordBatch):
        source = dict(zip(source.column_names, source.columns, strict=True))
    columns = source if hasattr(source, "items") else _collect_rows(field, source, order, names)
    return Table({str(name): partial(to_column, value) for name, value in columns.items()}, field)


def _parse_ids(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return text as whole numbers if all of it is written as such."""
    whole = pc.all(pc.match_substring_regex(column, r"^(0|-?[1-9][0-9]{0,17})$")).as_py()
    return column.cast(pa.int64()) if whole else column


def _collect_rows(
    field: str, data: Any, order: Sequence[str], last: str | None
) -> dict[str, list[Any]]:
    """Return the columns of a map-style data set, each item of which is read once.

    Args:
        field: the field that an error names.
        data: the data set; items are mappings, or tuples of one part per column.
        order: the names of the parts of a tuple.
        last: the name of a last part, which may be missing; None: there is none.
    """
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise InvalidInputError(
            f"{field}: a {type(data).__name__} is not a table; give {KINDS}; list(...) reads an "
            "iterator"
        )
    columns: dict[str, list[Any]] = {}
    names = [*order, *([] if last is None else [last])]
    for row in range(len(data)):
        item = data[row]
        if not isinstance(item, Mapping):
            parts = item if isinstance(item, tuple | list) else (item,)
            if not len(order) <= len(parts) <= len(names):
                raise InvalidInputError(
                    f"{field}: item {row} has {quantify(len(parts), 'part')} for the columns "
                    f"{', '.join(names)}; give one for each, or columns by name, as {{'x': ...}}"
                )
            item = dict(zip(names, parts, strict=False))
        for name, value in item.items():
            is_tensor = isinstance(value, torch.Tensor)
            columns.setdefault(name, []).append(value.numpy(force=True) if is_tensor else value)
    return columns


def _load_named(field: str, name: str) -> Any:
    """Return the source that a text names.

    Args:
        field: the field that an error names.
        name: a natural data set in `NATURAL`; hub:OWNER/NAME or hub:OWNER/NAME:SPLIT on the Hugging
            Face hub ("train" by default); the path of a .parquet, .csv or .tsv file, the latter two
            also with .gz; or, if there is no such file, the import path of a function without
            arguments that returns any source.

    Raises:
        InvalidInputError: an unknown name, or no connection.
    """
    if name in NATURAL:
        return load_natural(field, name)
    if name.startswith("hub:"):
        data, _, split = name.removeprefix("hub:").partition(":")
        return load_from_hub(field, data, split or "train", "give a file")
    if is_import_path(name) and not Path(name).exists():
        return Session.current().once(("loaded", name), import_object(name, field))
    return Path(name)


def _is_stored(data: Any) -> bool:
    """Return whether the items of a Hugging Face data set are what it stores, not transformed."""
    return bool(getattr(data, "format", {}).get("type", "custom") != "custom")
