"""The values of a participation log's columns: rounds, clients, reasons and numbers.

Columns come as Arrow arrays, of text if the file has no types. Every function raises
InvalidInputError, which names the column, for values that it cannot use.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedtide.auditing.log.columns import NOUNS
from fedtide.errors import InvalidInputError, first_line, list_names
from fedtide.participation.log.schema import STAGES

_MAX_NUMBER = 1e30
_ROUND_HINT = "give whole numbers from 0"
_TIME_HINT = "give the length of a round in seconds with round_seconds= or --round-seconds"
_LONGEST_REASON = 60
USED = STAGES.index("used")
"""The index of the last stage."""

MISSING = ("", "na", "nan", "n/a", "null", "none", "-")
NO, YES = {"0", "0.0", "false", "f", "no", "n"}, {"1", "1.0", "true", "t", "yes", "y"}
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
_ISO = r"\s*\d{4}-\d\d-\d\d"


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column holds strings, dictionary-encoded or not."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return any(
        test(kind)
        for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    )


def is_number(kind: pa.DataType) -> bool:
    """Return whether a column holds whole or floating-point numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def to_numpy(column: pa.Array) -> NDArray[Any]:
    """Return a numeric column without missing values; Arrow's `to_numpy` would import pandas."""
    return np.from_dlpack(column)


def to_strings(column: pa.Array) -> pa.Array:
    """Return a column of strings without dictionary."""
    return column.cast(pa.large_string())


def cast_text(column: pa.Array) -> pa.Array | None:
    """Return a column of text as numbers, whole ones if possible; None if a value is none."""
    text = pc.utf8_trim_whitespace(to_strings(column))
    for kind in (pa.int64(), pa.float64()):
        try:
            return text.cast(kind)
        except pa.ArrowInvalid:
            continue
    return None


def reject_missing(field: str, column: pa.Array, first_row: int | None, hint: str) -> None:
    """Raise InvalidInputError if a value is missing; `first_row` as in `parse_clients`."""
    if column.null_count:
        where = _describe_row(column.is_null(), first_row)
        raise InvalidInputError(f"{field}: {where} has no {field}; {hint}")


def parse_rounds(column: pa.Array, first_row: int | None) -> NDArray[np.int32] | NDArray[np.int64]:
    """Return the round numbers, as int32 where they fit; `first_row` as in `parse_clients`."""
    reject_missing("round", column, first_row, f"{_ROUND_HINT}, and leave out empty rows")
    given = column
    if is_text(column.type):
        given = cast_text(column)
        if given is None:
            wrong = _first_mismatch(column, _NUMBER)
            if wrong is not None and re.match(_ISO, wrong, re.ASCII):
                raise InvalidInputError(f"round: {wrong!r} is a time, not a round; {_TIME_HINT}")
            raise InvalidInputError(f"round: {wrong!r:.60} is not a round; {_ROUND_HINT}")
    if pa.types.is_temporal(given.type):
        raise InvalidInputError(f"round: the column holds times, not rounds; {_TIME_HINT}")
    if pa.types.is_nested(given.type):
        raise InvalidInputError(
            "round: its values are lists or objects; give one JSON object per row, as pandas "
            "writes with orient='records'"
        )
    if not is_number(given.type):
        raise InvalidInputError(f"round: the column has type {given.type}; {_ROUND_HINT}")
    numbers = to_numpy(given)
    with np.errstate(invalid="ignore"):  # values that overflow are refused below
        rounds = numbers.astype(np.int64, copy=False)
    invalid = (rounds < 0) | (rounds != numbers)
    if invalid.any():
        raise InvalidInputError(f"round: {numbers[invalid][0]} is not a round; {_ROUND_HINT}")
    fits = len(rounds) == 0 or rounds.max() < 2**31
    return rounds.astype(np.int32) if fits else rounds


def encode_text(column: pa.Array) -> pa.DictionaryArray:
    """Return a column of strings dictionary-encoded."""
    encoded = pa.types.is_dictionary(column.type)
    return column if encoded else to_strings(column).dictionary_encode()


