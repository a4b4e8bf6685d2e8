"""Tables from many sources: arrays, data frames, data sets of other libraries, and files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import torch

from fedtide.content_hash import fingerprint, once
from fedtide.errors import InvalidInputError, did_you_mean, first_line
from fedtide.import_paths import import_object, is_import_path
from fedtide.problems.datasets.hub import load_from_hub, to_arrow
from fedtide.problems.datasets.image_decoding import decode_cached
from fedtide.problems.datasets.natural import NATURAL, load_natural
from fedtide.problems.datasets.table_columns import Column, from_arrow, is_pandas, to_column
from fedtide.text_files import DAMAGE, has_rows, read_header, split_suffix, unreadable
from fedtide.validation import expand_home

_SUFFIXES = (".parquet", ".csv", ".tsv", ".csv.gz", ".tsv.gz")
_READ_TWICE = 8  # items: a random transform of probability 1/2 is found in 255 of 256 cases
_KINDS = (
    "a mapping of arrays, a pandas, Polars or PyArrow table, a Hugging Face or PyTorch data set, "
    "the path of a Parquet, CSV or TSV file, the import path of a function that returns one of "
    "these, hub:OWNER/NAME, or femnist, shakespeare or stackoverflow"
)


class Table:
    """Named columns of one length, each converted when it is first asked for.

    Args:
        read: for each column, a function that returns it.
        source: the name of the table in error messages.
        index: the names of a pandas table's index levels, which are not columns.
    """

    def __init__(
        self, read: Mapping[str, Callable[[], Column]], source: str, index: Sequence[str] = ()
    ) -> None:
        self._read, self._columns, self._source = dict(read), dict[str, Column](), source
        self._index = index

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
            if name in self._index:
                hint = f"it is the index; give table.reset_index({name!r})"
            raise InvalidInputError(f"{field}: {self._source} has no column {name!r}; {hint}")
        if name not in self._columns:
            try:
                self._columns[name] = self._read[name]()
            except InvalidInputError as error:
                raise InvalidInputError(
                    f"{field}: column {name!r} of {self._source}: {error}"
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


def read_source(field: str, source: Any, order: Sequence[str], names: str | None = None) -> Table:
    """Return the table that `source` holds.

    Args:
        field: the field that an error names.
        source: a mapping of arrays or tensors, a structured array of NumPy, a Polars, pandas or
            PyArrow table (or one of a library that exports to Arrow), a Hugging Face `Dataset`, a
            map-style PyTorch `Dataset`, a path, or text, see `_load_named`.
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
        return _read_file(field, source, names)
    if isinstance(source, Mapping):
        _refuse_several(field, source, [*order, *([] if names is None else [names])])
        _require_one_index(field, source)
        return _table(source.items(), field)
    library = type(source).__module__.partition(".")[0]
    if library == "datasets" and getattr(source, "format", {}).get("type", "custom") != "custom":
        source = to_arrow(field, source)  # a user's transform would only apply to its items
    if isinstance(source, pl.LazyFrame):
        source = source.collect()
    if isinstance(source, pl.DataFrame):
        return _table(zip(source.columns, source.iter_columns(), strict=True), field)
    if library == "pyarrow" and hasattr(source, "to_table"):  # a data set of several files
        source = source.to_table()
    if isinstance(source, np.ndarray) and source.dtype.names is not None:
        return _table(((name, source[name]) for name in source.dtype.names), field)
    if is_pandas(source):
        index = [str(level) for level in source.index.names if level is not None]
        return _table(source.items(), field, index)
    if hasattr(source, "__arrow_c_stream__") and hasattr(source, "columns"):
        source = pa.table(source)  # PyArrow, DuckDB, ...
        return _table(zip(source.column_names, source.columns, strict=True), field)
    if library != "pandas" and hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        _refuse_random_items(field, source)
        columns = [*order, *([] if names is None else [names])]
        return _table(_collect_rows(field, source, columns, len(order)).items(), field)
    raise InvalidInputError(
        f"{field}: a {type(source).__name__} is not a table; give {_instead_of(source)}"
    )


def _instead_of(source: Any) -> str:
    """Return what to give instead of something that is not a table."""
    if isinstance(source, torch.utils.data.DataLoader):
        return "its data set, loader.dataset, as fedtide draws the minibatches"
    if type(source).__module__.partition(".")[0] == "pandas":
        return "a DataFrame"
    if hasattr(source, "read_all"):  # a stream of Arrow
        return "its .read_all()"
    if isinstance(source, Iterable):
        return "list(...) of it, which holds all samples in memory"
    return _KINDS


def split_files(folder: Path) -> list[Path]:
    """Return the files of a folder that hold training and, if there are any, test samples.

    Raises:
        InvalidInputError: the folder has no training samples.
    """
    found = [
        next((file for suffix in _SUFFIXES if (file := folder / f"{name}{suffix}").is_file()), None)
        for name in ("train", "test")
    ]
    if found[0] is None:
        raise InvalidInputError(
            f"train: the folder {str(folder)!r} has no train.parquet or train.csv; write one"
        )
    return [file for file in found if file is not None]


