"""Tables of Polars: in files, by their suffix, and in memory, of any library."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeGuard, runtime_checkable

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from fedtide.atomic_io import write_atomically
from fedtide.errors import InvalidInputError, did_you_mean, first_line
from fedtide.participation.log.client_ids import parse_whole_numbers
from fedtide.text_files import DAMAGE, open_text, read_header, split_suffix, unreadable
from fedtide.validation import expand_home

SUFFIXES = (".parquet", ".csv", ".jsonl", ".ndjson")
"""The suffixes with which tables are written."""

_TEXT = (".csv", ".tsv", ".jsonl", ".ndjson", ".json")
READABLE = (".parquet", *_TEXT, *(f"{suffix}.gz" for suffix in _TEXT))
"""The suffixes with which tables are read."""

Query = Callable[[pl.LazyFrame], pl.LazyFrame]


@runtime_checkable
class DataFrame(Protocol):
    """A table of any library that exports to Arrow, such as a DataFrame of Polars or pandas."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


MemoryTable = DataFrame | Sequence[Mapping[str, Any]]
"""A table in memory; a list holds its rows."""


@dataclass(frozen=True)
class OpenTable:
    """A table whose columns are read when they are asked for.

    Args:
        field: the field that an error names.
        names: of the columns.
        scan: returns these columns.
        path: of its file; None: it is in memory.
        is_text: whether every column holds text, as in CSV; an empty cell is missing.
        decimal_comma: whether numbers may have a decimal comma.
    """

    field: str
    names: list[str]
    scan: Callable[[list[str]], pl.LazyFrame]
    path: Path | None = None
    is_text: bool = False
    decimal_comma: bool = False

    def read(self, names: Sequence[str], query: Query = lambda rows: rows) -> pl.DataFrame:
        """Return the rows of these columns, or what a query makes of them.

        Raises:
            InvalidInputError: a damaged file.
        """
        with self.guarded():
            return query(self.scan(list(dict.fromkeys(names)))).collect(engine="streaming")

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn the errors of a damaged file into an InvalidInputError."""
        try:
            yield
        except (pl.exceptions.PolarsError, TypeError, *DAMAGE) as error:
            if self.path is None or isinstance(error, InvalidInputError):
                raise
            raise unreadable(self.field, self.path, error) from None


def is_table(value: object) -> TypeGuard[MemoryTable]:
    """Return whether a value is a table in memory; an array or a single column is not.

    >>> is_table([{"round": 0, "client": "ann"}]), is_table([[0.5, 0.5]]), is_table("log.csv")
    (True, False, False)
    """
    if isinstance(value, list | tuple):
        return len(value) > 0 and all(isinstance(row, Mapping) for row in value)
    return hasattr(value, "__arrow_c_stream__") and not isinstance(value, pl.Series)


def open_table(field: str, table: object) -> OpenTable:
    """Open a file whose suffix is one of READABLE, or a table in memory.

    The columns of .csv files may be separated by commas, semicolons, tabs or bars; lines without a
    value are skipped. JSON is an array of rows, or one row per line. Text may be compressed
    (.csv.gz). In tables of other libraries, NaN is a missing value.

    Raises:
        InvalidInputError: a file that is missing, empty, damaged or of an unknown type, or an
            object that is not a table.
    """
    if not isinstance(table, str | Path):
        return open_frame(field, to_polars(field, table))
    path = expand_home(table)
    require_file(field, path, READABLE)
    kind, _ = split_suffix(path)
    try:
        if kind == ".parquet":
            return _open_parquet(field, path)
        if kind in (".csv", ".tsv"):
            return _open_csv(field, path)
        return open_frame(field, _read_json(path))
    except InvalidInputError:
        raise
    except (pl.exceptions.PolarsError, TypeError, *DAMAGE) as error:
        raise unreadable(field, path, error) from None


def open_frame(field: str, frame: pl.DataFrame) -> OpenTable:
    """Return an open table of these columns."""
    return OpenTable(field, frame.columns, frame.lazy().select)


def to_polars(field: str, table: object, client: str = "client") -> pl.DataFrame:
    """Return a table in a file, see `read_table`, or in memory as a DataFrame of Polars.

    Raises:
        InvalidInputError: what `open_table` refuses, or a table that Polars cannot read.
    """
    if isinstance(table, str | Path):
        return read_table(field, table, client)
    if isinstance(table, pl.DataFrame):
        return table
    what = f"{type(table).__module__.partition('.')[0]}.{type(table).__name__}"
    rows: Any = table
    if not is_table(rows) and not isinstance(rows, Mapping):
        raise InvalidInputError(
            f"{field}: {what} is not a table; give the path of a file, a DataFrame or a list of "
            "rows, each a mapping"
        )
    try:
        return pl.DataFrame(rows, infer_schema_length=None).fill_nan(None)
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(
            f"{field}: Polars cannot read this {what} ({first_line(error, 120).rstrip('.')}); "
            "give columns of numbers, text or times"
        ) from None


def read_table(field: str, path: str | Path, client: str = "client") -> pl.DataFrame:
    """Return the table in a file; in CSV files, columns are numbers if all their values are.

    Args:
        field: the field that an error names.
        path: of the file.
        client: the column of client ids. In a CSV file they are numbers if all of them are written
            as whole numbers of 64 bits without leading zeros.

    Raises:
        InvalidInputError: a file that `open_table` refuses.
    """
    path = expand_home(path)
    require_file(field, path, READABLE)
    status = path.stat()
    return _read_version(field, path, client, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1)
def _read_version(field: str, path: Path, client: str, size: int, time: int) -> pl.DataFrame:
    """Read a file; a run asks several times for the same one, each time for other facts.

    Its size and modification time identify its version in this function's cache.
    """
    table = open_table(field, path)
    frame = table.read(table.names)
    if not table.is_text:
        return frame
    return frame.with_columns(
        parse_whole_numbers(column) if column.name == client else parse_numbers(column)
        for column in frame.iter_columns()
    )


def parse_numbers(column: pl.Series) -> pl.Series:
    """Return a column of text as whole numbers, or as numbers, if every value is one.

    >>> parse_numbers(pl.Series(["1", " 2"])).to_list(), parse_numbers(pl.Series(["a"])).to_list()
    ([1, 2], ['a'])
    """
    text = column.str.strip_chars()
    for kind in (pl.Int64, pl.Float64):
        numbers = text.cast(kind, strict=False)
        if numbers.null_count() == column.null_count():
            return numbers
    return column


def describe_table(table: object) -> str:
    """Return a table's name in messages: a file's path."""
    return repr(str(table)) if isinstance(table, str | Path) else "the table"


def write_table(field: str, path: str | Path, frame: pl.DataFrame) -> None:
    """Write the table atomically.

    Raises:
        InvalidInputError: an unknown suffix, or a path that cannot be written.
    """
    path = Path(path)
    suffix = _require_suffix(field, path, SUFFIXES)
    writers: dict[str, Callable[..., Any]] = {
        ".parquet": frame.write_parquet,
        ".csv": frame.write_csv,
    }
    write = writers.get(suffix, frame.write_ndjson)
    write_atomically(path, write, field, hint="choose another path")


def require_columns(field: str, frame: pl.DataFrame, names: Sequence[str], hint: str) -> None:
    """Raise InvalidInputError, naming the table's columns, if one of `names` is missing."""
    for name in names:
        if name not in frame.columns:
            columns = ", ".join(repr(column) for column in frame.columns)
            raise InvalidInputError(f"{field}: no column {name!r} among {columns}; {hint}")


