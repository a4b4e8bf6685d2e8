"""Data sets whose samples belong to people: FEMNIST, Shakespeare and Stack Overflow, by name.

Each is read from the files in its folder in $FEDTIDE_DATA if there are any, else from the Hugging
Face hub (except Stack Overflow, of which the hub has no established copy), and becomes a table with
the columns x (input), y (target) and client.
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
import pyarrow.csv
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError
from fedtide.problems.datasets.files import load_from_hub, read_file
from fedtide.problems.datasets.table_columns import from_arrow

Columns = Mapping[str, Any]
"""The columns x, y and client."""

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The characters of Shakespeare's plays in the order of LEAF (Caldas et al., 2018); the id of a
character is its position, and that of all others is 80."""

WORDS = 10_000
"""The number of words of Stack Overflow with an id of their own (McMahan et al., 2018)."""

LONGEST = 20
"""The length in words to which posts of Stack Overflow are cut."""


_TEXT = ("x", "y", "character_id", "user_id", "tokens")


def load_natural(field: str, name: str, split: str) -> Columns:
    """Return a data set by name.

    Args:
        field: the field that an error names.
        name: in `NATURAL`.
        split: "train" or "test"; only Stack Overflow has a test split.

    Raises:
        InvalidInputError: the data are not available, or lack a column.
    """
    if split != "train" and (name, split) != ("stackoverflow", "test"):
        raise InvalidInputError(
            f"{field}: {name} has no split {split!r}; hold out a share of each client's samples, "
            "such as test=0.2"
        )
    files = [(file, file.stat().st_size, file.stat().st_mtime_ns) for file in _find_files(name)]
    return _load_version(field, name, split, tuple(files))


@lru_cache(maxsize=4)
def _load_version(
    field: str, name: str, split: str, files: Sequence[tuple[Path, int, int]]
) -> Columns:
    """Read a data set; the files' sizes and times identify their version in this cache."""
    return NATURAL[name](field, split, [file for file, _, _ in files])


def _find_files(name: str) -> list[Path]:
    """Return the files in the data set's folder in $FEDTIDE_DATA: Parquet, or else CSV."""
    if "FEDTIDE_DATA" not in os.environ:
        return []
    folder = Path(os.environ["FEDTIDE_DATA"], name)
    return sorted(folder.glob("*.parquet")) or sorted(folder.glob("*.csv"))


def _femnist(field: str, split: str, files: Sequence[Path]) -> Columns:
    """62 handwritten digits and letters, 28×28 pixels, by writer."""
    table = _read(field, "femnist", files, ("image", "writer_id", "character"))
    # decoded here, where the result is cached
    images = from_arrow(table["image"])
    return {"x": images, "y": table["character"], "client": table["writer_id"]}


def _shakespeare(field: str, split: str, files: Sequence[Path]) -> Columns:
    """The character that follows 80 others in Shakespeare's plays, by role."""
    table = _read(field, "shakespeare", files, ("x", "y", "character_id"))
    text, following = (encode_characters(table[name].combine_chunks()) for name in ("x", "y"))
    if (np.diff(following.offsets.to_numpy()) != 1).any():
        raise InvalidInputError(f"{field}: column 'y' of shakespeare: give one character per row")
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


def _stackoverflow(field: str, split: str, files: Sequence[Path]) -> Columns:
    """The next word of each of at most 20 words of a post on Stack Overflow, by user."""
    parts = {}
    for part in dict.fromkeys(("train", split)):  # the vocabulary is that of the training split
        own = [file for file in files if file.name.startswith(part)]
        if not own:
            raise InvalidInputError(
                f"{field}: no file stackoverflow/{part}.parquet in the folder FEDTIDE_DATA; the "
                "hub has no established copy, so write one with the columns user_id and tokens "
                "(text, or lists of words)"
            )
        table = _read(field, "stackoverflow", own, ("user_id", "tokens"))
        parts[part] = _split_words(table["tokens"].combine_chunks()), table["user_id"]
    vocabulary = frequent_words(parts["train"][0].flatten(), WORDS)
    words, users = parts[split]
    x, y, kept = shift(encode_words(words, vocabulary), LONGEST)
    return {"x": x, "y": y, "client": users.filter(pa.array(kept))}


def _split_words(tokens: pa.Array) -> pa.ListArray:
    """Return the words of each post, from text or from lists of words."""
    if not (pa.types.is_list(tokens.type) or pa.types.is_large_list(tokens.type)):
        tokens = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(tokens))
    return tokens.cast(pa.list_(pa.string()))


def frequent_words(words: pa.StringArray, count: int) -> pa.StringArray:
    """Return the most frequent words, those of equal frequency in alphabetical order.

    >>> frequent_words(pa.array(["b", "a", "c", "c"]), 2).to_pylist()
    ['c', 'a']
    """
    table = pa.table({"word": words}).group_by("word").aggregate([("word", "count")])
    order = [("word_count", "descending"), ("word", "ascending")]
    return table.sort_by(order)["word"].combine_chunks()[:count]


def encode_words(words: pa.ListArray, vocabulary: pa.StringArray) -> pa.ListArray:
    """Return the id of each word: 1 for the most frequent, len(vocabulary) + 1 for unknown ones.

    0 is left for padding.

    >>> encode_words(pa.array([["c", "x"]]), pa.array(["c", "a"])).to_pylist()
    [[1, 3]]
    """
    ids = pc.index_in(words.flatten(), vocabulary).fill_null(len(vocabulary))
    return pa.ListArray.from_arrays(_offsets(words), pc.add(ids, 1).cast(pa.int64()))


def shift(
    sequences: pa.ListArray, longest: int
) -> tuple[pa.ListArray, pa.ListArray, NDArray[np.bool_]]:
    """Return each sequence without its last and without its first element, and which were kept.

    Args:
        sequences: of integers; those with fewer than two elements are left out.
        longest: the length to which sequences are cut first.

    >>> x, y, kept = shift(pa.array([[5, 6, 7, 8], [5]]), longest=3)
    >>> x.to_pylist(), y.to_pylist(), kept.tolist()
    ([[5, 6]], [[6, 7]], [True, False])
    """
    offsets, values = _offsets(sequences), sequences.flatten().to_numpy()
    lengths = np.minimum(np.diff(offsets), longest) - 1
    kept = lengths > 0
    bounds = np.concatenate([[0], np.cumsum(lengths[kept])])
    places = np.arange(bounds[-1]) + np.repeat(offsets[:-1][kept] - bounds[:-1], lengths[kept])
    x, y = (pa.ListArray.from_arrays(bounds.astype(np.int32), values[places + k]) for k in (0, 1))
    return x, y, kept


def _offsets(lists: pa.ListArray) -> NDArray[np.int32]:
    """Return the boundaries between lists in their flattened values."""
    offsets = lists.offsets.to_numpy()
    bounds: NDArray[np.int32] = offsets - offsets[0]
    return bounds


def _read(field: str, name: str, files: Sequence[Path], columns: Sequence[str]) -> pa.Table:
    """Return these columns of the files, or of the hub's data set if there are no files."""
    if files:
        table = pa.concat_tables([read_file(field, file, _TEXT) for file in files])
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


NATURAL: dict[str, Callable[[str, str, Sequence[Path]], Columns]] = {
    "femnist": _femnist,
    "shakespeare": _shakespeare,
    "stackoverflow": _stackoverflow,
}
"""The data sets by name."""
