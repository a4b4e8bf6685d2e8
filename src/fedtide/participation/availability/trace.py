"""Availability from an observed trace of time intervals."""

from __future__ import annotations

from fractions import Fraction
from logging import getLogger
from pathlib import Path
from typing import Annotated

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError
from fedtide.participation.availability.base import (
    Availability,
    AvailabilityStream,
    AvailableClients,
    Ids,
    IndependentStream,
)
from fedtide.participation.log.client_ids import normalise_clients, number_clients
from fedtide.participation.log.tables import (
    MemoryTable,
    describe_table,
    require_columns,
    to_polars,
)
from fedtide.population import Population
from fedtide.spec import Positive, spec

_Times = NDArray[np.float64]

_logger = getLogger("fedtide")

_FIRST_DATE = 1e8  # seconds: over three years into a run, but below Unix times since 1973
_MAX_COUNTED_ROUNDS = 100_000  # counting these takes seconds


@spec
class Trace(Availability):
    """Clients are available in observed intervals of time.

    A client is available in round t if one of its intervals [start, end) contains the instant
    t · round_seconds; with `repeat`, that instant modulo the length of the trace.

    Instants are computed in decimal arithmetic, so that round 3 of 0.1 seconds is at 0.3 and lies
    in an interval that starts there, also if the file holds times in single precision. A round
    costs O(S + log E) for S available clients and E intervals of similar lengths (one search per
    power of 2 among the lengths).

    Args:
        file: Parquet, CSV or JSON lines, or a table in memory (a DataFrame of Polars, pandas or
            another library, or a list of rows), one row for each interval: client, start, end, in
            seconds from the start of the run. Clients are given by name if the data name them, else
            by id 0..N−1, or as N different strings, numbered in sorted order. Clients without an
            interval are never available. Empty intervals (start = end) are ignored.
        round_seconds: the time between two rounds, in seconds.
        repeat: whether the trace starts again when it is over: True, after the last end; a number,
            after that many seconds (such as 86400, a day); False: a run must end with the trace.

    Raises:
        InvalidInputError: seconds that are not above 0, an object that is not a table; in `begin`,
            a file that cannot be read, lacks a column or has no intervals; times that are missing,
            dates, not numbers, negative or not finite; an end before its start or beyond `repeat`;
            clients that do not fit the population.
    """

    file: str | Path | MemoryTable
    round_seconds: Annotated[float, Positive]
    repeat: Annotated[bool | float, Positive] = False

    def __post_init__(self) -> None:
        if not isinstance(self.file, str | Path):
            object.__setattr__(self, "file", to_polars("file", self.file))

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        clients, starts, ends = self._intervals(population)
        present = len(np.unique(clients))
        if 2 * present < population.clients:
            _logger.warning(
                "the trace in %s has intervals of %d of the %d clients; the others never take part",
                describe_table(self.file),
                present,
                population.clients,
            )
        return self._stream(clients, starts, ends)

    def _stream(self, clients: Ids, starts: _Times, ends: _Times) -> AvailabilityStream:
        step, period = _to_decimal(self.round_seconds), self._period(ends)
        intervals = IntervalIndex(clients, starts, ends)

        def draw(t: int) -> AvailableClients:
            instant = t * step if period is None else t * step % period
            return AvailableClients(intervals.clients_at(float(instant)))

        length = -(-_to_decimal(ends.max()) // step) if period is None else None
        return IndependentStream(draw, length)

    def known_rates(self, population: Population, seed: int) -> _Times | None:
        """Return the share of rounds in which each client is available, counted over one period.

        None (unknown) unless the trace repeats after a whole number of rounds, at most 100,000.
        """
        clients, starts, ends = self._intervals(population)
        step, period = _to_decimal(self.round_seconds), self._period(ends)
        if period is None or period % step or period / step > _MAX_COUNTED_ROUNDS:
            return None
        rounds = int(period / step)
        running = self._stream(clients, starts, ends)
        counts = np.zeros(population.clients)
        for t in range(rounds):
            counts[running.round(t).clients] += 1
        return counts / rounds

    def _period(self, ends: _Times) -> Fraction | None:
        """Return the seconds after which the trace starts again; None: never."""
        if self.repeat is False:
            return None
        period = ends.max() if self.repeat is True else self.repeat
        if ends.max() > period:
            raise InvalidInputError(
                f"repeat: {self.repeat} seconds are shorter than the trace ({ends.max()}); "
                "give at least its length"
            )
        return _to_decimal(period)

    def _intervals(self, population: Population) -> tuple[Ids, _Times, _Times]:
        """Return client, start and end of every nonempty interval."""
        frame = to_polars("file", self.file)
        require_columns("file", frame, ["client", "start", "end"], "rename the column")
        names = normalise_clients("file", frame["client"])
        starts, ends = _parse_times(frame["start"]), _parse_times(frame["end"])
        if (wrong := np.flatnonzero(ends < starts)).size:
            raise InvalidInputError(
                f"file: row {wrong[0] + 1:,} ends at {ends[wrong[0]]}, before its start; put the "
                "earlier time first"
            )
        ids = number_clients("file", names, population)
        lasting = starts < ends
        if not lasting.any():
            raise InvalidInputError(
                f"file: {describe_table(self.file)} has no rows with an end after the start; "
                "give one for each interval"
            )
        if (first := starts[lasting].min()) >= _FIRST_DATE:
            raise InvalidInputError(
                f"file: its times begin at {first:.0f} seconds, but the run begins at 0; subtract "
                "the first start from all times"
            )
        return ids[lasting], starts[lasting], ends[lasting]


class IntervalIndex:
    """Half-open intervals [start, end), searchable by instant in any order.

    Intervals are grouped by length, those of length [2^(k−1), 2^k) in one level, and sorted by
    start within a level. Those that contain the instant s start within (s − 2^k, s], and all that
    start after s − 2^(k−1) contain s. If starts are spread evenly, the share of scanned intervals
    without a match is therefore bounded.

    Args:
        clients: the client of each interval, (E,).
        starts: (E,).
        ends: (E,), each after its start.

    >>> intervals = IntervalIndex(np.array([4, 7]), np.array([0.0, 5.0]), np.array([6.0, 8.0]))
    >>> intervals.clients_at(5.0), intervals.clients_at(6.0)
    (array([4, 7]), array([7]))
    """

    def __init__(self, clients: Ids, starts: _Times, ends: _Times) -> None:
        _, exponents = np.frexp(ends - starts)
        order = np.lexsort((starts, exponents))
        self._clients = clients[order].astype(np.int32)
        self._starts = starts[order]
        self._ends = ends[order]
        exponents, first = np.unique(exponents[order], return_index=True)
        bounds = [*first.tolist(), len(order)]
        with np.errstate(over="ignore"):  # infinity is right above half the largest number
            longest = np.ldexp(1.0, exponents).tolist()
        self._levels = list(zip(longest, bounds, bounds[1:], strict=False))

    def clients_at(self, instant: float) -> Ids:
        """Return the clients with an interval that contains the instant, sorted."""
        found = [self._search(instant, *level) for level in self._levels]
        return np.unique(np.concatenate([np.empty(0, dtype=np.int32), *found])).astype(np.int64)

    def _search(self, instant: float, longest: float, low: int, high: int) -> NDArray[np.int32]:
        starts = self._starts[low:high]
        left = low + int(np.searchsorted(starts, instant - longest, side="left"))
        right = low + int(np.searchsorted(starts, instant, side="right"))
        return self._clients[left:right][self._ends[left:right] > instant]


def _to_decimal(seconds: float) -> Fraction:
    """Return `seconds` as the exact value of its shortest decimal notation."""
    return Fraction(str(seconds))


def _parse_times(column: pl.Series) -> _Times:
    """Return a column of times as numbers of at least 0."""
    if column.dtype.is_numeric() or column.dtype == pl.String:
        values = column
        if column.dtype.is_float() and column.dtype != pl.Float64:
            values = column.cast(pl.String)  # the decimal that is meant, such as 0.3
        times = values.cast(pl.Float64, strict=False).to_numpy()
    else:  # such as dates, which Polars would convert
        times = np.full(len(column), np.nan)
    if (wrong := np.flatnonzero(~np.isfinite(times) | (times < 0))).size:
        (value,) = column[int(wrong[0]) : int(wrong[0]) + 1].to_list()
        raise InvalidInputError(
            f"file: {column.name} in row {wrong[0] + 1:,} is {value!r:.60}; give seconds from the "
            "start of the run"
        )
    return times
