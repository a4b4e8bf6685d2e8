"""Tables of Arrow from files, and from the Hugging Face hub."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from fedtide.errors import InvalidInputError, first_line
from fedtide.text_files import DAMAGE, read_header, split_suffix, unreadable

_SUFFIXES = (".parquet", ".csv", ".tsv", ".csv.gz", ".tsv.gz")
KINDS = (
    "a mapping of arrays, a pandas, Polars or PyArrow table, a Hugging Face or PyTorch data set, a "
    "list of samples, the path of a Parquet, CSV or TSV file, the import path of a function that "
    "returns one of these, hub:OWNER/NAME, femnist or shakespeare"
)
"""What a user may give as data, in words."""


@lru_cache(maxsize=2)
def load_from_hub(field: str, name: str | tuple[str, ...], split: str, hint: str) -> pa.Table:
    """Return a split of a data set on the hub, or of its cached copy; images stay encoded.

    Args:
        field: the field that an error names.
        name: OWNER/NAME, or with the name of a configuration.
        split: such as "train".
        hint: what to do instead of going online, in the imperative.

    Raises:
        InvalidInputError: the hub cannot be reached, or has no such data set or split.
    """
    from datasets import load_dataset

    path = (name,) if isinstance(name, str) else name
    try:
        return embed_images(field, load_dataset(*path, split=split))
    except Exception as error:  # of any of the libraries below
        raise InvalidInputError(
            f"{field}: {path[0]!r}, split {split!r}, cannot be loaded from the Hugging Face hub "
            f"({first_line(error, 100, with_type=True)}); go online, or {hint}"
        ) from error


def embed_images(field: str, data: Any) -> pa.Table:
    """Return a Hugging Face data set as a table that holds all images, encoded.

    Args:
        field: the field that an error names.
        data: the data set, which may hold the paths of image files.

    Raises:
        InvalidInputError: a file cannot be read.
    """
    from datasets.table import embed_table_storage

    try:
        return embed_table_storage(data.with_format("arrow")[:])
    except OSError as error:
        raise InvalidInputError(
            f"{field}: a file of the data set cannot be read ({first_line(error)}); correct its "
            "path"
        ) from error


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


def read_file(field: str, path: Path, text: Sequence[str] = ()) -> pa.Table:
    """Return a Parquet file or delimited text.

    Args:
        field: the field that an error names.
        path: of the file.
        text: columns of delimited text whose values stay as they are written ("007" is not 7).

    Raises:
        InvalidInputError: no file, or one that cannot be read or has two columns of one name.
    """
    if not path.is_file():
        where = "" if path.is_absolute() else f" in the working directory {str(Path.cwd())!r}"
        raise InvalidInputError(f"{field}: no file {str(path)!r}{where}; give {KINDS}")
    if not path.name.lower().endswith(_SUFFIXES):
        raise InvalidInputError(
            f"{field}: {str(path)!r} is neither a .parquet nor a .csv or .tsv file; give {KINDS}"
        )
    status = path.stat()
    return _read_version(field, path, tuple(text), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=8)
def _read_version(field: str, path: Path, text: Sequence[str], size: int, time: int) -> pa.Table:
    """Read a file; its size and modification time identify its version in this function's cache."""
    try:
        if is_text(path):
            table = _read_text(path, text)
        else:
            with pq.ParquetFile(path) as file:
                table = file.read()
    except DAMAGE as error:
        raise unreadable(field, path, error) from None
    twice = [name for name, count in Counter(table.column_names).items() if count > 1]
    if twice:
        raise InvalidInputError(
            f"{field}: {str(path)!r} has two columns called {twice[0]!r}; rename or remove one"
        )
    return table


def is_text(path: Path) -> bool:
    """Return whether a file holds delimited text, perhaps compressed."""
    return split_suffix(path)[0] != ".parquet"


def _read_text(path: Path, text: Sequence[str]) -> pa.Table:
    """Read delimited text; empty fields are missing, and among numbers also fields such as "NA".

    Raises:
        ValueError: a column that is not UTF-8, among other errors of `DAMAGE`.
    """
    header = read_header(path)
    with pa.input_stream(str(path), compression="gzip" if split_suffix(path)[1] else None) as file:
        table = pyarrow.csv.read_csv(
            file,
            pyarrow.csv.ReadOptions(column_names=header.names, skip_rows=header.lines),
            pyarrow.csv.ParseOptions(delimiter=header.separator, newlines_in_values=True),
            pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(text, pa.string())),
        )
    for place, (name, column) in enumerate(zip(header.names, table.columns, strict=True)):
        if pa.types.is_binary(column.type):
            raise ValueError(f"column {name!r} is not UTF-8")
        if pa.types.is_string(column.type):
            filled = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
            table = table.set_column(place, name, filled)
    return table
