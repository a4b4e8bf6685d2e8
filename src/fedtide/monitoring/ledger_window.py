"""A rolling window over a ledger: its last rounds in full, all rounds in totals."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError
from fedtide.participation.log.schema import CLAIMED, STAGES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

USED, REPORTED = STAGES.index("used"), STAGES.index("reported")
LATENESS_BOUNDS = (0, 1, 2, 5, 10, 20)
"""Upper bounds of the histogram of lateness, in rounds."""

_UNKNOWN = "unknown"  # the reason of a reply that was not used, in a ledger of version 1


@dataclass(frozen=True, eq=False)
class Round:
    """One round of a ledger, its rows as columns of one length.

    Args:
        number: t.
        time: when it ended, in seconds since 1970.
        clients: the number of each row's client.
        stages: the furthest stage that the client reached, as an index in STAGES; −1: it was not
            there, but another node claimed its name.
        weights: q_t^n; NaN: none.
        step_weights: the factors with which updates entered the step; NaN: unknown.
        norms: of the updates; NaN: unknown.
    """

    number: int
    time: float
    clients: Ints
    stages: Ints
    weights: Floats
    step_weights: Floats
    norms: Floats

    def reached(self, stage: int) -> Ints:
        """Return the clients that reached a stage."""
        return self.clients[self.stages >= stage]

    def count_stages(self) -> Ints:
        """Return how many clients reached each stage, shape (4,)."""
        return np.array([len(self.reached(stage)) for stage in range(len(STAGES))])


@dataclass(eq=False)
class ClientTotals:
    """Totals of each client over all rounds, arrays of shape (N,).

    A client is seen in a round in which it has a row, at whatever stage.

    Args:
        first: the first round in which it was seen; −1: none.
        last: the last one; −1: none.
        returns: k, how often it was seen after the first time.
        era: e of the last silence that ended, in a round t with 2^e <= t < 2^(e+1).
        peak: the highest score x of its silences that ended in that era, see `Visits.find_limits`.
        former_peak: the same for the era before.
        seen_at: the time of its last row, in seconds since 1970; NaN: unknown.
        unused: how many of its updates were not used, for whatever reason.
    """

    first: Ints
    last: Ints
    returns: Ints
    era: Ints
    peak: Floats
    former_peak: Floats
    seen_at: Floats
    unused: Ints

    @classmethod
    def empty(cls, clients: int) -> ClientTotals:
        """Return the totals of clients that were never seen."""
        never, none = np.full(clients, -1, dtype=np.int64), np.zeros(clients, dtype=np.int64)
        return cls(
            first=never,
            last=never.copy(),
            returns=none,
            era=none.copy(),
            peak=np.zeros(clients),
            former_peak=np.zeros(clients),
            seen_at=np.full(clients, np.nan),
            unused=none.copy(),
        )

    def extend(self, clients: int) -> None:
        """Add clients that were never seen until there are so many."""
        added = ClientTotals.empty(clients - len(self.first))
        for name, values in vars(self).items():
            setattr(self, name, np.concatenate([values, vars(added)[name]]))

    def add(self, clients: Ints, t: int, times: Floats, unused: Ints) -> None:
        """Add the rows of round t."""
        again = clients[self.first[clients] >= 0]
        self._end_silences(again[self.last[again] < t - 1], t)
        self.returns[again] += 1
        self.first[clients] = np.where(self.first[clients] < 0, t, self.first[clients])
        self.last[clients], self.seen_at[clients] = t, times
        self.unused[unused] += 1

    def find_peaks(self, t: int) -> Floats:
        """Return the highest score of each client's silences that ended lately, (N,); 0: none.

        Lately means since round 2^(e-1), if 2^e <= t < 2^(e+1): at least the last half of the
        rounds. So habits may change, and a round costs no time for clients that are not there.
        """
        passed = _era(t) - self.era
        current = np.where(passed == 0, np.maximum(self.peak, self.former_peak), self.peak)
        return np.where(passed <= 1, current, 0.0)

    def _end_silences(self, clients: Ints, t: int) -> None:
        """Score the silences that end in round t with the return of these clients."""
        known = np.maximum(self.last[clients] - self.first[clients], 1)
        score = self.returns[clients] * np.log((t - 1 - self.first[clients]) / known)
        passed, peak = _era(t) - self.era[clients], self.peak[clients]
        former = np.where(passed == 1, peak, 0.0)
        self.former_peak[clients] = np.where(passed == 0, self.former_peak[clients], former)
        self.peak[clients] = np.maximum(score, np.where(passed == 0, peak, 0.0))
        self.era[clients] = _era(t)


def _era(t: int) -> int:
    return t.bit_length() - 1


@dataclass(eq=False)
class LedgerCounts:
    """Totals of the federation as a whole, over all rounds of a ledger.

    Args:
        ended: the number of rounds that have ended: that of the last one, plus 1.
        updated_at: the end of the last round in which an update was used; NaN: none.
        stages: how many (round, client) pairs reached each stage, shape (4,).
        reasons: how many updates were not used, by reason.
        lateness: how many replies came how many rounds late, each counted at the smallest of
            LATENESS_BOUNDS that it does not exceed, else at the end, shape (7,).
        rounds_late: the rounds by which all replies were late, in total.
    """

    ended: int = 0
    updated_at: float = math.nan
    stages: Ints = field(default_factory=lambda: np.zeros(len(STAGES), dtype=np.int64))
    reasons: Counter[str] = field(default_factory=Counter)
    lateness: Ints = field(
        default_factory=lambda: np.zeros(len(LATENESS_BOUNDS) + 1, dtype=np.int64)
    )
    rounds_late: int = 0

    def add(self, added: Round, lateness: Ints, reasons: Iterable[str]) -> None:
        """Add a round.

        Args:
            added: the round.
            lateness: how many rounds late the reply of each row came; −1: no reply came.
            reasons: why updates were not used.
        """
        self.ended = added.number + 1
        if (added.stages == USED).any():
            self.updated_at = added.time
        self.stages += added.count_stages()
        self.reasons.update(reasons)
        late = lateness[lateness >= 0]
        bins = np.searchsorted(LATENESS_BOUNDS, late)
        self.lateness += np.bincount(bins, minlength=len(self.lateness))
        self.rounds_late += int(late.sum())


class LedgerWindow:
    """The last W rounds of a ledger, and totals of all that were added.

    Args:
        length: W.
        names: of the clients that are known before they are seen.

    Attributes:
        names: of the clients, by number; newcomers are appended.
        rounds: the last W rounds.
        totals: of the clients.
        counts: of the federation as a whole.

    >>> window = LedgerWindow(length=2)
    >>> rounds = pl.DataFrame({"round": [0, 1], "time": [10.0, 20.0]})
    >>> rows = {"round": [0, 1], "client": ["ann", "bob"], "stage": ["used", "selected"]}
    >>> rows |= {"weight": [1.0, None], "time": [9.0, 19.0]}
    >>> rows |= {"asked": [None, None], "reason": [None, "no reply"]}
    >>> rows |= {"step_weight": [1.0, None], "norm": [0.3, None]}
    >>> window.add(rounds, pl.DataFrame(rows))
    >>> window.counts.ended, window.names, window.totals.last, dict(window.counts.reasons)
    (2, ['ann', 'bob'], array([0, 1]), {'no reply': 1})
    """

    def __init__(self, length: int, names: Iterable[str] = ()) -> None:
        self.names = list(names)
        self.rounds: deque[Round] = deque(maxlen=length)
        self.totals = ClientTotals.empty(len(self.names))
        self.counts = LedgerCounts()
        self._numbers = {name: n for n, name in enumerate(self.names)}

    def add(self, rounds: pl.DataFrame, rows: pl.DataFrame) -> None:
        """Add rounds that follow those that were added before.

        Args:
            rounds: columns round and time, ascending.
            rows: of these rounds, with the columns of `Entry`, sorted by round.
        """
        ends, of_row = rounds["time"].to_list(), rows["round"].to_numpy()
        clients, stages, lateness, reasons = self._read_columns(rows)
        times, *figures = (
            rows[name].cast(pl.Float64).fill_null(np.nan).to_numpy()
            for name in ("time", "weight", "step_weight", "norm")
        )
        self.totals.extend(len(self.names))
        low = np.searchsorted(of_row, rounds["round"], side="left")
        high = np.searchsorted(of_row, rounds["round"], side="right")
        for t, end, a, b in zip(rounds["round"].to_list(), ends, low, high, strict=True):
            own = slice(a, b)
            one = Round(t, end, clients[own], stages[own], *(column[own] for column in figures))
            why = reasons[own]
            unused = np.array([reason is not None for reason in why], dtype=np.bool_)
            self.totals.add(one.reached(0), t, times[own][one.stages >= 0], one.clients[unused])
            self.counts.add(one, lateness[own], filter(None, why))
            self.rounds.append(one)

    def _read_columns(self, rows: pl.DataFrame) -> tuple[Ints, Ints, Ints, list[str | None]]:
        """Return clients and stages by number, lateness and reasons."""
        numbers, stage_codes = self._numbers, {name: code for code, name in enumerate(STAGES)}
        stage = rows["stage"].replace_strict(stage_codes, default=None, return_dtype=pl.Int64)
        if stage.has_nulls():
            raise InvalidInputError(
                "ledger: the column 'stage' holds unknown stages; restore a backup"
            )
        asked = rows["asked"].cast(pl.Int64).fill_null(rows["round"])
        reason = rows["reason"].cast(pl.String)
        reason = reason.set((stage == REPORTED) & reason.is_null(), _UNKNOWN)
        stage = stage.set(reason == CLAIMED, -1)
        clients = [numbers.setdefault(name, len(numbers)) for name in rows["client"]]
        self.names = list(numbers)
        return (
            np.array(clients, dtype=np.int64),
            stage.to_numpy(),
            np.where(stage >= REPORTED, rows["round"] - asked, -1),
            reason.to_list(),
        )
