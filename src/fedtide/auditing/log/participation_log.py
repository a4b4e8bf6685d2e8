"""A participation log in memory, indexed by round and by client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from fedtide.auditing.log.refusals import Refusals
from fedtide.errors import InvalidInputError, printable
from fedtide.randomness import generator

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Number = TypeVar("Number", bound=np.number[Any])

MAX_ROUNDS = 20_000_000
"""From the first to the last round of a log."""

MIN_REPEATS = 10
"""With fewer participations by clients that had taken part before, a log does not show how the
rounds of one client depend on each other."""

_CHUNK = 8_000_000
"""Entries per chunk; bounds the size of temporaries."""


@dataclass(frozen=True, eq=False)
class ParticipationLog:
    """N clients, T rounds, and E entries "client n took part in round t".

    Entries are stored in both orders, 8 bytes each, so that a statistic over rounds and a statistic
    over clients each take one pass.

    Args:
        names: the clients' ids, shape (N,), including clients that never took part.
        first_round: the number of the first round in the source; rounds here count from 0.
        starts: the entries of round t are starts[t]..starts[t + 1] of `clients`, shape (T + 1,).
        clients: the index in `names` of each entry's client, by round, shape (E,).
        client_starts: the entries of client n are client_starts[n]..client_starts[n + 1] of
            `rounds`, shape (N + 1,).
        rounds: the rounds of each client, ascending, shape (E,).
        weights: the participation weight q_t^n of each entry, by round, (E,); None if not recorded.
            Recorded sample counts are normalised within each round.
        samples: the sample count that each client declares, (N,), NaN where the log has none; the
            mean if a client declares several. None: the log has no sample counts.
        available: the entries "client n was available in round t", for the same clients and rounds;
            None unless the log has rows of the stage "available". These are the clients known to be
            available: those that reached any stage.
        selected: likewise for "client n was asked to train"; None unless the log has rows of the
            stage "selected" or "reported", without which it does not distinguish the clients that
            were selected from those that were used.
        reported: likewise for "client n sent an update"; None unless the log has rows of the stage
            "reported".
        complete: whether `names` are all clients of the federation, and not only those of the log.
        refusals: why clients were left out of rounds; None: the log gives no reason.
        updates: of a ledger, for each client the mean factor with which its updates entered the
            steps (step_weight), and the median of their norms (norm); None: unknown.
        weightless: how many rows do not count as participation because their weight is 0.
        notes: facts about how the log was read, one sentence each.
    """

    names: pl.Series
    first_round: int
    starts: Ints
    clients: NDArray[np.int32]
    client_starts: Ints
    rounds: NDArray[np.int32]
    weights: NDArray[np.float32] | None = None
    samples: Floats | None = None
    available: ParticipationLog | None = None
    selected: ParticipationLog | None = None
    reported: ParticipationLog | None = None
    complete: bool = True
    refusals: Refusals | None = None
    updates: pl.DataFrame | None = None
    weightless: int = 0
    notes: tuple[str, ...] = ()

    def show_name(self, n: int) -> str:
        """Return the name of the client at a position, for people: printable and not too long."""
        return printable(str(self.names[int(n)]), most=80)

    def of_clients(self, values: NDArray[Any], chosen: Ints) -> NDArray[Any]:
        """Return the values of these clients, one after the other.

        Args:
            values: one for each entry, ordered by client as `rounds` is, (E,).
            chosen: positions of clients, (C,); if these are all clients, ascending.
        """
        if len(chosen) == self.size:
            return values
        bounds = self.client_starts
        return np.concatenate([values[bounds[n] : bounds[n + 1]] for n in chosen])

    def mark_clients(self, seed: int = 0) -> Floats:
        """Return a number for each client that depends on the rounds of its entries alone, (N,).

        It is the sum of a random number for each of these rounds, so that two clients have the same
        only if they have the same rounds.
        """
        marks = generator(seed, "audit-replay-order").random(self.length)
        of_entries = np.repeat(marks, self.cohorts)
        return np.bincount(self.clients, of_entries, self.size).astype(np.float64, copy=False)

    def sample_clients(self, share: float, among: NDArray[np.bool_] | None = None) -> Ints:
        """Return a share of the clients that took part; all clients, ascending, if it is 1 or more.

        They are evenly spaced in an order that depends on their entries alone. So the sample, which
        has this order, depends neither on names nor on the order of rows, and it has both frequent
        and rare clients.

        Args:
            share: of the clients.
            among: the clients to choose from, a mask, (N,); None: all.
        """
        clients = np.arange(self.size) if among is None else np.flatnonzero(among)
        if round(share * len(clients)) >= len(clients):
            return clients
        kept = self.counts > 0 if among is None else among
        order = self._order[kept[self._order]]
        count = max(1, round(share * len(order)))
        return order[((np.arange(count) + 0.5) * len(order) / count).astype(np.int64)]

    @cached_property
    def _order(self) -> Ints:
        """The clients by their marks, which grow with their rounds, and by their weights, (N,)."""
        weights = None if self.weights is None else self.weights.astype(np.float64)
        sums = np.bincount(self.clients, weights, self.size)
        return np.lexsort((sums, self.mark_clients()))

    def sort_by_client(self, values: NDArray[Number]) -> NDArray[Number]:
        """Return values of the entries by round, (E,), ordered by client as `rounds` is."""
        by_round = sparse.csr_array((values, self.clients, self.starts), (self.length, self.size))
        ordered: NDArray[Number] = by_round.tocsc().data
        return ordered

    @classmethod
    def from_entries(
        cls,
        names: pl.Series,
        rounds: NDArray[np.integer],
        clients: NDArray[np.int32],
        span: tuple[int, int] | None = None,
        weights: NDArray[np.float32] | None = None,
    ) -> ParticipationLog:
        """Index entries given in any order.

        Args:
            names: the clients' ids, shape (N,).
            rounds: the round of each entry, shape (E,).
            clients: the index in `names` of each entry's client, (E,).
            span: first round and one past the last round; None: as far as the entries reach.
                Rounds without entries are empty rounds.
            weights: q_t^n of each entry, (E,); None if not recorded.

        Raises:
            InvalidInputError: no entries, too many rounds, or a client twice in a round.

        >>> log = ParticipationLog.from_entries(
        ...     pl.Series([7, 9]), np.array([4, 5, 5]), np.array([1, 0, 1], dtype=np.int32)
        ... )
        >>> log.length, log.first_round, log.counts
        (2, 4, array([1, 2]))
        """
        if len(rounds) == 0:
            raise InvalidInputError(
                "log: no client takes part in any round; give rows with the stage 'used'"
            )
        first, end = span or (int(rounds.min()), int(rounds.max()) + 1)
        length = end - first
        check_length(length)
        shifted: NDArray[np.int32] = (rounds - first).astype(np.int32, copy=False)
        if (shifted[1:] < shifted[:-1]).any():
            order = np.argsort(shifted, kind="stable")
            shifted, clients = shifted[order], clients[order]
            weights = None if weights is None else weights[order]
        starts = np.zeros(length + 1, dtype=np.int64)
        np.cumsum(np.bincount(shifted, minlength=length), out=starts[1:])
        # CSR to CSC is a counting sort: linear time, and each client's rounds stay ascending.
        # 32-bit offsets, where they suffice, make SciPy use 32-bit indices too.
        offsets = starts.astype(np.int32) if starts[-1] < 2**31 else starts
        ones = np.ones(len(clients), dtype=np.int8)
        by_client = sparse.csr_array((ones, clients, offsets), shape=(length, len(names))).tocsc()
        client_starts = by_client.indptr.astype(np.int64)
        log = cls(names, first, starts, clients, client_starts, by_client.indices, weights)
        log._check_unique()
        return log

    @property
    def size(self) -> int:
        """The number of clients, N."""
        return len(self.client_starts) - 1

    @property
    def length(self) -> int:
        """The number of rounds, T."""
        return len(self.starts) - 1

    @cached_property
    def cohorts(self) -> Ints:
        """The cohort size |S_t| of each round, shape (T,)."""
        return np.diff(self.starts)

    @cached_property
    def counts(self) -> Ints:
        """The number of rounds each client took part in, shape (N,)."""
        return np.diff(self.client_starts)

    @cached_property
    def cohort_weights(self) -> Floats:
        """1 / |S_t|, shape (T,); 0 in empty rounds."""
        return np.where(self.cohorts > 0, 1 / np.maximum(self.cohorts, 1), 0.0)

    @property
    def repeats(self) -> int:
        """The number of participations by clients that had taken part before."""
        return len(self.clients) - int(np.count_nonzero(self.counts))

    @cached_property
    def nonempty_rounds(self) -> int:
        """The number of rounds with at least one participant, T⁺."""
        return int((self.cohorts > 0).sum())

    def leave_out_idle(self, cycle: int = 1) -> tuple[ParticipationLog, Ints]:
        """Return the log without empty rounds, and the rounds that it keeps.

        A round without participants moves no model, so means over the other rounds must not depend
        on how many empty ones there are. The result has no stages below "used".

        Args:
            cycle: of consecutive empty rounds, multiples of this number are left out, so that every
                other round keeps its place in a cycle of this length.

        >>> rounds, clients = np.array([0, 1, 5, 6]), np.zeros(4, dtype=np.int32)
        >>> log = ParticipationLog.from_entries(pl.Series(["ann"]), rounds, clients)
        >>> busy, kept = log.leave_out_idle()
        >>> busy.length, busy.rounds, kept
        (4, array([0, 1, 2, 3], dtype=int32), array([0, 1, 5, 6]))
        >>> log.leave_out_idle(cycle=2)[0].rounds
        array([0, 1, 3, 4], dtype=int32)
        """
        busy = np.flatnonzero(self.cohorts)
        edges = np.concatenate([[-1], busy, [self.length]])
        idle = np.diff(edges) - 1
        idle = idle // cycle * cycle
        if not idle.any():
            return self, np.arange(self.length)
        starts = edges[:-1] + 1
        dropped = np.repeat(starts - np.cumsum(idle) + idle, idle) + np.arange(idle.sum())
        kept = np.delete(np.arange(self.length), dropped)
        place = np.zeros(self.length, dtype=np.int32)
        place[kept] = np.arange(len(kept), dtype=np.int32)
        log = replace(
            self,
            starts=np.append(self.starts[kept], self.starts[-1]),
            rounds=place[self.rounds],
            available=None,
            selected=None,
            reported=None,
        )
        return log, kept

    def usual_span(self, busy: int) -> int:
        """Return the median span, in rounds, of `busy` successive rounds with participants."""
        rounds = np.flatnonzero(self.cohorts)
        some = min(busy, len(rounds))
        return int(np.median(rounds[some - 1 :] - rounds[: len(rounds) - some + 1])) + 1

    def iter_client_chunks(self, most: int | None = None) -> Iterator[tuple[slice, slice, Ints]]:
        """Iterate over consecutive clients: (clients, their entries, where each client starts).

        Args:
            most: the largest number of clients at a time; None: as many as bounded memory allows.
        """
        low = 0
        while low < self.size:
            end = self.client_starts[low] + _CHUNK
            high = int(np.searchsorted(self.client_starts, end, side="right")) - 1
            high = min(max(high, low + 1), low + (most or self.size), self.size)
            bounds = self.client_starts[low : high + 1]
            yield slice(low, high), slice(int(bounds[0]), int(bounds[-1])), bounds - bounds[0]
            low = high

    def indicators(self, clients: Ints) -> NDArray[np.float32]:
        """Return the 0/1 participation series of these clients, shape (len(clients), T)."""
        table = np.zeros((len(clients), self.length), dtype=np.float32)
        for row, n in enumerate(clients):
            table[row, self.rounds[self.client_starts[n] : self.client_starts[n + 1]]] = 1
        return table

    def _check_unique(self) -> None:
        """Raise InvalidInputError if a client has two entries in one round."""
        for _, entries, starts in self.iter_client_chunks():
            gaps = find_gaps(self.rounds[entries], starts, first=1)
            if not gaps.all():
                entry = entries.start + int(gaps.argmin())
                n = int(np.searchsorted(self.client_starts, entry, side="right")) - 1
                t = self.first_round + int(self.rounds[entry])
                raise repeated_client(self.names[n], t)


def check_length(rounds: int) -> None:
    """Raise InvalidInputError if a log has too many rounds from the first to the last."""
    if rounds > MAX_ROUNDS:
        raise InvalidInputError(
            f"round: the log spans {rounds:,} rounds, and an audit reads at most "
            f"{MAX_ROUNDS:,}; audit a part of it"
        )


def find_gaps(rounds: NDArray[np.int32], starts: Ints, first: int = 0) -> NDArray[np.int32]:
    """Return how many rounds after the client's previous entry each entry is, shape (E,).

    Args:
        rounds: the rounds of consecutive clients, ascending within each, (E,).
        starts: where each client starts, and the end, (C + 1,).
        first: the gap of a client's first entry.

    >>> find_gaps(np.array([3, 4, 9, 0, 2], dtype=np.int32), np.array([0, 3, 3, 5]))
    array([0, 1, 5, 0, 2], dtype=int32)
    """
    gaps = np.diff(rounds, prepend=rounds[:1])
    gaps[find_first_entries(starts)] = first
    return gaps


def find_first_entries(starts: Ints) -> Ints:
    """Return the first entry of each client that has one; `starts` as in `find_gaps`."""
    return starts[:-1][starts[1:] > starts[:-1]]


def repeated_client(client: int | str, t: int) -> InvalidInputError:
    """Return the error of a client that is twice at the same stage of round t."""
    return InvalidInputError(
        f"client: {client!r} appears twice in round {t}; keep one row for each client and round, "
        "or one for each stage that it reached; if several runs are in the log, audit each alone; "
        "if several sites use the same ids, put the name of the site before them"
    )
