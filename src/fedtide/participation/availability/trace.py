"""AvailabilityStream as it was observed: intervals of time."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError
from fedtide.participation.availability._interval_index import Intervals
from fedtide.participation.availability.base import (
    Availability,
    AvailabilityStream,
    AvailableClients,
    Ids,
)
from fedtide.participation.log.client_ids import normalise_clients, numbered_clients
from fedtide.participation.log.tables import need_columns, read_table
from fedtide.population import Population
from fedtide.validation import numbers

_Times = NDArray[np.float64]

_MOST_ROUNDS = 100_000  # they are gone through in seconds


@dataclass(frozen=True)
class Trace(Availability):
    """Clients are available in observed intervals of time.

    A client is available in round t iff one of its intervals [start, end) holds the instant
    t · round_seconds; with `repeat`, that instant modulo the length of the trace.

    Instants are computed in decimal arithmetic, so that round 3 of 0.1 seconds is at 0.3 and hits
    an interval that starts there. A round costs O(S + log E) for S available clients and E
    intervals of similar lengths (a search for every power of 2 among the lengths).

    Args:
        file: Parquet, CSV or JSON lines, one row for each interval: client, start, end, in seconds
            from the start of the run. Clients that are whole numbers must be 0..N−1; strings are
            numbered in sorted order. Empty intervals (start = end) say nothing.
        round_seconds: how far apart two rounds are.
        repeat: begin again when the trace is over: True, after the last end; a number, after so
            many seconds (such as 86400, a day). False: the rounds after the last end have nobody.

    Raises:
        InvalidInputError: seconds that are not above 0; in `begin`, a file that cannot be read or lacks a
            column, times that are not finite or negative, an end before its start, intervals of
            one client that overlap (touching is fine), an end beyond `repeat`, clients that do not
            fit the population.
    """

    file: str | Path
    round_seconds: float
    repeat: bool | float = False

    def __post_init__(self) -> None:
        _positive("round_seconds", self.round_seconds)
        if not isinstance(self.repeat, bool):
            _positive("repeat", self.repeat)

    def begin(self, population: Population, seed: int) -> AvailabilityStream:
        """Return the running process."""
        clients, starts, ends = self._intervals(population.clients)
        step, period = self._step(), self._period(ends)
        length = None
        if period is None:
            length = -(-_decimal(ends.max(initial=0.0)) // step)
        return _Instants(Intervals(clients, starts, ends), step, period, length)

    def known_rates(self, population: Population, seed: int) -> _Times | None:
        """Return each client's share of the rounds where the trace repeats in whole rounds.

        It is counted over all rounds of the trace, and unknown where these are over 100,000.
        """
        period, step = self._period(self._intervals(population.clients)[2]), self._step()
        if period is None or period % step or period / step > _MOST_ROUNDS:
            return None
        rounds = int(period / step)
        running = self.begin(population, seed)
        counts = np.zeros(population.clients)
        for t in range(rounds):
            counts[running.round(t).clients] += 1
        return counts / rounds

    def _step(self) -> Fraction:
        return _decimal(self.round_seconds)

    def _period(self, ends: _Times) -> Fraction | None:
        """Return after how many seconds the trace begins again; None: never."""
        if self.repeat is False or not len(ends):
            return None
        period = ends.max() if self.repeat is True else self.repeat
        if ends.max() > period:
            raise InvalidInputError(
                f"repeat: {self.repeat} seconds end before the trace does ({ends.max()}); "
                "give at least as many"
            )
        return _decimal(period)

    def _intervals(self, clients: int) -> tuple[Ids, _Times, _Times]:
        """Return client, start and end of every interval that is not empty, ordered by client."""
        frame = read_table("file", self.file)
        need_columns("file", frame, ["client", "start", "end"], "name them like that")
        names = normalise_clients("file", frame["client"])
        starts, ends = _seconds(frame["start"]), _seconds(frame["end"])
        _refuse_reversed(names, starts, ends)
        ids = numbered_clients("file", names, clients)
        order = np.lexsort((starts, ids))
        order = order[starts[order] < ends[order]]
        ids, starts, ends = ids[order], starts[order], ends[order]
        _refuse_overlaps(names.gather(order), ids, starts, ends)
        return ids, starts, ends


class _Instants(AvailabilityStream):
    def __init__(
        self, intervals: Intervals, step: Fraction, period: Fraction | None, length: int | None
    ) -> None:
        self._intervals = intervals
        self._step = step
        self._period = period
        self.length = length

    def round(self, t: int) -> AvailableClients:
        instant = t * self._step
        if self._period is not None:
            instant %= self._period
        return AvailableClients(self._intervals.at(float(instant)))


def _decimal(seconds: float) -> Fraction:
    """Return the number that the shortest decimal notation of `seconds` says."""
    return Fraction(str(seconds))


def _positive(field: str, seconds: float) -> None:
    if numbers(field, [seconds])[0] <= 0:
        raise InvalidInputError(f"{field}: {seconds} is not above 0; give seconds")


def _seconds(column: pl.Series) -> _Times:
    """Return a column of times as numbers of at least 0."""
    times = numbers("file", column.cast(pl.Float64, strict=False).to_numpy())
    if len(times) and times.min() < 0:
        raise InvalidInputError(
            f"file: {column.name} {times.min()} is before the start; count seconds from the first"
        )
    return times


def _refuse_reversed(names: pl.Series, starts: _Times, ends: _Times) -> None:
    reversed_rows = np.flatnonzero(ends < starts)
    if len(reversed_rows):
        row = int(reversed_rows[0])
        raise InvalidInputError(
            f"file: client {names[row]!r} has an interval from {starts[row]} to {ends[row]}; "
            "put the earlier time first"
        )


def _refuse_overlaps(names: pl.Series, ids: Ids, starts: _Times, ends: _Times) -> None:
    overlaps = np.flatnonzero((ids[1:] == ids[:-1]) & (starts[1:] < ends[:-1]))
    if len(overlaps):
        row = int(overlaps[0])
        raise InvalidInputError(
            f"file: client {names[row]!r} has an interval until {ends[row]} and another from "
            f"{starts[row + 1]}; merge them"
        )
