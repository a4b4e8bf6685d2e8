"""Finds the clients that `fedtide watch` calls gone: silent for longer than habits explain."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedtide.monitoring.ledger_window import ClientTotals, Floats, Ints

_LEVEL = 0.001
"""The chance that any client is called gone in a round if the rounds of each are exchangeable."""
_FACTOR = 2
"""How much more unusual, and how much longer, a silence must be than those that have ended."""
_SHARE = 0.95
"""The share of the clients whose ended silences set the limit for all."""
_TOGETHER = 0.4
"""If this share of the others fell silent at about the same time, nobody is called gone."""


def find_silence_limits(totals: ClientTotals, t: int) -> Floats:
    """Return for how many rounds each client may be silent after round t, shape (N,).

    A silence of a client that has lasted until round t scores

        x = k log((t − f) / (s − f))

    with f and s the first and the last round in which it was seen, and k its returns in between:
    exp(−x) is the chance of such a silence if its rounds are exchangeable. It may be silent until
    its score exceeds both

    - log(N / 0.001), and
    - twice the highest score of its own recently ended silences (see `ClientTotals.find_peaks`), or
      that of 95% of the clients if it is higher;

    and at least twice as long as 95% of the clients took to appear for the first time, where those
    that appeared in the first quarter of the rounds count as 0. Cycles and sessions give ended
    silences high scores; in the first cycle, clients that appear late reveal it.

    ∞: the client was seen fewer than two times.

    Args:
        totals: of the clients.
        t: the last round.
    """
    limits = np.full(len(totals.first), np.inf)
    seen = totals.first >= 0
    if not seen.any():
        return limits
    peaks, begin = totals.find_peaks(t), totals.first[seen].min()
    waits = totals.first[seen] - begin
    usual = np.maximum(peaks, _most(peaks[seen]))
    score = np.maximum(np.log(len(limits) / _LEVEL), _FACTOR * usual)
    appeared = _most(np.where(4 * waits >= t - begin, waits, 0))
    known = totals.returns > 0
    with np.errstate(over="ignore"):
        own = (totals.last - totals.first)[known] * np.expm1(score[known] / totals.returns[known])
    limits[known] = np.maximum(own, _FACTOR * appeared)
    return limits


def find_common_silences(totals: ClientTotals, t: int) -> NDArray[np.bool_]:
    """Return whether others fell silent together with each client, shape (N,).

    Of the other clients that were seen within twice the length s of its silence, at least two in
    five have been silent for s / 2: night falls, or a server was away. Then nobody has left.

    Args:
        totals: of the clients.
        t: the last round.
    """
    ends = np.sort(totals.last[totals.last >= 0])
    silent = t - totals.last
    before = np.searchsorted(ends, t - 2 * silent, side="left")
    quiet = np.searchsorted(ends, t - silent / 2, side="right") - before
    others = len(ends) - before - 1  # without the client itself
    return np.asarray((totals.last >= 0) & (quiet - 1 >= _TOGETHER * others))


def _most(values: Floats | Ints) -> float:
    """Return the smallest of the values that 95% of the others do not exceed."""
    rank = math.ceil(_SHARE * (len(values) - 1))
    return float(np.partition(values, rank)[rank])