def parse_clients(
    column: pa.Array, exact: bool = False, first_row: int | None = None
) -> pa.DictionaryArray:
    """Return the client ids, whole numbers or strings, dictionary-encoded.

    Whole numbers may come as floats, as pandas stores columns with gaps. Text is trimmed, so the
    dictionary may contain a name twice.

    Args:
        column: of ids.
        exact: whether text is taken literally, also " a " or "none".
        first_row: the number of the first row in the log; None: the ids come from lists.
    """
    encoded = pa.types.is_dictionary(column.type)
    kind = column.type.value_type if encoded else column.type
    if pa.types.is_floating(kind):
        column, kind = _to_whole(column), pa.int64()
    if pa.types.is_struct(kind):
        fields = list_names([field.name for field in kind])
        raise InvalidInputError(
            f"client: each value is an object with the fields {fields}; make the one that names "
            "the client a column of its own"
        )
    if column.null_count < len(column) and not (is_text(kind) or pa.types.is_integer(kind)):
        binary = pa.types.is_fixed_size_binary(kind) or pa.types.is_large_binary(kind)
        raise InvalidInputError(
            f"client: ids of type {kind} are invalid or mixed; give whole numbers only or strings "
            f"only{', such as UUIDs as text' if binary or pa.types.is_binary(kind) else ''}"
        )
    reject_missing("client", column, first_row, "give every row a client id")
    if not is_text(kind):
        return column if encoded else column.dictionary_encode()
    ids = encode_text(column)
    if exact:
        return ids
    names = pc.utf8_trim_whitespace(to_strings(ids.dictionary))
    missing = pc.is_in(pc.utf8_lower(names), pa.array(MISSING, pa.large_string()))
    if pc.any(missing).as_py() and pc.any(rows := missing.take(ids.indices)).as_py():
        raise InvalidInputError(
            f"client: {_describe_row(rows, first_row)} has the client "
            f"{ids.filter(rows)[0].as_py()!r:.60}, which stands for a missing value; "
            "give every row a client id, or rename the client if this is its name"
        )
    return pa.DictionaryArray.from_arrays(ids.indices, names)


def _to_whole(column: pa.Array) -> pa.Array:
    """Return floating-point ids as whole numbers; not a number stands for a missing id."""
    plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    plain = pc.if_else(pc.is_nan(plain), pa.scalar(None, plain.type), plain)
    exact = float(2 ** (53 if plain.type == pa.float64() else 24))
    if pc.any(pc.greater_equal(pc.abs(plain), exact)).as_py():
        raise InvalidInputError(
            "client: ids as large as these lose digits as floating-point numbers; read the column "
            "as whole numbers (Int64) or as text"
        )
    try:
        return plain.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"client: ids of type {column.type} are not whole numbers ({first_line(error, 60)}); "
            "give whole numbers only or strings only"
        ) from error


def parse_reasons(column: pa.Array) -> pa.DictionaryArray:
    """Return reasons, of which none is null, as short printable text, dictionary-encoded.

    Words that stand for a missing value, such as "-", become "".
    """
    if pa.types.is_nested(column.type):
        raise InvalidInputError(f"reason: the column has type {column.type}; give text")
    encoded = encode_text(column)
    texts = [_to_one_line(text) for text in encoded.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(texts, pa.large_string()))


def parse_numbers(field: str, column: pa.Array, decimal_comma: bool = False) -> NDArray[np.float32]:
    """Return participation weights or sample counts, NaN where missing.

    Args:
        field: `weight` or `samples`.
        column: of numbers or of text.
        decimal_comma: whether text may say 0,5 for 0.5.
    """
    if column.null_count == len(column):
        return np.full(len(column), np.nan, dtype=np.float32)
    if is_text(column.type):
        column = _parse_text_numbers(field, column, decimal_comma)
    if not is_number(column.type):
        raise InvalidInputError(f"{field}: the column has type {column.type}; give numbers")
    missing = to_numpy(column.is_null().cast(pa.uint8())) > 0
    given = to_numpy(column.fill_null(0))
    invalid = ~((given >= 0) & (given < _MAX_NUMBER))
    if invalid.any():
        raise InvalidInputError(
            f"{field}: {given[invalid][0]} is not a {NOUNS[field]}; give numbers of at least 0"
        )
    return np.where(missing, np.nan, given).astype(np.float32)


def _parse_text_numbers(field: str, column: pa.Array, decimal_comma: bool) -> pa.Array:
    text = pc.utf8_trim_whitespace(to_strings(column))
    missing = pc.is_in(pc.utf8_lower(text), pa.array(MISSING, pa.large_string()))
    text = pc.if_else(missing, pa.scalar(None, pa.large_string()), text)
    if decimal_comma:
        text = pc.replace_substring(text, ",", ".", max_replacements=1)
    try:
        return text.cast(pa.float64())
    except pa.ArrowInvalid:
        wrong = _first_mismatch(text.drop_null(), _NUMBER)
        separated = wrong is not None and re.fullmatch(r"\d{1,3}(\D\d{3})+", wrong)
        remedy = " without a thousands separator" if separated else " of at least 0"
        raise InvalidInputError(
            f"{field}: {wrong!r:.60} is not a number; give numbers{remedy}"
        ) from None


def _to_one_line(text: str) -> str:
    """Return text that cannot control a terminal, cut to a length that a table shows, or ""."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if line.lower() in MISSING:
        return ""
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 1] + "…"


def _first_mismatch(column: pa.Array, pattern: str) -> str | None:
    """Return the first text that does not match."""
    text = to_strings(column)
    wrong = text.filter(pc.invert(pc.match_substring_regex(text, pattern)))
    return str(wrong[0].as_py()) if len(wrong) else None


def _describe_row(wrong: pa.Array, first_row: int | None) -> str:
    """Return where the first wrong row is; None: in a list."""
    if first_row is None:
        return "a list"
    return f"row {first_row + 1 + pc.index(wrong, True).as_py():,}"
