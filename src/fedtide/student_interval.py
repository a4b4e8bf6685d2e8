"""Student's t interval of a mean over seeds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

Numbers = NDArray[np.float64]


def t_margin(values: Numbers, level: float = 0.95) -> Numbers:
    """Return half the length of Student's t interval of the mean over the first axis.

    For S independent values with standard deviation s, this is t_{S−1} s / √S, where t_{S−1} is the
    (1 + level) / 2 quantile with S − 1 degrees of freedom. To compare two methods seed by seed,
    give the difference for each seed.

    Args:
        values: one row per seed, shape (S, ...) with S of at least 2.
        level: the confidence level.

    Returns:
        The margins, shape (...).

    >>> float(t_margin(np.array([2.0, 3.0, 4.0])).round(3))  # 4.303 / √3
    2.484
    """
    seeds = len(values)
    quantile = special.stdtrit(seeds - 1, (1 + level) / 2)
    return np.asarray(quantile * values.std(axis=0, ddof=1) / np.sqrt(seeds))
