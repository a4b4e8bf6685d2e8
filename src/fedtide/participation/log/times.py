"""Rounds of a log: from their numbers, and from times and the length of a round."""

from __future__ import annotations

from datetime import datetime
from math import gcd
from typing import Literal
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError, quantify
from fedtide.participation.log.columns import name_columns
from fedtide.participation.log.tables import parse_numbers

Ints = NDArray[np.int64]
Kind = Literal["instants", "dates", "seconds"]

DAY = 86_400
_FIRST_TIME = 10**8
"""Unix times in seconds have exceeded it since 1973; seconds from any start are fewer."""
_LARGEST_ROUND = 100_000
"""A log may begin in a later round, but then it says so."""
_FEW_ROUNDS, _MAX_GAP = 10_000, 100
_EVEN_ROUNDS, _COMMON_ROUNDS = 4, 10
_UNITS = ((10**17, 1e-3), (10**14, 1.0), (10**11, 1e3), (0, 1e6))
"""Numbers from which on a Unix time is in ns, µs, ms, s, and how many µs that is."""

_TIME_HINT = "give the length of a round with round_seconds= or --round-seconds"
_KEEP_HINT = "round_step=1 or --round-step 1 takes them as they are"
_ZONE_HINT = "time_zone='Europe/Berlin' or --time-zone Europe/Berlin, or UTC"
_CLOCK = r"\d\d:\d\d.*?"
_OFFSET = rf"{_CLOCK}\s*(z|utc|gmt|[+-]\d\d(?::?\d\d)?)$"


def parse_rounds(column: pl.Series) -> pl.Series:
    """Return a column of round numbers as int64.

    Raises:
        InvalidInputError: anything but whole numbers of at least 0.
    """
    given = parse_numbers(column) if column.dtype == pl.String else column
    if column.is_empty() or column.dtype == pl.Null:
        given = column.cast(pl.Int64, strict=False)
    if given.dtype.is_temporal() or (given.dtype == pl.String and _is_date(given)):
        raise InvalidInputError(f"round: the column holds times, not rounds; {_TIME_HINT}")
    if given.dtype == pl.String:
        wrong = given.filter(given.str.strip_chars().cast(pl.Float64, strict=False).is_null())
        raise InvalidInputError(
            f"round: {wrong.drop_nulls()[0]!r:.60} is not a round; give whole numbers from 0"
        )
    if not given.dtype.is_numeric():
        raise InvalidInputError(
            f"round: type {given.dtype} is not numeric; give whole numbers from 0, and in JSON one "
            "object per row"
        )
    rounds = given.cast(pl.Int64, strict=False)
    if (missing := rounds.null_count()) and given.null_count():
        row = int(given.is_null().arg_max() or 0) + 1
        raise InvalidInputError(
            f"round: row {row:,} of {missing:,} has no round; give whole numbers from 0, and leave "
            "out empty rows"
        )
    wrong = given.filter((rounds != given).fill_null(True) | (rounds < 0).fill_null(True))
    if len(wrong):
        raise InvalidInputError(f"round: {wrong[0]} is not a round; give whole numbers from 0")
    return rounds


