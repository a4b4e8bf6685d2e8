"""Text files from users: delimited tables, compressed or not, perhaps damaged."""

from __future__ import annotations

import csv
import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pyarrow as pa

from fedtide.errors import InvalidInputError, first_line

DAMAGE = (pa.ArrowException, OSError, EOFError, ValueError, RecursionError, csv.Error, zlib.error)
"""What libraries raise for a damaged file."""

_SEPARATORS = ",;\t|"


@dataclass(frozen=True)
class Header:
    """The header of delimited text.

    Args:
        names: of the columns.
        separator: the character between them.
        lines: how many lines the header takes, including empty ones before it.
        written: the names including surrounding blanks.
    """

    names: list[str]
    separator: str
    lines: int
    written: list[str]


def unreadable(field: str, path: Path, error: Exception) -> InvalidInputError:
    """Return the error for a file whose content is not what its suffix says.

    >>> unreadable("log", Path("log.csv"), UnicodeDecodeError("utf-8", b"\\xe9", 0, 1, "invalid"))
    InvalidInputError("log: 'log.csv' is not a readable .csv file ('utf-8' codec can't decode byte
    0xe9 in position 0: invalid); save it as UTF-8 (in Excel: CSV UTF-8)")
    """
    reason = first_line(error).rstrip(".")
    if "more fields" in reason:  # Polars explains this in terms of its schema
        reason = "a line has more values than the header has columns"
    encoded = "utf8" in str(error).lower().replace("-", "")  # spellings differ
    hint = "save it as UTF-8 (in Excel: CSV UTF-8)" if encoded else "write it again"
    return InvalidInputError(
        f"{field}: {str(path)!r} is not a readable {split_suffix(path)[0]} file ({reason}); {hint}"
    )


def split_suffix(path: Path) -> tuple[str, bool]:
    """Return the suffix that tells the format, and whether the file is compressed with gzip.

    >>> split_suffix(Path("log.CSV.gz"))
    ('.csv', True)
    """
    compressed = path.suffix.lower() == ".gz"
    return (path.with_suffix("") if compressed else path).suffix.lower(), compressed


def open_text(path: Path) -> TextIO:
    """Open a text file in UTF-8, compressed or not, without its byte order mark."""
    if split_suffix(path)[1]:
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def read_header(path: Path) -> Header:
    """Return the header of delimited text; the separator is the most frequent one in it.

    Raises:
        ValueError: all lines are empty, or the text is not UTF-8.
    """
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                separator = max(_SEPARATORS, key=line.count)
                if split_suffix(path)[0] == ".tsv":
                    separator = "\t"
                (names,) = csv.reader([line], delimiter=separator)
                return Header([name.strip() for name in names], separator, number, names)
    raise ValueError("it has no header")