def require_file(field: str, path: Path, suffixes: Sequence[str]) -> None:
    """Raise InvalidInputError unless the file exists, has a suffix of these and is not empty."""
    if not path.is_file():
        raise InvalidInputError(
            f"{field}: no file {str(path)!r}; give the path of an existing file"
        )
    _require_suffix(field, path, suffixes)
    if path.stat().st_size == 0:
        raise InvalidInputError(f"{field}: {str(path)!r} is empty; write it again")


def _require_suffix(field: str, path: Path, suffixes: Sequence[str]) -> str:
    name = path.name.lower()
    found = next((suffix for suffix in suffixes if name.endswith(suffix)), None)
    if found is None:
        hint = did_you_mean(path.suffix.lower(), suffixes)
        raise InvalidInputError(f"{field}: {str(path)!r} has an unknown suffix; {hint}")
    return found


def _open_parquet(field: str, path: Path) -> OpenTable:
    """Open a file that PyArrow reads: on some truncated ones Polars panics."""

    def scan(names: list[str]) -> pl.LazyFrame:
        with pq.ParquetFile(path) as file:
            table = file.read(columns=names)
        table.validate(full=True)
        return pl.DataFrame(pa.table(table.columns, names=table.column_names)).lazy()

    with pq.ParquetFile(path) as file:
        return OpenTable(field, list(file.schema_arrow.names), scan, path)


def _open_csv(field: str, path: Path) -> OpenTable:
    header = read_header(path)
    names = header.names if len({*header.names}) == len(header.names) else header.written
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInputError(
            f"{field}: two columns are called {twice!r}; rename or remove one of them"
        )

    def scan(wanted: list[str]) -> pl.LazyFrame:
        rows = pl.scan_csv(
            path,
            separator=header.separator,
            skip_lines=header.lines - 1,
            new_columns=names,
            infer_schema=False,
            glob=False,
        )
        return rows.filter(~pl.all_horizontal(pl.all().is_null())).select(wanted)  # empty lines

    return OpenTable(field, names, scan, path, True, header.separator != ",")


def _read_json(path: Path) -> pl.DataFrame:
    with open_text(path) as file:
        content = file.read()
    if content.lstrip().startswith("["):
        return pl.DataFrame(json.loads(content), infer_schema_length=None, strict=True)
    return pl.read_ndjson(io.BytesIO(content.encode()), infer_schema_length=None)