def number_rounds(rounds: pl.Series, step: int | None) -> pl.Series:
    """Return the rounds, numbered consecutively if the user gives the step between them.

    Args:
        rounds: of all rows.
        step: the difference between the numbers of consecutive rounds; None: 1, unless the numbers
            contradict it.

    Raises:
        InvalidInputError: numbers that look like times or dates, or that advance by more than 1,
            if `step` is None; a number that is not a multiple of `step` after the first.

    >>> number_rounds(pl.Series([5, 12, 12, 19]), 7).to_list()
    [0, 1, 1, 2]
    """
    numbers = rounds.unique().sort().to_numpy()
    first, last = int(numbers[0]), int(numbers[-1])
    if step is None:
        hint = f"if these are times, {_TIME_HINT}; otherwise {_KEEP_HINT}"
        if first >= _LARGEST_ROUND:
            raise InvalidInputError(
                f"round: the first is {first}, which may be a time or date; {hint}"
            )
        found = find_step(numbers)
        length = last - first + 1
        if length > _FEW_ROUNDS and length > _MAX_GAP * found * len(numbers):
            raise InvalidInputError(
                f"round: only {len(numbers):,} of {length:,} rounds have rows; {hint}, or name "
                f"the column of rounds with {name_columns({'round': 'NAME'})}"
            )
        if found > 1:
            raise InvalidInputError(
                f"round: the numbers advance by {found}, from {first} on; number them "
                f"consecutively with round_step={found} or --round-step {found}, or keep the "
                f"rounds between as empty ones: {_KEEP_HINT}"
            )
        step = 1
    if step == 1:
        return rounds
    if len(between := numbers[(numbers - first) % step != 0]):
        raise InvalidInputError(
            f"round_step: round {between[0]} is not a multiple of {step} after round {first}; "
            "give the difference between the numbers of consecutive rounds"
        )
    return (rounds - first) // step


def find_step(numbers: Ints) -> int:
    """Return the g of round numbers 0, g, 2g, ..., ascending; 1 if there are too few to tell.

    It takes ten different ones, or four without a gap: the rounds between may have been empty.

    >>> find_step(np.array([5, 12, 19, 26]))
    7
    """
    step = gcd(*np.unique(np.diff(numbers)).tolist())
    even = step > 1 and (numbers[-1] - numbers[0]) // step == len(numbers) - 1
    enough = len(numbers) >= (_EVEN_ROUNDS if even else _COMMON_ROUNDS)
    return step if step > 1 and enough else 1


def describe_rounds(rounds: pl.Series, first: int, last: int, in_order: bool) -> list[str]:
    """Return notes on rounds without rows, and on numbers that start again."""
    notes, numbers = [], rounds.unique().sort()
    if gaps := last - first + 1 - len(numbers):
        jump = int((numbers.diff().fill_null(1) > 1).arg_max() or 0)
        notes.append(
            f"{quantify(gaps, 'round')} of {last - first + 1:,} without rows, such as round "
            f"{numbers[jump - 1] + 1}: counted as rounds in which nobody took part"
        )
    if in_order:
        back = np.flatnonzero(np.diff(rounds.to_numpy()) < 0)
        if 0 < len(back) <= 1 + len(numbers) // 20:
            row = int(back[0])
            notes.append(
                f"the numbers of the rounds go back {quantify(len(back), 'time')}, first from "
                f"{rounds[row]} to {rounds[row + 1]} in row {row + 2:,}: rows of one number are "
                "one round; if these are several runs, or rounds run again, read each alone"
            )
    sizes = rounds.alias("round").value_counts(name="n")
    usual = sizes["n"].mode()[0]
    larger = sizes.filter(pl.col("n") > usual).sort("round")
    if len(sizes) >= 20 and (sizes["n"] == usual).mean() >= 0.9 and len(larger):
        t, n = larger.row(0)
        notes.append(
            f"{quantify(len(larger), 'round')} with more rows than the usual {usual:,}, such as "
            f"round {t} with {n:,}: if it was run again under its number, leave the first try out"
        )
    return notes


