"""Tables as batches of columns: Parquet, delimited text, JSON, and DataFrames.

Files are read piece by piece, so that memory holds one batch at a time; a JSON document and a
DataFrame are in memory anyway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from fedtide.auditing.log.adapters import TEXT_LOGS, is_document, read_document, reject_text_log
from fedtide.auditing.log.columns import is_recognised, says_outcome
from fedtide.errors import InvalidInputError
from fedtide.participation.log.tables import READABLE, MemoryTable, require_file, to_polars
from fedtide.text_files import (
    DAMAGE,
    Header,
    has_rows,
    open_text,
    read_header,
    split_suffix,
    unreadable,
)

Batch = dict[str, pa.Array]
Batches = Iterator[tuple[Batch, float]]
"""Columns of consecutive rows, and the share of the table that has been read."""

_DATABASES = (".db", ".sqlite", ".sqlite3")
_PACKED = (".zst", ".bz2", ".xz", ".zip", ".tar", ".tgz")
_PARQUET_ROWS = 1 << 21
_JSON_ROWS = 1 << 16
_CSV_BYTES = 1 << 24


@dataclass(frozen=True)
class TableSource:
    """A table that is read in batches.

    Args:
        names: of its columns.
        read: yields the batches of the columns of these names.
        ids_are_text: whether whole numbers among client ids come as text, as in CSV.
        decimal_comma: whether numbers may come as text with a decimal comma.
        notes: facts about how the file is read.
    """

    names: list[str]
    read: Callable[[Sequence[str]], Batches]
    ids_are_text: bool = False
    decimal_comma: bool = False
    notes: tuple[str, ...] = ()


def open_source(source: str | Path | MemoryTable) -> TableSource:
    """Open a table in memory, or a file whose suffix is one of `tables.READABLE`.

    Raises:
        InvalidInputError: here or while reading: a file that is missing, empty, damaged or of an
            unknown type; an object that is no table.
    """
    if not isinstance(source, str | Path):
        frame = to_polars("log", source)
        return TableSource(frame.columns, partial(read_frame, frame))
    path = Path(source)
    if path.suffix.lower() in _DATABASES:
        raise InvalidInputError(f"log: {str(path)!r} is a database; write sqlite:///{path}")
    if path.suffix.lower() in _PACKED and path.exists():
        raise InvalidInputError(
            f"log: {str(path)!r} is packed; unpack it (text may be compressed by gzip)"
        )
    kind, _ = split_suffix(path)
    require_file("log", path, TEXT_LOGS if kind in TEXT_LOGS else READABLE)
    if kind in TEXT_LOGS:
        _guard(path, reject_text_log, path)
    openers = {".parquet": _open_parquet, ".csv": _open_csv, ".tsv": _open_csv}
    table: TableSource = _guard(path, openers.get(kind, _open_json), path)
    return replace(table, read=lambda names: _guarded_batches(path, table.read(names)))


def _open_parquet(path: Path) -> TableSource:
    with pq.ParquetFile(path) as file:
        return TableSource(list(file.schema_arrow.names), partial(_read_parquet, path))


def _read_parquet(path: Path, names: Sequence[str]) -> Batches:
    with pq.ParquetFile(path) as file:
        done = 0
        for batch in file.iter_batches(_PARQUET_ROWS, columns=list(names)):
            done += len(batch)
            yield {name: batch[name] for name in names}, done / file.metadata.num_rows


def _open_csv(path: Path) -> TableSource:
    header = read_header(path)
    if header.separator == ",":
        notes: tuple[str, ...] = ()
    else:
        named = {"\t": "tabs", ";": "semicolons", "|": "bars"}[header.separator]
        notes = (f"columns are separated by {named}",)
    read = partial(_read_csv, path, header)
    return TableSource(header.names, read, True, header.separator != ",", notes)


def _read_csv(path: Path, header: Header, names: Sequence[str]) -> Batches:
    """Yield columns of strings, the client's dictionary-encoded later; empty cells are missing."""
    if not has_rows(path, header):
        return
    size = path.stat().st_size
    with pa.OSFile(str(path)) as raw:
        compressed = split_suffix(path)[1]
        stream = pa.CompressedInputStream(raw, "gzip") if compressed else raw
        reader = pa_csv.open_csv(
            stream,
            read_options=pa_csv.ReadOptions(
                column_names=header.names, skip_rows=header.lines, block_size=_CSV_BYTES
            ),
            parse_options=pa_csv.ParseOptions(delimiter=header.separator, newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                include_columns=list(names),
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
        for batch in reader:
            yield {name: batch[name] for name in names}, min(1.0, raw.tell() / size)


def _open_json(path: Path) -> TableSource:
    """Open JSON lines, an array of rows, or one of the documents in `adapters`."""
    with open_text(path) as file:
        lines = (line for line in file if line.strip())
        first, second = next(lines, ""), next(lines, None)
    if _is_object(first) and (second is not None or not is_document(json.loads(first))):
        return _open_records(partial(_read_lines, path), None)
    with open_text(path) as file:
        document = json.load(file)
    notes: list[str] = []
    if isinstance(document, dict):
        document, notes = read_document(document)
    if not isinstance(document, list):
        raise ValueError("it is neither an array of rows nor one row per line")
    return replace(_open_records(lambda: iter(document), len(document)), notes=tuple(notes))


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _read_lines(path: Path) -> Iterator[Any]:
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from None


def _open_records(rows: Callable[[], Iterator[Any]], count: int | None) -> TableSource:
    """Open rows that are mappings; the first ones name the columns."""
    names = _key_names(islice(rows(), _JSON_ROWS))
    return TableSource(names, partial(_read_records, rows, count, set(names)))


def _key_names(rows: Iterator[Any]) -> list[str]:
    names: dict[str, None] = {}
    for row in rows:
        if not isinstance(row, dict):
            raise ValueError(f"a row is {json.dumps(row):.40}, not an object with named values")
        names.update(dict.fromkeys(row))
    return list(names)


def _read_records(
    rows: Callable[[], Iterator[Any]], count: int | None, known: set[str], names: Sequence[str]
) -> Batches:
    remaining, done = rows(), 0
    while chunk := list(islice(remaining, _JSON_ROWS)):
        late = [key for key in _key_names(iter(chunk)) if key not in known and is_recognised(key)]
        if late:
            raise ValueError(f"no row of the first {_JSON_ROWS:,} has {late[0]!r}, later ones do")
        done += len(chunk)
        share = done / count if count else 0.0
        yield {name: _to_column(name, [row.get(name) for row in chunk]) for name in names}, share


def _to_column(name: str, values: list[Any]) -> pa.Array:
    """Return values as a column; Arrow does not infer unsigned 64-bit integers by itself."""
    given = [value for value in values if value is not None]
    for kind in (None, *_list_unsigned(given)):
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            continue
    if says_outcome(name):  # perhaps irrelevant, so no reason to refuse a log
        return pa.array([None if value is None else str(value) for value in values])
    kinds = sorted({type(value).__name__ for value in given})
    raise InvalidInputError(
        f"log: the values of {name!r} are mixed or too large ({', '.join(kinds)}); "
        "write numbers only, or strings only"
    )


def _list_unsigned(values: list[Any]) -> list[pa.DataType]:
    """Return the unsigned type of whole numbers, or of lists of them, such as node ids."""
    if all(type(value) is int for value in values):
        return [pa.uint64()]
    lists = all(type(value) is list for value in values)
    if lists and all(type(entry) is int for value in values for entry in value):
        return [pa.list_(pa.uint64())]
    return []


def read_frame(frame: pl.DataFrame, names: Sequence[str]) -> Batches:
    """Yield the columns of these names of a DataFrame."""
    try:
        table = frame.select(names).to_arrow(compat_level=pl.CompatLevel.oldest())
    except pa.ArrowException:
        kinds = ", ".join(f"{name!r}: {frame[name].dtype}" for name in dict.fromkeys(names))
        raise InvalidInputError(
            f"log: a column has a type that Arrow does not know ({kinds}); "
            "give numbers of up to 64 bits, text or times"
        ) from None
    for batch in table.combine_chunks().to_batches():  # chunks may be of a row each
        yield {name: batch[name] for name in names}, 1.0


def _guard(path: Path, read: Callable[..., Any], *arguments: Any) -> Any:
    """Call `read`; turn the errors of damaged files into an InvalidInputError."""
    try:
        return read(*arguments)
    except InvalidInputError:
        raise
    except DAMAGE as error:
        raise unreadable("log", path, error) from None


def _guarded_batches(path: Path, batches: Batches) -> Batches:
    while (item := _guard(path, next, batches, None)) is not None:
        yield item
