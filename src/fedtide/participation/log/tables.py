"""Tables as DataFrames of Polars: from and to files, by their suffix, and from other libraries."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
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


@runtime_checkable
class DataFrame(Protocol):
    """A table of any library that exports to Arrow, such as a DataFrame of Polars or pandas."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


MemoryTable = DataFrame | Sequence[Mapping[str, Any]]
"""A table in memory; a list holds its rows."""


def is_table(value: object) -> TypeGuard[MemoryTable]:
    """Return whether a value is a table in memory; an array or a single column is not.

    >>> is_table([{"round": 0, "client": "ann"}]), is_table([[0.5, 0.5]]), is_table("log.csv")
    (True, False, False)
    """
    if isinstance(value, list | tuple):
        return len(value) > 0 and all(isinstance(row, Mapping) for row in value)
    return hasattr(value, "__arrow_c_stream__") and not isinstance(value, pl.Series)


def to_polars(field: str, table: str | Path | MemoryTable, client: str = "client") -> pl.DataFrame:
    """Return a table in a file, see `read_table`, or in memory as a DataFrame of Polars.

    In tables of other libraries, NaN is a missing value.

    Raises:
        InvalidInputError: a file that `read_table` refuses, an object that is not a table, or a
            table that Polars cannot read.
    """
    if isinstance(table, str | Path):
        return read_table(field, expand_home(table), client)
    if isinstance(table, pl.DataFrame):
        return table
    what = f"{type(table).__module__.partition('.')[0]}.{type(table).__name__}"
    if not is_table(table):
        raise InvalidInputError(
            f"{field}: {what} is not a table; give the path of a file, a DataFrame or a list of "
            "rows, each a mapping"
        )
    try:
        return pl.DataFrame(table, infer_schema_length=None).fill_nan(None)
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(
            f"{field}: Polars cannot read this {what} ({first_line(error, 120).rstrip('.')}); "
            "give columns of numbers, text or times"
        ) from None


def read_table(field: str, path: str | Path, client: str = "client") -> pl.DataFrame:
    """Return the table in the file; the column `client` holds whole numbers or strings.

    Args:
        field: the field that an error names.
        path: of the file.
        client: the column of client ids. In a CSV file they are numbers if all of them are written
            as whole numbers of 64 bits without leading zeros.

    The columns of .csv files may be separated by commas, semicolons, tabs or bars; lines without a
    value are skipped. JSON is an array of rows, or one row per line. Text may be compressed
    (.csv.gz).

    Raises:
        InvalidInputError: a file that is missing, empty, damaged or of an unknown type.
    """
    path = Path(path)
    require_file(field, path, READABLE)
    status = path.stat()
    try:
        return _read_version(path, client, status.st_size, status.st_mtime_ns)
    except (pl.exceptions.PolarsError, TypeError, *DAMAGE) as error:
        raise unreadable(field, path, error) from None


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


@lru_cache(maxsize=1)
def _read_version(path: Path, client: str, size: int, time: int) -> pl.DataFrame:
    """Read a file; a run asks several times for the same one, each time for other facts.

    Its size and modification time identify its version in this function's cache.
    """
    suffix, _ = split_suffix(path)
    if suffix == ".parquet":
        return _read_parquet(path)
    if suffix in (".csv", ".tsv"):
        return _read_csv(path, client)
    with open_text(path) as file:
        content = file.read()
    if content.lstrip().startswith("["):
        return pl.DataFrame(json.loads(content), infer_schema_length=None, strict=True)
    return pl.read_ndjson(io.BytesIO(content.encode()), infer_schema_length=None)


def _read_csv(path: Path, client: str) -> pl.DataFrame:
    header = read_header(path)
    text = [name for name in header.written if name.strip() == client]
    frame = pl.read_csv(
        path,
        separator=header.separator,
        infer_schema_length=None,
        schema_overrides=dict.fromkeys(text, pl.String),
    )
    stripped = {n: n.strip() for n in header.written if n.strip() not in header.written}
    frame = frame.rename(stripped).filter(~pl.all_horizontal(pl.all().is_null()))  # empty lines
    if client not in frame.columns or frame[client].null_count() == len(frame):
        return frame
    return frame.with_columns(parse_whole_numbers(frame[client]))


def _read_parquet(path: Path) -> pl.DataFrame:
    """Return the table, read by PyArrow: on some truncated files Polars panics."""
    with pq.ParquetFile(path) as file:
        table = file.read()
    table.validate(full=True)
    return pl.DataFrame(pa.table(table.columns, names=table.column_names))  # without metadata
