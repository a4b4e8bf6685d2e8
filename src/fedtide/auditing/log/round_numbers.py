"""The numbers of rounds: whether they are rounds at all, and how far one is from the next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.auditing.log.columns import name_columns
from fedtide.auditing.log.participation_log import MAX_ROUNDS
from fedtide.errors import InvalidInputError

_COLUMN_HINT = f"name the column of round numbers with {name_columns({'round': 'NAME'})}"
_TIME_HINT = (
    "if these are times, give the length of a round in seconds with round_seconds= or "
    f"--round-seconds; otherwise {_COLUMN_HINT}"
)
_KEEP_HINT = "round_step=1 or --round-step 1 takes them as they are"
_FIRST_TIME = 100_000_000
"""No training has this many rounds; Unix times in seconds have exceeded it since 1973."""

_FIRST_DATE, _LAST_DATE = 19_700_101, 21_001_231
_FIRST_MONTH, _LAST_MONTH = 197_001, 210_053
_WEEKS = 53
"""The most weeks in a year; a week may take the place of the month."""
_RECENT_TIME = 1_000_000_000
"""No log with relative times is this long, in seconds; Unix times have exceeded it since 2001."""

_MAX_GAP = 100
_FEW_ROUNDS = 10_000
_EVEN_ROUNDS, _COMMON_ROUNDS = 4, 10


def find_step(rounds: NDArray[np.integer]) -> int:
    """Return the difference between the numbers of consecutive rounds: the g of 0, g, 2g, ...

    It is more than 1 only if all rounds are multiples of g after the first one, and there are ten
    different ones, or four without a gap. With fewer, the rounds between may have been empty.

    Args:
        rounds: of all rows, shape (E,).

    >>> find_step(np.array([5, 12, 19, 26, 26]))
    7
    """
    numbers = _list_rounds(rounds)
    step = gcd(*np.unique(np.diff(numbers)).tolist())
    even = step > 1 and (numbers[-1] - numbers[0]) // step == len(numbers) - 1
    enough = len(numbers) >= (_EVEN_ROUNDS if even else _COMMON_ROUNDS)
    return step if step > 1 and enough else 1


def reject_times(rounds: NDArray[np.integer]) -> None:
    """Raise InvalidInputError if these are no round numbers: Unix times, dates, or seconds.

    Raises:
        InvalidInputError: numbers from 100 million on; dates like 20260501; months or weeks like
            202612 of several years; a span of more than a hundred times as many rounds as have
            rows.
    """
    first, last = int(rounds.min()), int(rounds.max())
    if first >= _FIRST_TIME:
        raise InvalidInputError(
            f"round: {first} looks like a Unix time, not a round; {_TIME_HINT}; {_KEEP_HINT}"
        )
    if are_dates(rounds):
        raise InvalidInputError(
            f"round: {first} looks like a date, not a round; write dates as "
            f"{str(first)[:4]}-{str(first)[4:6]}-{str(first)[6:]}, and give round_seconds=86400 "
            "or --round-seconds 86400"
        )
    if first >= _FIRST_MONTH and last <= _LAST_MONTH:
        _reject_months(_list_rounds(rounds))
    length = last - first + 1
    if length <= _FEW_ROUNDS:
        return
    numbers = _list_rounds(rounds)
    step = find_step(rounds)
    if length > _MAX_GAP * step * len(numbers):
        raise InvalidInputError(
            f"round: only {len(numbers):,} of {length:,} rounds have rows, so they look like "
            f"times; {_TIME_HINT}; {_KEEP_HINT}"
        )


def _reject_months(numbers: NDArray[np.int64]) -> None:
    """Raise InvalidInputError if numbers like 202612 continue in another year, as 202701.

    >>> _reject_months(np.array([202611, 202612, 202701]))
    Traceback (most recent call last):
    fedtide.errors.InvalidInputError: round: 202612 and then 202701 look like years with a ...
    >>> _reject_months(np.array([202611, 202612, 202613, 202654, 202701]))
    """
    years, parts = np.divmod(numbers, 100)
    changes = np.flatnonzero(np.diff(years))
    if parts.min() < 1 or parts.max() > _WEEKS or not len(changes) or find_step(numbers) > 1:
        return
    before, after = numbers[changes[0] : changes[0] + 2]
    raise InvalidInputError(
        f"round: {before} and then {after} look like years with a month or week, not like rounds; "
        f"number the rounds one by one; {_KEEP_HINT}"
    )


def reject_gaps(rounds: NDArray[np.integer], nanoseconds: int) -> None:
    """Raise InvalidInputError if times leave nearly all rounds empty, as one wrong time does.

    Args:
        rounds: of all rows, as numbers of rounds since 1970 or the start of relative times.
        nanoseconds: the length of a round.

    Raises:
        InvalidInputError: times from before 1973 beside times after 2001; more than ten thousand
            rounds, of which fewer than one in a hundred has a row; too many rounds.
    """
    first, last = int(rounds.min()), int(rounds.max())
    reach = f"from {describe_time(first * nanoseconds)} to {describe_time(last * nanoseconds)}"
    if first * nanoseconds < _FIRST_TIME * 10**9 and last * nanoseconds >= _RECENT_TIME * 10**9:
        raise InvalidInputError(
            f"time: the rounds would reach {reach}, as if a missing time were written as a number "
            "or date; give every row its own time"
        )
    length, seconds = last - first + 1, f"{nanoseconds / 1e9:g} s"
    if length > MAX_ROUNDS:
        raise InvalidInputError(
            f"round_seconds: the times span {length:,} rounds of {seconds}; give longer rounds"
        )
    if length > _FEW_ROUNDS and length > _MAX_GAP * (filled := len(_list_rounds(rounds))):
        raise InvalidInputError(
            f"round_seconds: only {filled:,} of the {length:,} rounds of {seconds} {reach} have "
            "rows; correct a time that is far from the others, or give longer rounds"
        )


def are_dates(numbers: NDArray[Any]) -> bool:
    """Return whether all numbers are dates like 20260501.

    >>> are_dates(np.array([20260430, 20260501])), are_dates(np.array([20260430, 20260431]))
    (True, False)
    """
    if numbers.min() < _FIRST_DATE or numbers.max() > _LAST_DATE:
        return False
    try:
        for number in np.unique(numbers).tolist():
            datetime.strptime(str(number), "%Y%m%d")
    except ValueError:
        return False
    return True


def describe_time(nanoseconds: int) -> str:
    """Return a time as text: a date, or seconds if it is relative.

    >>> [describe_time(seconds * 10**9) for seconds in (1_767_225_600, -315_619_200, 30)]
    ['2026-01-01T00:00:00Z', '1960-01-01T00:00:00Z', '30 s']
    """
    seconds = nanoseconds / 1e9
    if abs(seconds) < _FIRST_TIME:
        return f"{seconds:g} s"
    # Not fromtimestamp(seconds): Windows has no times before 1970.
    time = datetime.fromtimestamp(0, UTC) + timedelta(seconds=seconds)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _list_rounds(rounds: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the different rounds, ascending."""
    first, length = int(rounds.min()), int(rounds.max()) - int(rounds.min()) + 1
    if length > 100 * len(rounds) + 1_000_000:
        return np.unique(rounds).astype(np.int64)
    present = np.zeros(length, dtype=np.bool_)
    for low in range(0, len(rounds), 1 << 22):  # bounds the temporaries
        present[rounds[low : low + (1 << 22)] - first] = True
    return np.flatnonzero(present) + first
