"""Regularity of participation as a function of the window length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtide.auditing.log.participation_log import Floats, Ints, ParticipationLog
from fedtide.auditing.statistics.influence import list_entry_weights, recorded_weights

_MAX_ENTRIES = 4_000_000
"""Above this number of entries, a sample of the clients is used."""
_FEW_ENTRIES, _MIN_CLIENTS = 250_000, 2000
"""Above the first number of entries, too, if the sample keeps at least the second of clients."""
_WORK = 12_000_000
"""Approximate number of entries processed for the whole curve."""


@dataclass(frozen=True, eq=False)
class Regularity:
    """N Σ_n (q̄_n − a_n)² for windows of P rounds (Wang & Ji 2022, equation 15).

    q̄_n is the mean of the recorded weights q_t^n, or else of 1[n in S_t] / |S_t|, over the
    nonempty rounds of the window, as no others move a model, and a_n the wanted weight (1 / N).
    Windows start at rounds 0, P, 2P, ...; an incomplete last one is left out, and so are those
    without participants.

    Args:
        periods: P, ascending, shape (W,).
        values: the mean over the windows, (W,).
        floor: the value for the whole log: the part due to the skew, such as from unequal rates,
            which neither longer windows nor amplification remove.
        tolerance: the accepted excess over the floor.
        period: the smallest P within the tolerance; None if none up to T / 2 is.
    """

    periods: Ints
    values: Floats
    floor: float
    tolerance: float
    period: int | None


def measure_regularity(
    log: ParticipationLog, wanted: Floats, weights: Floats, tolerance: float, cycle: int | None
) -> Regularity:
    """Return the curve over windows of 1 to T / 2 rounds.

    Args:
        log: the participation log.
        wanted: a_n, (N,).
        weights: w_n in force in the whole log, (N,).
        tolerance: the accepted excess over the floor.
        cycle: the period of the pattern, whose multiples are evaluated too.
    """
    windows = _Windows(log, wanted, weights)
    periods = _choose_periods(log.length, len(windows.rounds), cycle)
    curve = {int(p): windows.evaluate(int(p)) for p in periods}
    target = windows.floor + tolerance
    reached = [p for p in sorted(curve) if curve[p] <= target]
    if reached:  # refine between the first period within tolerance and the one before it
        before = max((p for p in curve if p < reached[0]), default=0)
        points = int(np.clip(_WORK / (2 * len(windows.rounds)), 10, 24))
        for p in np.unique(np.linspace(before + 1, reached[0], points).astype(int)):
            curve.setdefault(int(p), windows.evaluate(int(p)))
        reached = [p for p in sorted(curve) if curve[p] <= target]
    evaluated = sorted(curve)
    return Regularity(
        periods=np.array(evaluated),
        values=np.array([curve[p] for p in evaluated]),
        floor=windows.floor,
        tolerance=tolerance,
        period=reached[0] if reached else None,
    )


class _Windows:
    """The entries by client, so that those of one client in one window are adjacent.

    Args:
        log: the participation log; of a large one, a sample of the clients is used.
        wanted: a_n, (N,).
        weights: w_n of the whole log, (N,).
    """

    def __init__(self, log: ParticipationLog, wanted: Floats, weights: Floats) -> None:
        self._log, self._wanted = log, wanted
        chosen = log.sample_clients(1 / _client_step(log))
        counts = log.counts[chosen]
        self.rounds = log.of_clients(log.rounds, chosen)
        self._factor = len(log.clients) / max(1, int(counts.sum()))
        self._owner = np.repeat(chosen, counts)
        self._new = np.ones(len(self._owner), dtype=bool)
        self._new[1:] = self._owner[1:] != self._owner[:-1]
        self._busy = np.flatnonzero(log.cohorts)
        self._share = list_entry_weights(log, chosen)
        if (recorded := recorded_weights(log)) is not None:
            self._share *= len(self._busy) / float(recorded.sum())
        terms = weights**2 - 2 * weights * wanted
        self.floor = float(log.size * ((weights - wanted) ** 2).sum())
        # Control variate: correct the sample's sum with its known error over the whole log.
        self._correction = log.size * float(terms.sum() - self._factor * terms[chosen].sum())

    def evaluate(self, period: int) -> float:
        """Return the mean over the windows of this length."""
        log, count = self._log, self._log.length // period
        window = self.rounds // period
        new = self._new.copy()
        new[1:] |= window[1:] != window[:-1]
        starts = np.flatnonzero(new)
        busy = np.bincount(self._busy // period, minlength=count)
        window, wanted = window[starts], self._wanted[self._owner[starts]]
        mean = np.add.reduceat(self._share, starts) / busy[window]
        terms = mean**2 - 2 * mean * wanted
        sums = np.bincount(window, weights=terms, minlength=count)[:count]
        values = log.size * (self._factor * sums + (self._wanted**2).sum()) + self._correction
        if (filled := busy[:count] > 0).any():
            values = values[filled]
        return float(values.mean())


def _client_step(log: ParticipationLog) -> int:
    """Return the k for which one client in k is used."""
    entries = len(log.clients)
    affordable = min(-(-entries // _FEW_ENTRIES), log.size // _MIN_CLIENTS)
    return max(1, -(-entries // _MAX_ENTRIES), affordable)


def _choose_periods(length: int, entries: int, cycle: int | None) -> Ints:
    """Return all window lengths up to T / 2, or a geometric grid where that takes too long."""
    most = max(1, length // 2)
    points = int(np.clip(_WORK / max(entries, 1), 24, 400))
    if most <= points:
        return np.arange(1, most + 1)
    periods = np.rint(np.geomspace(1, most, points)).astype(np.int64)
    multiples = np.arange(1, 9) * (cycle or most)
    return np.unique(np.concatenate([periods, multiples[multiples <= most]]))
