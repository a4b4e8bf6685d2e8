"""How much each client counts under each method, had it trained along this log."""

from __future__ import annotations

import numpy as np

from fedtide.auditing.log.participation_log import Floats, ParticipationLog


def participation_shares(log: ParticipationLog) -> tuple[Floats, Floats]:
    """Return the weights of averaging over the cohort, and their scale, each of shape (N,).

        w_n = mean over the rounds that somebody came of 1[n in S_t] / |S_t|    (paper 004, eq. 3)

    The scale is c_n = E[y²] / E[y] for y = 1[n in S_t] / |S_t|, so that y has the variance
    w_n (c_n − w_n): with cohorts of one size M it is 1 / M, and y / c_n a coin.
    """
    weights = np.zeros(log.size)
    squares = np.zeros(log.size)
    shares = log.shares
    for places, entries, begins in log.by_client():
        share = shares[log.rounds[entries]]
        weights[places] = _sums(share, begins)
        squares[places] = _sums(share**2, begins)
    usual = squares.sum() / max(weights.sum(), 1e-300)
    scale = np.divide(squares, weights, out=np.full(log.size, usual), where=weights > 0)
    return weights / log.held, scale


def fedau_weights(log: ParticipationLog, cutoff: int | None) -> Floats:
    """Return the mean over all rounds of ω_t^n 1[n in S_t] under FedAU, shape (N,).

    ω_t^n is the mean of the intervals closed before round t, each by an appearance or after K
    rounds (paper 001, Algorithm 2): with s the round of the appearance before (−1: none) and c =
    ⌊(t − 1 − s) / K⌋ intervals cut off since, (s + 1 + c K) / (number closed), 1 for none. 1 for
    every client is what is wanted.

    Args:
        log: who took part.
        cutoff: K; None is ∞.
    """
    sums = np.zeros(log.size)
    for places, entries, begins in log.by_client():
        sums[places] = _sums(interval_means(log.rounds[entries], begins, cutoff), begins)
    return sums / log.length


def interval_means(rounds: np.ndarray, begins: np.ndarray, cutoff: int | None) -> Floats:
    """Return ω_t^n of every entry: its client's mean closed interval before it, shape (E,).

    Args:
        rounds: the entries' rounds, rising within each client.
        begins: where each client's entries begin, one more at the end.
        cutoff: K; None is ∞.
    """
    firsts = begins[:-1][begins[1:] > begins[:-1]]
    before = np.concatenate([[-1], rounds[:-1]]).astype(np.int64)
    before[firsts] = -1
    cut = (rounds - 1 - before) // cutoff if cutoff else np.zeros(len(rounds), dtype=np.int64)
    closed = np.cumsum(cut + 1)
    base = np.repeat(closed[firsts] - cut[firsts] - 1, np.diff(np.append(firsts, len(rounds))))
    count = closed - base - 1  # without the interval that this entry itself closes
    length = before + 1 + cut * (cutoff or 0)
    return np.where(count > 0, length / np.maximum(count, 1), 1.0)


def _sums(values: Floats, begins: np.ndarray) -> Floats:
    """Return the sum over each client's entries."""
    totals = np.zeros(len(begins) - 1)
    seen = begins[1:] > begins[:-1]
    if seen.any():
        totals[seen] = np.add.reduceat(values, begins[:-1][seen])
    return totals