def divide_time(column: pl.Series, seconds: float, zone: str | None) -> tuple[pl.Series, str]:
    """Return the round of each time, from 0, and a note on their length and start.

    They are counted from midnight of the first day in the time zone, or in UTC; rounds of whole
    days always begin at a local midnight. Seconds from any start, and dates without a time of day,
    need no zone.

    Args:
        column: dates and times, ISO strings, Unix times in seconds, milliseconds, microseconds or
            nanoseconds, or seconds from any start.
        seconds: the length of a round.
        zone: such as "Europe/Berlin"; None: unknown.

    Raises:
        InvalidInputError: missing times or others; several units; no or several time zones, or
            rounds of days, without `zone`; rounds of which fewer than one in a hundred has rows.

    >>> times = pl.Series(["2026-05-01T23:30:00Z", "2026-05-02T00:30:00Z"])
    >>> divide_time(times, 86400, "Europe/Berlin")[0].to_list()
    [0, 0]
    """
    if column.null_count():
        row = int(column.is_null().arg_max() or 0) + 1
        raise InvalidInputError(f"time: row {row:,} has no time; give every row a time")
    length, day = round(seconds * 1e6), DAY * 10**6
    times, kind = _parse_times(column, zone)
    in_days = kind != "seconds" and length % day == 0
    if kind == "instants" and in_days and zone is None:
        raise InvalidInputError(
            f"round_seconds: rounds of days begin at a local midnight; give {_ZONE_HINT}"
        )
    local = times
    if kind == "instants":
        stamps = pl.Series(times).cast(pl.Datetime("us", "UTC"))
        wall = stamps.dt.convert_time_zone(_get(zone or "UTC")).dt.replace_time_zone(None)
        local = wall.cast(pl.Int64).to_numpy()
    times = local if in_days else times
    first = int(times.argmin())
    origin = 0 if kind == "seconds" else int(times[first] - local[first] % day)  # midnight
    bins = (times - origin) // length
    low, span, filled = int(bins.min()), int(bins.max() - bins.min()) + 1, len(np.unique(bins))
    began, said = origin + low * length, f"{seconds:g} s"
    start, end = (_describe(moment, kind) for moment in (began, began + span * length))
    if span > _FEW_ROUNDS and span > _MAX_GAP * filled:
        raise InvalidInputError(
            f"round_seconds: only {filled:,} of {span:,} rounds of {said} from {start} to {end} "
            "have rows; correct a time that is far from the others, or give longer rounds"
        )
    zone = zone if in_days else "UTC"
    start += f" {zone}" if kind == "instants" else ""
    return pl.Series(bins - low), f"rounds are {said} long; the first one begins at {start}"


def _describe(micros: int, kind: Kind) -> str:
    """Return a time as text: a date, or seconds from the start."""
    if kind == "seconds":
        return f"{micros / 1e6:g} s"
    text: str = pl.Series([micros]).cast(pl.Datetime("us")).dt.strftime("%Y-%m-%d %H:%M:%S")[0]
    return text


def _parse_times(column: pl.Series, zone: str | None) -> tuple[Ints, Kind]:
    """Return times in microseconds: "instants" since 1970, "dates", or "seconds" from a start."""
    given = parse_numbers(column) if column.dtype == pl.String else column
    if given.dtype.is_numeric():
        return _parse_unix(given)
    offsets, local = pl.Series([None], dtype=pl.String), given
    if given.dtype == pl.String:
        text = given.str.strip_chars().str.to_lowercase()
        offsets = text.str.extract(_OFFSET, 1)
        local = _parse_iso(given, text)
    elif given.dtype not in (pl.Date, pl.Datetime):
        raise InvalidInputError(
            f"time: the column has type {column.dtype}; give dates, ISO strings or Unix times"
        )
    aware = isinstance(given.dtype, pl.Datetime) and given.dtype.time_zone is not None
    if aware:
        local = local.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    micros = local.cast(pl.Datetime("us")).cast(pl.Int64).to_numpy().copy()
    if micros.min() < _FIRST_TIME * 10**6 and micros.max() > 10 * _FIRST_TIME * 10**6:
        raise InvalidInputError(
            "time: some times are before 1973, others after 2001, as if a missing one were written "
            "as a date; give every row a time"
        )
    known = len(offsets) - offsets.null_count()
    if 0 < known < len(offsets):
        raise InvalidInputError("time: only some times name a zone; write all with, or without")
    if known:
        micros -= _to_micros(offsets)
        if zone is None and _several(offsets):
            raise InvalidInputError(f"time: the times have several zones; give {_ZONE_HINT}")
        aware = True
    if aware:
        return micros, "instants"
    if not (micros % (DAY * 10**6)).any():  # dates
        return micros, "dates"
    if zone is None:
        raise InvalidInputError(f"time: the times have no zone; give {_ZONE_HINT}")
    stamps = pl.Series(micros).cast(pl.Datetime("us"))
    moments = stamps.dt.replace_time_zone(_get(zone), ambiguous="earliest", non_existent="null")
    return moments.fill_null(strategy="forward").cast(pl.Int64).to_numpy(), "instants"