def _load_named(field: str, name: str) -> Any:
    """Return the source that a text names.

    Args:
        field: the field that an error names.
        name: a natural data set, NAME or NAME:SPLIT with NAME in `NATURAL`; hub:OWNER/NAME or
            hub:OWNER/NAME:SPLIT on the Hugging Face hub; the path of a .parquet, .csv or .tsv file,
            the latter two also with .gz; or, if there is no such file, the import path of a
            function without arguments that returns any source. The split is "train" by default.

    Raises:
        InvalidInputError: a function that fails, or no connection.
    """
    head, _, split = name.partition(":")
    if head in NATURAL:
        return load_natural(field, head, split or "train")
    if head == "hub":
        data, _, split = split.partition(":")
        return load_from_hub(field, data, split or "train", "give a file")
    return _call(field, name) if is_import_path(name) and not Path(name).exists() else Path(name)


def _call(field: str, path: str) -> Any:
    """Return what the function at an import path returns."""
    function = import_object(path, field)
    try:
        return once(("loaded", path), function)
    except InvalidInputError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise InvalidInputError(
            f"{field}: {path} fails without arguments ({first_line(error, with_type=True)}); it "
            f"must return {_KINDS}"
        ) from error


def _table(columns: Iterable[tuple[Any, Any]], source: str, index: Sequence[str] = ()) -> Table:
    named = [(str(name), value) for name, value in columns]
    _require_distinct(source, "the table", [name for name, _ in named])
    return Table({name: partial(to_column, value) for name, value in named}, source, index)


def _require_distinct(field: str, what: str, names: Sequence[str]) -> None:
    """Raise InvalidInputError if columns have the same name."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InvalidInputError(
            f"{field}: {what} has two columns called {twice[0]!r}; rename or remove one of them"
        )


def _is_table(value: Any) -> bool:
    """Return whether a value is a data set itself, not a column of one."""
    kinds = (pl.DataFrame, pl.LazyFrame, torch.utils.data.Dataset)
    return isinstance(value, kinds) or hasattr(value, "column_names") or is_pandas(value)


def _refuse_several(field: str, source: Mapping[Any, Any], names: Sequence[str]) -> None:
    """Raise InvalidInputError if this is a mapping of data sets, by split or by client.

    Args:
        field: the field that an error names.
        source: the mapping.
        names: of the columns that are used, any of which may be a table of numbers.
    """
    tables = [str(name) for name, value in source.items() if _is_table(value)]
    if not tables or len(tables) < len(source) or any(name in source for name in names):
        return
    listed = ", ".join(tables[:3]) + (", ..." if len(tables) > 3 else "")
    raise InvalidInputError(
        f"{field}: it holds several data sets ({listed}); give one, such as data[{tables[0]!r}], "
        "or, if each is that of a client, one table of all rows with a column of their clients"
    )


def _require_one_index(field: str, source: Mapping[Any, Any]) -> None:
    """Raise InvalidInputError if columns of pandas name their rows differently."""
    indexes: dict[Any, Any] = {
        name: getattr(value, "index", None) for name, value in source.items()
    }
    named = [(name, index) for name, index in indexes.items() if hasattr(index, "equals")]
    for (one, first), (other, index) in pairwise(named):
        if len(index) == len(first) and not index.equals(first):
            raise InvalidInputError(
                f"{field}: {one!r} and {other!r} have different indexes, but rows are paired by "
                "position; join them by index into one DataFrame, or give .to_numpy() of each if "
                "their rows are in the same order"
            )


def _read_file(field: str, path: Path, names: str | None) -> Table:
    path = expand_home(path)
    if path.is_dir():
        raise InvalidInputError(f"{field}: {str(path)!r} is a folder; give the file in it")
    if not path.is_file():
        where = "" if path.is_absolute() else f" in the working directory {str(Path.cwd())!r}"
        raise InvalidInputError(f"{field}: no file {str(path)!r}{where}; give {_KINDS}")
    if not path.name.lower().endswith(_SUFFIXES):
        raise InvalidInputError(
            f"{field}: {str(path)!r} is neither a .parquet nor a .csv or .tsv file; give {_KINDS}"
        )
    status = path.stat()
    table = _read_arrow(field, path, names, status.st_size, status.st_mtime_ns)
    columns = {
        name: partial(from_arrow, column, partial(decode_cached, path, name))
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    return Table(columns, str(path))


@lru_cache(maxsize=8)
def _read_arrow(field: str, path: Path, names: str | None, size: int, time: int) -> pa.Table:
    """Read a file; its size and modification time identify its version in this function's cache."""
    try:
        if split_suffix(path)[0] == ".parquet":
            with pq.ParquetFile(path) as file:
                table = file.read()
        else:
            table = _read_text(path, names)
    except DAMAGE as error:
        raise unreadable(field, path, error) from None
    _require_distinct(field, repr(str(path)), table.column_names)
    if not len(table):
        raise InvalidInputError(f"{field}: {str(path)!r} has no rows; give at least one")
    return table


