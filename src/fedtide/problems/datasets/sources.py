"""Tables from any source: arrays, data frames, data sets of other libraries, files, or names.

Everything that a user may give as data becomes a `Table` here, once; nothing else of fedtide knows
where samples come from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from torch.utils.data import DataLoader

from fedtide.errors import InvalidInputError, did_you_mean, first_line, quantify
from fedtide.import_paths import import_object, is_import_path
from fedtide.problems.datasets.files import (
    KINDS,
    embed_images,
    is_text,
    load_from_hub,
    read_file,
    require_distinct,
)
from fedtide.problems.datasets.image_decoding import decode_cached
from fedtide.problems.datasets.natural import NATURAL, load_natural
from fedtide.problems.datasets.table_columns import Column, Ints, from_arrow, is_pandas, to_column
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
            except (pa.ArrowException, pl.exceptions.PolarsError, TypeError, ValueError) as error:
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
        sizes = {
            name: len(self.column(field, name))
            for field, names in columns.items()
            for name in names
        }
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{name!r} has {size}" for name, size in sizes.items())
            raise InvalidInputError(
                f"{self._source}: the columns differ in length ({listed}); give one value per row"
            )
        if not any(sizes.values()):
            raise InvalidInputError(f"{self._source}: it has no rows; give at least one")


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
        InvalidInputError: anything else, a file that cannot be read, or two columns of one name.

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
    columns = _list_columns(field, source)
    if columns is None:
        columns = _collect_rows(field, source, order, names)
    require_distinct(field, "the table", [str(name) for name, _ in columns])
    return Table({str(name): partial(to_column, value) for name, value in columns}, field)


def _parse_ids(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return text as whole numbers if all of it is written as such."""
    whole = pc.all(pc.match_substring_regex(column, r"^(0|-?[1-9][0-9]{0,17})$")).as_py()
    return column.cast(pa.int64()) if whole else column


def _list_columns(field: str, source: Any) -> list[tuple[Any, Any]] | None:
    """Return the names and values of columns; None: the source holds one item per sample."""
    if isinstance(source, Mapping):
        _require_one_index(field, source)
        _refuse_parts(field, source.values())
        return list(source.items())
    if is_pandas(source):
        return list(source.items())
    if isinstance(source, pl.DataFrame):
        return list(source.to_dict().items())
    if isinstance(source, pa.Table | pa.RecordBatch):
        return list(zip(source.column_names, source.columns, strict=True))
    if not (hasattr(source, "__getitem__") and hasattr(source, "__len__")):
        loads = isinstance(source, DataLoader)
        hint = "its data set, loader.dataset" if loads else f"{KINDS}; list(...) reads an iterator"
        raise InvalidInputError(f"{field}: a {type(source).__name__} is not a table; give {hint}")
    return None


def _collect_rows(
    field: str, data: Any, order: Sequence[str], last: str | None
) -> list[tuple[Any, Any]]:
    """Return the columns of a map-style data set, each item of which is read once.

    Args:
        field: the field that an error names.
        data: the data set; items are mappings, or tuples of one part per column.
        order: the names of the parts of a tuple.
        last: the name of a last part, which may be missing; None: there is none.
    """
    if isinstance(data, list | tuple):
        _refuse_parts(field, data)
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
    return list(columns.items())


def _refuse_parts(field: str, parts: Collection[Any]) -> None:
    """Raise InvalidInputError if all parts of a source are data sets, by split or by client."""
    kinds = [hasattr(p, "column_names") or isinstance(p, torch.utils.data.Dataset) for p in parts]
    if kinds and all(kinds):
        raise InvalidInputError(
            f"{field}: it holds {len(kinds)} data sets; give one of them or, if each is that of a "
            "client, one table of all rows with a column of their clients"
        )


def _require_one_index(field: str, source: Mapping[Any, Any]) -> None:
    """Raise InvalidInputError if columns of pandas name their rows differently."""
    indexes = [value.index for value in source.values() if hasattr(value, "reset_index")]
    if any(len(one) == len(indexes[0]) and not one.equals(indexes[0]) for one in indexes):
        raise InvalidInputError(
            f"{field}: its columns of pandas have different indexes, but rows are paired by "
            "position; join them by index into one DataFrame, or give .to_numpy() of each if "
            "their rows are in the same order"
        )


def _load_named(field: str, name: str) -> Any:
    """Return the source that a text names.

    Args:
        field: the field that an error names.
        name: a natural data set, NAME or NAME:SPLIT with NAME in `NATURAL`; hub:OWNER/NAME or
            hub:OWNER/NAME:SPLIT on the Hugging Face hub; the path of a .parquet, .csv or .tsv file,
            the latter two also with .gz; or, if there is no such file, the import path of a
            function without arguments that returns any source. The split is "train" by default.

    Raises:
        InvalidInputError: an unknown name, or no connection.
    """
    head, _, split = name.partition(":")
    if head in NATURAL:
        return load_natural(field, head, split or "train")
    if head == "hub":
        data, _, split = split.partition(":")
        return load_from_hub(field, data, split or "train", "give a file")
    if is_import_path(name) and not Path(name).exists():
        return Session.current().once(("loaded", name), import_object(name, field))
    return Path(name)


def _is_stored(data: Any) -> bool:
    """Return whether the items of a Hugging Face data set are what it stores, not transformed."""
    return bool(getattr(data, "format", {}).get("type", "custom") != "custom")