def _parse_unix(given: pl.Series) -> tuple[Ints, Kind]:
    """Return Unix times, or seconds from any start, in microseconds."""
    sizes = np.abs(given.cast(pl.Float64).to_numpy())
    if not np.isfinite(sizes).all() or sizes.max() >= 2**63:
        raise InvalidInputError("time: a time is not finite; give Unix times or ISO strings")
    units = [_find_unit(float(size)) for size in (sizes.min(), sizes.max())]
    relative = sizes.max() < _FIRST_TIME
    if units[0] != units[1] or (not relative and sizes.min() < _FIRST_TIME):
        least, most = given[int(sizes.argmin())], given[int(sizes.argmax())]
        raise InvalidInputError(
            f"time: {least} and {most} are not in the same unit; write all times in one unit, and "
            "give every row a time"
        )
    if relative and sizes.min() >= _FIRST_TIME // 10:
        raise InvalidInputError(
            f"time: {given[0]} is neither a Unix time nor seconds from a start; write dates as "
            "2026-05-01"
        )
    if given.dtype.is_integer():
        numbers = given.cast(pl.Int64).to_numpy()
        scaled = numbers // 1000 if units[1] < 1 else numbers * int(units[1])
    else:
        scaled = np.round(given.to_numpy().astype(np.float64) * units[1]).astype(np.int64)
    return scaled, "seconds" if relative else "instants"


def _find_unit(size: float) -> float:
    return next(scale for least, scale in _UNITS if size >= least)


def _parse_iso(given: pl.Series, text: pl.Series) -> pl.Series:
    """Return the local times that ISO strings denote, whatever their offset."""
    local = text.str.replace(rf"({_CLOCK})\s*(?:z|utc|gmt|[+-]\d\d(?::?\d\d)?)$", "${1}")
    local = local.str.replace("t", " ").str.replace(r"(:\d\d),(\d+)", "${1}.${2}")
    local = local.str.replace(r"^(\d{4}-\d\d-\d\d)$", "${1} 00:00")
    local = local.str.replace(r"^(\S+ \d\d:\d\d)$", "${1}:00")
    parsed = local.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False)
    if parsed.null_count():
        wrong = given.filter(parsed.is_null())[0]
        raise InvalidInputError(
            f"time: {wrong!r:.60} is not a time; write 2026-05-01 or 2026-05-01T13:00:00Z, or Unix "
            "times"
        )
    return parsed


def _to_micros(offsets: pl.Series) -> Ints:
    """Return how far ahead of UTC times with these offsets are, in microseconds."""
    digits = offsets.str.replace_all(":", "").str.replace("^[a-z]+$", "+0000")
    minutes = digits.str.slice(1, 2).cast(pl.Int64) * 60
    minutes += digits.str.slice(3, 2).cast(pl.Int64, strict=False).fill_null(0)
    signs = digits.str.starts_with("-").cast(pl.Int64) * -2 + 1
    return np.asarray((minutes * signs * 60_000_000).to_numpy())


def _several(offsets: pl.Series) -> bool:
    return len(np.unique(_to_micros(offsets.unique()))) > 1


def _is_date(column: pl.Series) -> bool:
    first = column.drop_nulls().head(1).str.strip_chars().str.contains(r"^\d{4}-\d\d-\d\d")
    return bool(first.any())


def _get(zone: str) -> str:
    """Return the name of a time zone; raise InvalidInputError if there is none of this name."""
    try:
        datetime.now(ZoneInfo(zone))
    except (KeyError, ValueError, OSError):
        raise InvalidInputError(f"time_zone: {zone!r} is no time zone; give {_ZONE_HINT}") from None
    return zone