def _read_text(path: Path, names: str | None) -> pa.Table:
    """Read delimited text; empty fields are missing, and among numbers also fields such as "NA".

    Raises:
        ValueError: a column that is not UTF-8, among other errors of `DAMAGE`.
    """
    header = read_header(path)
    if not has_rows(path, header):
        return pa.table([pa.nulls(0)] * len(header.names), names=header.names)
    with pa.input_stream(str(path), compression="gzip" if split_suffix(path)[1] else None) as file:
        table = pyarrow.csv.read_csv(
            file,
            pyarrow.csv.ReadOptions(column_names=header.names, skip_rows=header.lines),
            pyarrow.csv.ParseOptions(delimiter=header.separator),
            pyarrow.csv.ConvertOptions(
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=[""],
                column_types={} if names is None else {names: pa.string()},
            ),
        )
    for place, (name, column) in enumerate(zip(header.names, table.columns, strict=True)):
        if pa.types.is_binary(column.type):
            raise ValueError(f"column {name!r} is not UTF-8")
        if name == names:
            table = table.set_column(place, name, _parse_ids(column))
        elif pa.types.is_string(column.type):
            table = table.set_column(place, name, _parse_numbers(column, header.separator != ","))
    return table


def _parse_ids(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return text as whole numbers if all of it is written as such."""
    whole = pc.all(pc.match_substring_regex(column, r"^(0|-?[1-9][0-9]{0,17})$")).as_py()
    return column.cast(pa.int64()) if whole else column


def _parse_numbers(column: pa.ChunkedArray, decimal_comma: bool) -> pa.ChunkedArray:
    """Return text as numbers if every value is a number or says that it is missing.

    Args:
        column: text.
        decimal_comma: whether numbers may have a comma instead of a point.
    """
    missing = pa.array(pyarrow.csv.ConvertOptions().null_values)  # such as "" and "NA"
    text = pc.if_else(pc.is_in(column, missing), pa.scalar(None, pa.string()), column)
    if decimal_comma:
        text = pc.replace_substring(text, ",", ".")
    try:
        return column if text.null_count == len(text) else text.cast(pa.float64())
    except pa.ArrowInvalid:
        return column


def _refuse_random_items(field: str, data: Any) -> None:
    """Raise InvalidInputError if items of a map-style data set differ when they are read again."""
    size = 0 if isinstance(data, list | tuple) else len(data)
    rows = range(0, size, -(-size // _READ_TWICE) or 1)  # spread out: one class may be augmented
    try:
        different = next((n for n in rows if fingerprint(data[n]) != fingerprint(data[n])), None)
    except InvalidInputError:  # holds values without a fingerprint, which cannot be columns either
        return
    if different is not None:
        raise InvalidInputError(
            f"{field}: item {different} differs when it is read again, as with random "
            "transforms, but fedtide reads every item once; leave them out (`augment` of "
            "Classification crops and flips images in every step), or give list(...) of it, one "
            "draw of each"
        )


def _collect_rows(field: str, data: Any, order: Sequence[str], least: int) -> dict[str, list[Any]]:
    """Return the columns of a map-style data set whose items are mappings or tuples.

    Args:
        field: the field that an error names.
        data: the data set.
        order: the names of the parts of a tuple.
        least: the smallest number of parts that a tuple may have.
    """
    items: Iterator[Any] = (data[row] for row in range(len(data)))
    columns: dict[str, list[Any]] = {}
    for row, item in enumerate(items):
        if not isinstance(item, Mapping):
            parts = item if isinstance(item, tuple | list) else (item,)
            if not least <= len(parts) <= len(order):
                if row == 0:
                    _refuse_parts(field, data, order)
                raise InvalidInputError(
                    f"{field}: item {row} has {len(parts)} parts for the columns "
                    f"{', '.join(order)}; name as many inputs and targets as it has parts"
                )
            item = dict(zip(order, parts, strict=False))
        for name, value in item.items():
            columns.setdefault(str(name), []).append(
                value.numpy(force=True) if isinstance(value, torch.Tensor) else value
            )
    return columns


def _refuse_parts(field: str, data: Any, order: Sequence[str]) -> None:
    """Raise InvalidInputError if this is a list of columns or data sets instead of samples.

    Args:
        field: the field that an error names.
        data: a map-style data set whose first item does not fit the columns.
        order: the names of the columns.
    """
    if not isinstance(data, list | tuple):
        return
    if all(map(_is_table, data)):
        raise InvalidInputError(
            f"{field}: it is a {type(data).__name__} of {len(data)} data sets; give one table of "
            "all rows with a column of their clients, as "
            "[{'x': x, 'y': y, 'client': n} for n, part in enumerate(parts) for x, y in part]"
        )
    if len(data) <= len(order) and all(getattr(part, "ndim", 0) for part in data):
        named = ", ".join(f"{name!r}: ..." for name in order[: len(data)])
        raise InvalidInputError(
            f"{field}: it is a {type(data).__name__} of {len(data)} arrays, which would be "
            f"{len(data)} samples; if they are columns, name them: {{{named}}}"
        )
