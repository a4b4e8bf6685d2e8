"""Availability from an observed trace of time intervals."""

from __future__ import annotations

from fractions import Fraction
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
from fedtide.participation.availability.presence import Presence
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

_FIRST_DATE = 1e8  # seconds: over three years into a run, but below Unix times since 1973
_MAX_COUNTED_ROUNDS = 100_000  # counting these takes seconds


@spec
class Trace(Availability):
    """Clients are available in observed intervals of time.

    A client is available in round t if one of its intervals [start, end) contains the instant
    t · round_seconds; with `repeat`, that instant modulo the length of the trace.

    Instants are computed in decimal arithmetic, so that round 3 of 0.1 seconds is at 0.3 and lies
    in an interval that starts there, also if the file holds times in single precision. A round
    costs O(log E) and a look at the intervals that start within the longest length before it.

    With `timing`, the intervals are the clients' sessions, joined where they touch or overlap.

    Args:
        file: Parquet, CSV or JSON lines, or a table in memory (a DataFrame of Polars, pandas or
            another library, or a list of rows), one row for each interval: client, start, end, in
            seconds from the start of the run. Clients are given by name if the data name them, else
            by id 0..N−1, or as N different strings, numbered in sorted order. Clients without an
            interval are never available. Empty intervals (start = end) are ignored.
        round_seconds: the time between two rounds, in seconds; with `timing` it has no effect.
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
        return self._stream(*self._intervals(population))

    def presence(self, population: Population, seed: int) -> Presence:
        clients, starts, ends = _join_intervals(*self._intervals(population))
        given = self._period(ends)
        period = np.inf if given is None else float(given)
        everyone = np.arange(population.clients)
        first = np.searchsorted(clients, everyone)
        last = np.searchsorted(clients, everyone, side="right") - 1
        # Sessions that go on when the trace starts again: joined with the first, or for ever.
        present = np.flatnonzero(last >= first)
        goes_on = present[(ends[last[present]] == period) & (starts[first[present]] == 0)]
        is_one = first[goes_on] == last[goes_on]
        always, joined = goes_on[is_one], goes_on[~is_one]
        starts[first[always]], ends[last[always]] = -np.inf, np.inf
        ends[last[joined]] += ends[first[joined]]
        first[joined] += 1
        place, repeats = last.copy(), np.full(len(everyone), -1)  # before time 0

        def read(ids: Ids) -> tuple[_Times, _Times]:
            shift = np.zeros(len(ids))
            np.multiply(repeats[ids], period, out=shift, where=repeats[ids] != 0)
            return starts[place[ids]] + shift, ends[place[ids]] + shift

        def follow(ids: Ids) -> tuple[_Times, _Times]:
            is_over = place[ids] == last[ids]
            place[ids] = np.where(is_over, first[ids], place[ids] + 1)
            repeats[ids] += is_over
            return read(ids)

        begin, end = np.full((2, len(everyone)), np.inf)
        begin[present], end[present] = read(present)
        return Presence(begin, end, follow, is_endless=given is not None)

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

    They are sorted by start, so that only those that start at most the longest length before an
    instant are looked at.

    Args:
        clients: the client of each interval, (E,).
        starts: (E,).
        ends: (E,), each after its start.

    >>> intervals = IntervalIndex(np.array([4, 7]), np.array([0.0, 5.0]), np.array([6.0, 8.0]))
    >>> intervals.clients_at(5.0), intervals.clients_at(6.0)
    (array([4, 7]), array([7]))
    """

    def __init__(self, clients: Ids, starts: _Times, ends: _Times) -> None:
        order = np.argsort(starts, kind="stable")
        self._clients, self._starts, self._ends = clients[order], starts[order], ends[order]
        self._longest = float((ends - starts).max())

    def clients_at(self, instant: float) -> Ids:
        """Return the clients with an interval that contains the instant, sorted."""
        low = np.searchsorted(self._starts, instant - self._longest, side="left")
        high = np.searchsorted(self._starts, instant, side="right")
        return np.unique(self._clients[low:high][self._ends[low:high] > instant])


def _join_intervals(clients: Ids, starts: _Times, ends: _Times) -> tuple[Ids, _Times, _Times]:
    """Return the intervals sorted by client and start, joined where they touch or overlap.

    >>> _join_intervals(np.array([4, 4, 4]), np.array([0.0, 5.0, 2.0]), np.array([2.0, 6.0, 3.0]))
    (array([4, 4]), array([0., 5.]), array([3., 6.]))
    """
    rows = pl.DataFrame({"client": clients, "start": starts, "end": ends}).sort("client", "start")
    before = pl.col("end").cum_max().shift(1).over("client")
    session = (pl.col("start") > before).fill_null(True).cum_sum()
    found = (
        rows.with_columns(session.alias("session"))
        .group_by("session", maintain_order=True)
        .agg(pl.first("client", "start"), pl.max("end"))
    )
    joined = [found[name].to_numpy(writable=True) for name in ("client", "start", "end")]
    return joined[0], joined[1], joined[2]


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
