"""Reading and writing tables as Parquet, CSV or JSON lines, by the suffix of the file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from fedtide.atomic_io import write_atomically
from fedtide.errors import InvalidInputError, did_you_mean

SUFFIXES = (".parquet", ".csv", ".jsonl", ".ndjson")


def read_table(field: str, path: str | Path, client: str = "client") -> pl.DataFrame:
    """Return the table in the file; the column `client` holds whole numbers or strings.

    Args:
        field: the field that an error names.
        path: of the file.
        client: the column of client ids. In a CSV file they are numbers if all of them are written
            as whole numbers of 64 bits without leading zeros.

    Raises:
        InvalidInputError: a file that is missing, empty, damaged or of an unknown type.
    """
    path = Path(path)
    if not path.is_file():
        raise InvalidInputError(
            f"{field}: no file {str(path)!r}; give the path of an existing file"
        )
    suffix = _require_suffix(field, path)
    if path.stat().st_size == 0:
        raise InvalidInputError(f"{field}: {str(path)!r} is empty; write it again")
    try:
        return _read(path, suffix, client)
    except (pl.exceptions.PolarsError, pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(
            f"{field}: {str(path)!r} is not a readable {suffix} file ({reason}); write it again"
        ) from None


def write_table(field: str, path: str | Path, frame: pl.DataFrame) -> None:
    """Write the table atomically.

    Raises:
        InvalidInputError: an unknown suffix, or a path that cannot be written.
    """
    path = Path(path)
    suffix = _require_suffix(field, path)
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


def _require_suffix(field: str, path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        hint = did_you_mean(suffix, SUFFIXES)
        raise InvalidInputError(f"{field}: {str(path)!r} has an unknown suffix; {hint}")
    return suffix


def _read(path: Path, suffix: str, client: str) -> pl.DataFrame:
    if suffix == ".parquet":
        return _read_parquet(path)
    if suffix == ".csv":
        strings = {client: pl.String}
        frame = pl.read_csv(path, infer_schema_length=None, schema_overrides=strings)
        return _parse_ids(frame, client)
    frame = pl.read_ndjson(path, infer_schema_length=None)
    _reject_mixed_ids(path, frame, client)
    return frame


def _read_parquet(path: Path) -> pl.DataFrame:
    """Return the table, read by PyArrow: on some truncated files Polars panics."""
    with pq.ParquetFile(path) as file:
        table = file.read()
    table.validate(full=True)
    return pl.DataFrame(pa.table(table.columns, names=table.column_names))  # without metadata


def _parse_ids(frame: pl.DataFrame, client: str) -> pl.DataFrame:
    """Convert the column to numbers if all its strings are written as whole numbers."""
    if client not in frame.columns or frame[client].null_count() == len(frame):
        return frame
    if not frame[client].str.contains(r"^(0|-?[1-9][0-9]*)$").all():
        return frame
    ids = frame[client].cast(pl.Int64, strict=False)
    return frame if ids.null_count() > frame[client].null_count() else frame.with_columns(ids)


def _reject_mixed_ids(path: Path, frame: pl.DataFrame, client: str) -> None:
    """Raise ValueError for JSON numbers among strings, which Polars would convert silently."""
    if client not in frame.columns or frame[client].dtype != pl.String:
        return
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip() and not isinstance(json.loads(line).get(client), str | None):
                raise ValueError(f"line {number} has a number among string client ids")
