"""Data sets whose samples belong to people: FEMNIST and Shakespeare, by name.

Each is read from the files in its folder in $FEDTIDE_DATA if there are any, else from the Hugging
Face hub, and becomes a table with the columns x (input), y (target) and client.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedtide.errors import InvalidInputError
from fedtide.problems.datasets.files import load_from_hub, read_file
from fedtide.problems.datasets.table_columns import from_arrow

Columns = Mapping[str, Any]
"""The columns x, y and client."""

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The characters of Shakespeare's plays in the order of LEAF (Caldas et al., 2018); the id of a
character is its position, and that of all others is 80."""


def load_natural(field: str, name: str) -> Columns:
    """Return a data set by name.

    Args:
        field: the field that an error names.
        name: in `NATURAL`.

    Raises:
        InvalidInputError: the data are not available, or lack a column.
    """
    files: list[Path] = []
    if "FEDTIDE_DATA" in os.environ:
        folder = Path(os.environ["FEDTIDE_DATA"], name)
        files = sorted(folder.glob("*.parquet")) or sorted(folder.glob("*.csv"))
    versions = [(file, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return _load_version(field, name, tuple(versions))


@lru_cache(maxsize=4)
def _load_version(field: str, name: str, files: Sequence[tuple[Path, int, int]]) -> Columns:
    """Read a data set; the files' sizes and times identify their version in this cache."""
    return NATURAL[name](field, [file for file, _, _ in files])


def _femnist(field: str, files: Sequence[Path]) -> Columns:
    """62 handwritten digits and letters, 28×28 pixels, by writer."""
    table = _read(field, "femnist", files, ("image", "writer_id", "character"))
    # decoded here, where the result is cached
    images = from_arrow(table["image"])
    return {"x": images, "y": table["character"], "client": table["writer_id"]}


def _shakespeare(field: str, files: Sequence[Path]) -> Columns:
    """The character that follows 80 others in Shakespeare's plays, by role."""
    table = _read(field, "shakespeare", files, ("x", "y", "character_id"))
    text, following = (encode_characters(table[name].combine_chunks()) for name in ("x", "y"))
    return {"x": text, "y": following.values, "client": table["character_id"]}


def encode_characters(text: pa.StringArray) -> pa.ListArray:
    """Return the ids of the characters of each text; see `ALPHABET`.

    >>> encode_characters(pa.array(["\\n a", "é"])).to_pylist()
    [[0, 1, 53], [80]]
    """
    plain = pc.replace_substring_regex(text.cast(pa.string()), r"[^\x00-\x7F]", "\x7f")
    ids = np.full(128, len(ALPHABET), dtype=np.uint8)
    ids[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
    _, offsets, characters = plain.buffers()
    bounds = np.frombuffer(offsets, np.int32)[plain.offset : plain.offset + len(plain) + 1]
    codes = np.frombuffer(characters or b"", np.uint8)[bounds[0] : bounds[-1]]
    return pa.ListArray.from_arrays(bounds - bounds[0], ids[codes])


def _read(field: str, name: str, files: Sequence[Path], columns: Sequence[str]) -> pa.Table:
    """Return these columns of the files, or of the hub's data set if there are no files."""
    if files:
        text = ("x", "y", "character_id")
        table = pa.concat_tables([read_file(field, file, text) for file in files])
    else:
        hint = f"put its Parquet or CSV files into the folder {name} in FEDTIDE_DATA"
        table = load_from_hub(field, f"flwrlabs/{name}", "train", hint)
    missing = [column for column in columns if column not in table.column_names]
    if missing:
        raise InvalidInputError(
            f"{field}: {name} lacks the column {missing[0]!r}, it has "
            f"{', '.join(table.column_names)}; use its files as the hub has them"
        )
    return table.select(columns)


NATURAL: dict[str, Callable[[str, Sequence[Path]], Columns]] = {
    "femnist": _femnist,
    "shakespeare": _shakespeare,
}
"""The data sets by name."""
