"""The cutoff of FedAU with the smallest mean squared error of its weights on a log."""

from __future__ import annotations

import numpy as np

from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.theory import cutoff_moments

_MAX_ENTRIES = 2_000_000
_CANDIDATES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


def choose_cutoff(log: ParticipationLog, independent: bool) -> int:
    """Return the cutoff K of FedAU with the smallest error (`measure_errors`)."""
    errors = measure_errors(log, independent)
    return min(errors, key=errors.__getitem__)


def measure_errors(log: ParticipationLog, independent: bool) -> dict[int, float]:
    """Return bias² + variance of FedAU's weights, the mean over the clients, for K from 1 to T.

    The weight ω is a mean of m = T / E closed intervals. With E and V the mean and variance of an
    interval cut off at K,  bias = p E − 1  and  variance = p² V / m. For independent rounds E and V
    are the exact moments of the truncated geometric distribution (Wang & Ji 2024, B.6;
    `theory.cutoff_moments`), otherwise those of the client's own intervals.

    Args:
        log: the participation log; above two million entries, a sample of the clients is used.
        independent: whether the rounds are independent.
    """
    chosen = log.sample_clients(_MAX_ENTRIES / len(log.clients), log.counts > 0)
    rate = log.counts[chosen] / log.length
    errors = {}
    for cutoff in [*(k for k in _CANDIDATES if k < log.length), log.length]:
        if independent:
            mean, variance = cutoff_moments(rate, cutoff)
        else:
            mean, variance = _interval_moments(log, chosen, cutoff)
        relative = rate**2 * variance * mean / log.length
        errors[cutoff] = float(np.mean((rate * mean - 1) ** 2) + np.mean(relative))
    return errors


def _interval_moments(
    log: ParticipationLog, chosen: np.ndarray, cutoff: int
) -> tuple[Floats, Floats]:
    """Return the mean and variance of each client's intervals, cut off at K."""
    counts = log.counts[chosen]
    rounds = log.of_clients(log.rounds, chosen).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)])
    gaps = np.diff(rounds, prepend=-1)
    gaps[starts[:-1]] = rounds[starts[:-1]] + 1
    cut = (gaps - 1) // cutoff
    rest = gaps - cut * cutoff
    tail = (log.length - 1 - rounds[starts[1:] - 1]) // cutoff
    number = np.add.reduceat(cut + 1, starts[:-1]) + tail
    total = np.add.reduceat(gaps, starts[:-1]) + tail * cutoff
    squares = np.add.reduceat(cut * cutoff**2 + rest**2, starts[:-1]) + tail * cutoff**2
    mean = total / number
    variance = squares / number - mean**2
    few = number < 4  # too few to estimate the variance: use that of independent rounds
    if few.any():
        variance[few] = cutoff_moments(counts[few] / log.length, cutoff)[1]
    return mean, np.maximum(variance, 0)
