"""Where in the cycle each client is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.auditing.statistics.distributions import chi2_above

_CELLS = 1 << 25


@dataclass(frozen=True, eq=False)
class Profile:
    """The clients folded over a period of c rounds.

    Args:
        period: c.
        explained: the share of each client's variance that its place in the cycle explains, less
            what chance would, shape (N,).
        repeats: whose place in the cycle matters (χ² test, level 0.001), (N,).
        on: the share of the cycle's rounds in which each client comes more often than on average.
        phase: the middle of that time, in rounds from the cycle's begin, (N,); NaN: nowhere.
        rate: the rate over a whole cycle, whatever part of one the log ends with, (N,).
        visits: how many cycles the log holds.
    """

    period: int
    explained: Floats
    repeats: NDArray[np.bool_]
    on: Floats
    phase: Floats
    rate: Floats
    visits: float

    def summary(self) -> dict[str, Any]:
        """Return the share of the time that clients are on, and how their phases lie."""
        cyclic = self.repeats & np.isfinite(self.phase)
        if not cyclic.any():
            return {"on_fraction": None, "phases": 0, "explained": 0.0}
        starts = phase_groups(self.phase[cyclic], self.period)
        # With less than one appearance per place in the cycle, where it comes more often is chance.
        known = self.visits * float(np.median(self.rate[cyclic])) >= 1
        return {
            "on_fraction": float(np.median(self.on[cyclic])) if known else None,
            "phases": len(starts),
            "phase_centers": [round(float(start), 1) for start in starts],
            "explained": float(np.mean(self.explained[cyclic])),
        }


def fold(log: ParticipationLog, period: int) -> Profile:
    """Return how the clients lie in a cycle of so many rounds; one pass, in chunks of clients."""
    size = log.size
    parts = []
    chunk = max(1, _CELLS // period)
    visits = np.bincount(np.arange(log.length) % period, minlength=period).astype(np.float64)
    for low in range(0, size, chunk):
        high = min(low + chunk, size)
        begin, end = int(log.begins[low]), int(log.begins[high])
        owner = np.repeat(np.arange(high - low), log.counts[low:high])
        cell = owner * period + log.rounds[begin:end] % period
        counts = np.bincount(cell, minlength=(high - low) * period).reshape(-1, period)
        parts.append(_fold(counts.astype(np.float64), visits))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    explained, p_value, on, phase, rate = columns
    return Profile(period, explained, p_value < 0.001, on, phase, rate, log.length / period)


def _fold(counts: Floats, visits: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    length, period = visits.sum(), len(visits)
    rate = counts.sum(axis=1) / length
    variance = np.maximum(rate * (1 - rate), 1e-12)
    excess = counts - np.outer(rate, visits)
    chi = (excess**2 / visits).sum(axis=1) / variance
    chi[(rate == 0) | (rate == 1)] = 0
    explained = np.clip((chi - (period - 1)) / max(length - (period - 1), 1), 0, 1)
    on = (excess > 0).mean(axis=1)
    angle = np.exp(2j * np.pi * (np.arange(period) + 0.5) / period)
    turn = (counts / visits) @ angle
    phase = np.angle(turn) / (2 * np.pi) * period % period
    phase[np.abs(turn) < 1e-9] = np.nan
    p_value = chi2_above(chi, period - 1)
    return explained, p_value, on, phase, (counts / visits).mean(axis=1)


def phase_groups(phases: Floats, period: int) -> Floats:
    """Return the centres of the groups in which phases lie, split at gaps of a twelfth of a cycle.

    >>> phase_groups(np.array([1.0, 2.0, 50.0, 51.0, 99.0]), 100).round(1)
    array([50.5,  0.7])
    """
    order = np.sort(phases)
    gaps = np.diff(np.concatenate([order, [order[0] + period]]))
    cuts = np.flatnonzero(gaps > period / 12)
    if len(cuts) < 2:
        return np.array([_middle(order, period)]) if len(cuts) else np.empty(0)
    turned = np.concatenate([order[cuts[0] + 1 :], order[: cuts[0] + 1] + period])
    pieces = np.split(turned, (cuts[1:] - cuts[0]).tolist())
    return np.array([_middle(piece, period) for piece in pieces if len(piece)])


def _middle(phases: Floats, period: int) -> float:
    turn = np.exp(2j * np.pi * phases / period).mean()
    return float(np.angle(turn) / (2 * np.pi) * period % period)
