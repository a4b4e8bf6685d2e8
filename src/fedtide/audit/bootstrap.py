"""Intervals for means over rounds that hang together: a bootstrap of blocks of rounds."""

from __future__ import annotations

import numpy as np

from fedtide.audit.attendance import Floats
from fedtide.audit.laws import normal_point, student_point
from fedtide.audit.pattern import Pattern
from fedtide.randomness import generator

_MOST = 4096
"""The longest series that is resampled; longer ones are first averaged over batches of rounds."""


def block_length(pattern: Pattern, length: int) -> int:
    """Return how many rounds a block must hold: 1 where rounds are independent.

    Otherwise 4 τ rounds or ∛T, whichever is more, and whole periods where there are some, but at
    most an eighth of the log.
    """
    if pattern.family in ("independent", "always") or pattern.correlation is None:
        return 1
    wanted = max(4 * pattern.correlation.time, length ** (1 / 3))
    if pattern.period:
        wanted = pattern.period * np.ceil(length ** (1 / 3) / pattern.period)
    return int(np.clip(np.ceil(wanted), 1, max(1, length // 8)))


def block_variance(series: Floats, block: int) -> Floats:
    """Return the variance of `block_bootstrap`'s deviations, shape (G,), without drawing them.

    The mean of b blocks drawn with replacement has the variance of the blocks' means over b.
    """
    series, block = _batched(series, block)
    blocks = max(1, round(len(series) / block))
    if blocks < 2:
        return np.zeros(series.shape[1])
    return np.asarray(_block_means(series, block).var(axis=0) / blocks * _stretch(blocks) ** 2)


def block_bootstrap(series: Floats, block: int, seed: int, draws: int = 1000) -> Floats:
    """Return deviations of resampled means from the mean of each column, shape (draws, G).

    Blocks of neighbouring rounds, on a circle, are drawn with replacement until a log is full
    (Politis and Romano 1992). The deviations are stretched by t / z √(b / (b − 1)) for b blocks,
    since few blocks say little about the variance.

    Args:
        series: one value per round and column, shape (T, G).
        block: rounds in a block.
        seed: of the draws.
        draws: how often to resample.
    """
    series, block = _batched(series, block)
    length = len(series)
    blocks = max(1, round(length / block))
    if blocks < 2:
        return np.zeros((draws, series.shape[1]))
    means = _block_means(series, block)
    deviations = np.empty((draws, series.shape[1]))
    random = generator(seed, "audit-bootstrap")
    for low in range(0, draws, step := max(1, (1 << 22) // (blocks * series.shape[1]))):
        high = min(low + step, draws)
        starts = random.integers(length, size=(high - low, blocks))
        deviations[low:high] = means[starts].mean(axis=1)
    return np.asarray(deviations * _stretch(blocks))


def _batched(series: Floats, block: int) -> tuple[Floats, int]:
    """Return the means over 2, 4, ... neighbouring rounds, few enough to be resampled."""
    while len(series) > _MOST:
        series = series[: len(series) // 2 * 2].reshape(-1, 2, series.shape[1]).mean(axis=1)
        block = max(1, (block + 1) // 2)
    return series, block


def _block_means(series: Floats, block: int) -> Floats:
    """Return the means of the blocks that begin at each round, less that of all, on a circle."""
    centred = series - series.mean(axis=0)
    zero = np.zeros((1, series.shape[1]))
    sums = np.cumsum(np.concatenate([zero, centred, centred]), axis=0)
    return np.asarray((sums[block : block + len(series)] - sums[: len(series)]) / block)


def _stretch(blocks: int) -> float:
    stretch = float(student_point(0.025, blocks - 1)) / normal_point(0.025)
    return stretch * float(np.sqrt(blocks / (blocks - 1)))
