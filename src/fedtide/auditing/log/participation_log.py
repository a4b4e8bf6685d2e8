"""Who took part in which round, sorted by round and by client: what all of the audit reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from fedtide.errors import InvalidInputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MOST_ROUNDS = 20_000_000
_CHUNK = 8_000_000
"""How many entries are worked on at a time, so that no temporary is large."""


@dataclass(frozen=True, eq=False)
class ParticipationLog:
    """N clients, T rounds, and E entries "client n took part in round t".

    Both orders are kept, in 8 bytes an entry, so that a question about rounds and a question about
    clients each cost one pass.

    Args:
        names: the clients' ids, shape (N,), those who never came included.
        first: the number that the log gives to its first round; here rounds count from 0.
        starts: the entries of round t are starts[t]..starts[t + 1] of `clients`, shape (T + 1,).
        clients: the place in `names` of each entry's client, by round, shape (E,).
        begins: the entries of client n are begins[n]..begins[n + 1] of `rounds`, shape (N + 1,).
        rounds: the rounds of each client, rising, shape (E,).
        weights: q_t^n of each entry, by round, (E,), where the log has them.
    """

    names: pl.Series
    first: int
    starts: Ints
    clients: NDArray[np.int32]
    begins: Ints
    rounds: NDArray[np.int32]
    weights: NDArray[np.float32] | None = None

    @property
    def size(self) -> int:
        """N."""
        return len(self.begins) - 1

    @property
    def length(self) -> int:
        """T."""
        return len(self.starts) - 1

    @cached_property
    def cohorts(self) -> Ints:
        """|S_t|, shape (T,)."""
        return np.diff(self.starts)

    @cached_property
    def counts(self) -> Ints:
        """In how many rounds each client took part, shape (N,)."""
        return np.diff(self.begins)

    @cached_property
    def shares(self) -> Floats:
        """1 / |S_t|, shape (T,); 0 where nobody came."""
        return np.where(self.cohorts > 0, 1 / np.maximum(self.cohorts, 1), 0.0)

    @cached_property
    def held(self) -> int:
        """T⁺, in how many rounds somebody took part."""
        return int((self.cohorts > 0).sum())

    def by_client(self) -> Iterator[tuple[slice, slice, NDArray[np.int64]]]:
        """Go through the clients in chunks: (their places, their entries, where each begins)."""
        low = 0
        while low < self.size:
            high = int(np.searchsorted(self.begins, self.begins[low] + _CHUNK, side="right")) - 1
            high = min(max(high, low + 1), self.size)
            entries = slice(int(self.begins[low]), int(self.begins[high]))
            yield slice(low, high), entries, self.begins[low : high + 1] - self.begins[low]
            low = high

    def dense(self, chosen: Ints) -> NDArray[np.float32]:
        """Return the indicators of these clients, shape (len(chosen), T)."""
        table = np.zeros((len(chosen), self.length), dtype=np.float32)
        for row, n in enumerate(chosen):
            table[row, self.rounds[self.begins[n] : self.begins[n + 1]]] = 1
        return table


def attend(
    names: pl.Series,
    rounds: NDArray[np.integer],
    clients: NDArray[np.int32],
    span: tuple[int, int] | None = None,
    weights: NDArray[np.float32] | None = None,
) -> ParticipationLog:
    """Return the attendance of these entries.

    Args:
        names: the clients' ids, shape (N,).
        rounds: the round of each entry, in any order, shape (E,).
        clients: the place in `names` of its client, (E,).
        span: the first round that is covered and the one after the last; None: as the entries say.
            Rounds without entries count as rounds with nobody.
        weights: q_t^n of each entry, (E,); None: not known.

    Raises:
        InvalidInputError: no entries, a client twice in a round, or rounds that look like something else.

    >>> log = attend(pl.Series([7, 9]), np.array([4, 5, 5]), np.array([1, 0, 1], dtype=np.int32))
    >>> log.length, log.first, log.counts
    (2, 4, array([1, 2]))
    """
    if len(rounds) == 0:
        raise InvalidInputError(
            "log: nobody takes part in it; give a log with rows of the stage 'used'"
        )
    first, end = span or (int(rounds.min()), int(rounds.max()) + 1)
    length = end - first
    _refuse_long(length, len(rounds))
    counted: NDArray[np.int32] = (rounds - first).astype(np.int32, copy=False)
    if (counted[1:] < counted[:-1]).any():
        order = np.argsort(counted, kind="stable")
        counted, clients = counted[order], clients[order]
        weights = None if weights is None else weights[order]
    starts = _offsets(counted, length)
    # Turning rows into columns is a counting sort: linear, and it leaves the rounds rising.
    ones = np.ones(len(clients), dtype=np.int8)
    table = sparse.csr_array((ones, clients, _index(starts)), shape=(length, len(names))).tocsc()
    begins = table.indptr.astype(np.int64)
    log = ParticipationLog(names, first, starts, clients, begins, table.indices, weights)
    _refuse_repeated(log)
    return log


def _offsets(rounds: NDArray[np.int32], length: int) -> Ints:
    starts = np.zeros(length + 1, dtype=np.int64)
    np.cumsum(np.bincount(rounds, minlength=length), out=starts[1:])
    return starts


def _index(starts: Ints) -> NDArray[np.integer]:
    """Return the offsets in the narrow type that SciPy then uses for the indices as well."""
    return starts.astype(np.int32) if starts[-1] < 2**31 else starts


def _refuse_long(length: int, entries: int) -> None:
    if length > _MOST_ROUNDS or (length > 10_000 and length > 1000 * entries):
        raise InvalidInputError(
            f"round: {entries:,} rows over {length:,} rounds look like times, not rounds; "
            "name the column that counts rounds with --columns round=NAME"
        )


def _refuse_repeated(log: ParticipationLog) -> None:
    for _, entries, begins in log.by_client():
        rounds = log.rounds[entries]
        again = np.flatnonzero(rounds[1:] == rounds[:-1]) + 1
        again = again[~np.isin(again, begins)]
        if len(again):
            place = entries.start + int(again[0])
            n = int(np.searchsorted(log.begins, place, side="right")) - 1
            t = log.first + int(log.rounds[place])
            raise InvalidInputError(
                f"client: {log.names[n]!r} is twice in round {t}; keep one row, of the furthest "
                "stage"
            )
