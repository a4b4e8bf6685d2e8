"""The numbers of rounds: whether they are rounds at all, and how far one is from the next."""

from __future__ import annotations

from datetime import UTC, datetime
from math import gcd

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError

_TIME_HINT = (
    "if these are times, give the length of a round in seconds with --round-seconds; otherwise "
    "name the column of round numbers with --columns round=NAME"
)
_FIRST_TIME = 100_000_000
"""No training has so many rounds; a Unix time in seconds does since 1973."""

_FIRST_DATE, _LAST_DATE = 19_700_101, 21_001_231
_MAX_GAP = 100
_EVEN_ROUNDS, _COMMON_ROUNDS = 4, 10


def find_step(rounds: NDArray[np.integer]) -> int:
    """Return how far the number of one round is from the next: the g of 0, g, 2g, ...

    It is more than 1 only if all rounds are a multiple of g from the first one, and there are ten
    different ones, or four without a gap. Fewer may be rounds between which nobody took part.

    Args:
        rounds: of all rows, shape (E,).

    >>> find_step(np.array([5, 12, 19, 26, 26]))
    7
    """
    if not len(rounds):
        return 1
    numbers = _list_rounds(rounds)
    step = gcd(*np.unique(np.diff(numbers)).tolist())
    even = step > 1 and (numbers[-1] - numbers[0]) // step == len(numbers) - 1
    enough = len(numbers) >= (_EVEN_ROUNDS if even else _COMMON_ROUNDS)
    return step if step > 1 and enough else 1


def reject_times(rounds: NDArray[np.integer]) -> None:
    """Raise InvalidInputError if these are no round numbers: Unix times, dates, or seconds.

    Raises:
        InvalidInputError: numbers from 100 million on; dates like 20260501; more than a hundred
            times as many rounds from first to last as different ones.
    """
    if not len(rounds):
        return
    first, last = int(rounds.min()), int(rounds.max())
    if first >= _FIRST_TIME:
        raise InvalidInputError(f"round: {first} looks like a Unix time, not a round; {_TIME_HINT}")
    if first >= _FIRST_DATE and last <= _LAST_DATE and _are_dates(_list_rounds(rounds)):
        raise InvalidInputError(
            f"round: {first} looks like a date, not a round; write dates as "
            f"{str(first)[:4]}-{str(first)[4:6]}-{str(first)[6:]} and give --round-seconds 86400"
        )
    length = last - first + 1
    if length <= 10_000:
        return
    numbers = _list_rounds(rounds)
    step = find_step(rounds)
    if length > _MAX_GAP * step * len(numbers):
        raise InvalidInputError(
            f"round: the log has rows of {len(numbers):,} of {length:,} rounds, so they look like "
            f"times; {_TIME_HINT}; --round-step 1 takes them as they are"
        )


def describe_time(nanoseconds: int) -> str:
    """Return a time as text: a date, or seconds if it is relative.

    >>> describe_time(1_767_225_600 * 10**9), describe_time(30 * 10**9)
    ('2026-01-01T00:00:00Z', '30 s')
    """
    seconds = nanoseconds / 1e9
    if abs(seconds) < _FIRST_TIME:
        return f"{seconds:g} s"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _list_rounds(rounds: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the different rounds, ascending."""
    first, length = int(rounds.min()), int(rounds.max()) - int(rounds.min()) + 1
    if length > 100 * len(rounds) + 1_000_000:
        return np.unique(rounds).astype(np.int64)
    present = np.zeros(length, dtype=np.bool_)
    for low in range(0, len(rounds), 1 << 22):  # bounds the temporaries
        present[rounds[low : low + (1 << 22)] - first] = True
    return np.flatnonzero(present) + first


def _are_dates(numbers: NDArray[np.int64]) -> bool:
    try:
        for number in numbers.tolist():
            datetime.strptime(str(number), "%Y%m%d")
    except ValueError:
        return False
    return True
