"""Within how many rounds everyone gets their share: regularity against the window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtide.auditing.log.participation_log import Floats, Ints, ParticipationLog

_ENTRIES = 4_000_000
"""Above so many entries, clients evenly spread over all of them stand for the rest."""
_FEW_ENTRIES, _MANY_CLIENTS = 250_000, 2000
"""Above so many already, as long as so many clients are left."""
_WORK = 12_000_000
"""How many entries are gone through for the whole curve, roughly."""


@dataclass(frozen=True, eq=False)
class Regularity:
    """N Σ_n (q̄_n − a_n)² for windows of P rounds (paper 000, equation 15).

    q̄_n is the mean over the window of 1[n in S_t] / |S_t|, a_n what is wanted (1 / N). Windows
    begin at rounds 0, P, 2P, ...; an incomplete last one is left out.

    Args:
        periods: P, rising, shape (W,).
        values: the mean over the windows, (W,).
        worst: the largest of the windows, (W,).
        floor: the value of the whole log, which no window can undercut for long: what remains are
            unequal rates, and amplification cannot mend them.
        tolerance: how far above the floor is near enough.
        period: the smallest P that comes so near; None: none up to T / 2 does.
    """

    periods: Ints
    values: Floats
    worst: Floats
    floor: float
    tolerance: float
    period: int | None


def regularity(
    log: ParticipationLog, wanted: Floats, weights: Floats, tolerance: float, cycle: int | None
) -> Regularity:
    """Return the curve over windows of 1 to T / 2 rounds.

    Args:
        log: who took part.
        wanted: a_n, (N,).
        weights: w_n of the whole log, (N,).
        tolerance: how near to the floor a window must come.
        cycle: the period of the pattern, whose multiples are looked at as well.
    """
    windows = _Windows(log, wanted, weights)
    periods = _grid(log.length, len(windows.rounds), cycle)
    curve = {int(p): windows.values(int(p)) for p in periods}
    floor = windows.floor
    reached = [p for p in sorted(curve) if curve[p][0] <= floor + tolerance]
    if reached:  # look between the first that comes near and the one before it
        before = max((p for p in curve if p < reached[0]), default=0)
        points = int(np.clip(_WORK / (2 * len(windows.rounds)), 10, 24))
        for p in np.unique(np.linspace(before + 1, reached[0], points).astype(int)):
            curve.setdefault(int(p), windows.values(int(p)))
        reached = [p for p in sorted(curve) if curve[p][0] <= floor + tolerance]
    found = sorted(curve)
    return Regularity(
        periods=np.array(found),
        values=np.array([curve[p][0] for p in found]),
        worst=np.array([curve[p][1] for p in found]),
        floor=floor,
        tolerance=tolerance,
        period=reached[0] if reached else None,
    )


class _Windows:
    """The entries by client, so that those of one client in one window lie together."""

    def __init__(self, log: ParticipationLog, wanted: Floats, weights: Floats) -> None:
        self._log, self._wanted = log, wanted
        chosen = np.arange(0, log.size, _step(log))
        counts = log.counts[chosen]
        self.rounds = log.rounds if len(chosen) == log.size else _of(log, chosen)
        self._factor = len(log.clients) / max(1, int(counts.sum()))
        self._owner = np.repeat(chosen, counts)
        self._new = np.ones(len(self._owner), dtype=bool)
        self._new[1:] = self._owner[1:] != self._owner[:-1]
        self._share = log.shares[self.rounds]
        terms = weights**2 - 2 * weights * wanted
        self.floor = float(log.size * ((weights - wanted) ** 2).sum())
        # What the whole log leaves is known of all clients: they stand for the rest of the rest.
        self._missed = log.size * float(terms.sum() - self._factor * terms[chosen].sum())

    def values(self, period: int) -> tuple[float, float]:
        """Return the mean and the largest value over the windows of so many rounds."""
        log, count = self._log, self._log.length // period
        window = self.rounds // period
        new = self._new.copy()
        new[1:] |= window[1:] != window[:-1]
        begins = np.flatnonzero(new)
        mean = np.add.reduceat(self._share, begins) / period
        window, wanted = window[begins], self._wanted[self._owner[begins]]
        terms = mean**2 - 2 * mean * wanted
        sums = np.bincount(window, weights=terms, minlength=count)[:count]
        values = log.size * (self._factor * sums + (self._wanted**2).sum()) + self._missed
        return float(values.mean()), float(values.max())


def _of(log: ParticipationLog, clients: Ints) -> NDArray[np.int32]:
    return np.concatenate([log.rounds[log.begins[n] : log.begins[n + 1]] for n in clients])


def _step(log: ParticipationLog) -> int:
    """Return of how many clients one is looked at."""
    entries = len(log.clients)
    spared = min(-(-entries // _FEW_ENTRIES), log.size // _MANY_CLIENTS)
    return max(1, -(-entries // _ENTRIES), spared)


def _grid(length: int, entries: int, cycle: int | None) -> Ints:
    """Return the periods to look at: all up to T / 2 where there is time for it."""
    most = max(1, length // 2)
    points = int(np.clip(_WORK / max(entries, 1), 24, 400))
    if most <= points:
        return np.arange(1, most + 1)
    periods = np.rint(np.geomspace(1, most, points)).astype(np.int64)
    multiples = np.arange(1, 9) * (cycle or most)
    return np.unique(np.concatenate([periods, multiples[multiples <= most]]))
