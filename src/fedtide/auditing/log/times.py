"""The times of a log, which rounds are computed from: all in one unit, with or without a zone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedtide.auditing.log.round_numbers import are_dates
from fedtide.auditing.log.values import (
    cast_text,
    is_number,
    is_text,
    reject_missing,
    to_numpy,
    to_strings,
)
from fedtide.errors import InvalidInputError

_UNITS = (
    (1e17, 1, "nanoseconds"),
    (1e14, 1_000, "microseconds"),
    (1e11, 1_000_000, "milliseconds"),
    (0, 1_000_000_000, "seconds"),
)
"""Numbers from which on a Unix time is in ns, µs, ms (in s, they are years beyond 5000)."""

_ZONE = r"\d\d:\d\d.*([zZ]|UTC|GMT|[+-]\d\d(:?\d\d)?)$"
_SPELLINGS = (
    (r"(:\d\d),(\d+)", r"\1.\2"),  # a decimal comma, as Python's logging writes it
    (r"\s*([zZ]|UTC|GMT)$", "Z"),
    (r"(:\d\d(?:\.\d+)?)\s+([+-]\d\d(?::?\d\d)?)$", r"\1\2"),
)
"""Notations of ISO strings that Arrow does not read, and what replaces them."""


class TimeColumn:
    """The times of a log, parsed batch by batch, and how earlier batches wrote them."""

    def __init__(self) -> None:
        self._written: str | None = None
        self._date: int | None = None
        self._only_dates = True

    def parse(self, column: pa.Array, first_row: int | None) -> NDArray[np.int64]:
        """Return times in nanoseconds since 1970 (UTC), or since the start of relative times.

        Dates and times, ISO strings, and numbers: Unix times in seconds, milliseconds, microseconds
        or nanoseconds, by their size. Times without a zone are taken as UTC.

        Args:
            column: of times.
            first_row: the number of the first row in the log; None: the rows are of lists.

        Raises:
            InvalidInputError: values that are missing or no times; times in several units, or of
                which only some have a zone.
        """
        reject_missing("time", column, first_row, "give every row a time")
        if not len(column):
            return np.empty(0, dtype=np.int64)
        if is_text(column.type):
            numbers = cast_text(column)
            column = self._parse_iso(column) if numbers is None else numbers
        elif not is_number(column.type):
            self._require_alike("dates")
        if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
            self._only_dates = False
            try:
                zone = column.type.tz if pa.types.is_timestamp(column.type) else None
                times = column.cast(pa.timestamp("ns", zone)).cast(pa.int64())
                return np.asarray(to_numpy(times))
            except pa.ArrowInvalid:
                raise InvalidInputError(
                    "time: a year lies outside 1678 to 2261; correct it"
                ) from None
        if not is_number(column.type):
            raise InvalidInputError(
                f"time: the column has type {column.type}; give dates, ISO strings or Unix times"
            )
        return self._parse_numbers(to_numpy(column))

    def reject_dates(self) -> None:
        """Raise InvalidInputError if all times were numbers like 20260501."""
        if self._only_dates and self._date is not None:
            text = str(self._date)
            raise InvalidInputError(
                f"time: {text} looks like a date, not a number of seconds; write dates as "
                f"{text[:4]}-{text[4:6]}-{text[6:]}"
            )

    def _parse_numbers(self, numbers: NDArray[np.generic]) -> NDArray[np.int64]:
        sizes = np.abs(numbers.astype(np.float64))
        if not np.isfinite(sizes).all():
            raise InvalidInputError("time: a time is not finite; give Unix times or ISO strings")
        least, largest = int(sizes.argmin()), int(sizes.argmax())
        scale, unit = _find_unit(sizes[largest])
        if _find_unit(sizes[least])[1] != unit:
            raise InvalidInputError(
                f"time: {numbers[least]} and {numbers[largest]} are not in the same unit; write "
                "all times in one unit, and give every row a time"
            )
        self._require_alike(f"numbers of {unit}")
        if sizes[largest] * scale >= 2**63:
            raise InvalidInputError(f"time: {numbers[largest]} is beyond any date; give Unix times")
        if self._only_dates:
            self._only_dates = are_dates(numbers)
            self._date = int(numbers[0]) if self._only_dates else None
        if np.issubdtype(numbers.dtype, np.integer):
            return np.asarray(numbers.astype(np.int64) * scale)
        return np.asarray(np.round(numbers.astype(np.float64) * scale).astype(np.int64))

    def _parse_iso(self, column: pa.Array) -> pa.Array:
        """Return the times that ISO strings denote."""
        text = pc.utf8_trim_whitespace(to_strings(column))
        zoned = pc.match_substring_regex(text, _ZONE)
        first = zoned[0].as_py()
        if pc.any(pc.not_equal(zoned, first)).as_py():
            raise _some_zones()
        self._require_alike("ISO strings with a zone" if first else "ISO strings without a zone")
        kind = pa.timestamp("ns", "UTC") if first else pa.timestamp("ns")
        try:
            return text.cast(kind)
        except pa.ArrowInvalid:
            for spelling, iso in _SPELLINGS:
                text = pc.replace_substring_regex(text, spelling, iso)
        try:
            return text.cast(kind)
        except pa.ArrowInvalid:
            wrong = column[_find_first_failure(text, kind)].as_py()
            raise InvalidInputError(
                f"time: {wrong!r:.60} is not a time; write 2026-05-01 or 2026-05-01T13:00:00, "
                "or Unix times"
            ) from None

    def _require_alike(self, written: str) -> None:
        """Raise InvalidInputError if earlier batches wrote times in another way."""
        if self._written not in (None, written):
            if "zone" in str(self._written) and "zone" in written:
                raise _some_zones()
            raise InvalidInputError(
                f"time: some times are {self._written}, others {written}; write all alike"
            )
        self._written = written


def _some_zones() -> InvalidInputError:
    return InvalidInputError("time: only some times name a zone; write all with, or without")


def _find_unit(size: float) -> tuple[int, str]:
    """Return how many nanoseconds the unit of a Unix time of this size has, and its name."""
    return next((scale, unit) for least, scale, unit in _UNITS if size >= least)


def _find_first_failure(text: pa.Array, kind: pa.DataType) -> int:
    """Return the first position at which text cannot be cast; there is one."""
    low, high = 0, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            text.slice(low, middle - low).cast(kind)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low
