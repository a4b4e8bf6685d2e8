"""Coverage of the L1 skew's interval, for weights with normal noise and several shapes of gaps.

300 draws per case with a fixed seed. The nominal coverage is 0.95 with a standard deviation of
0.013, so the bound of 0.9 fails with probability 2e-4. The promise is 0.9, because the shape of
gaps as small as their noise cannot be inferred.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from fedtide.auditing.statistics.skew import estimate_skew

Floats = NDArray[np.float64]

SHAPES: dict[str, Callable[[int], Floats]] = {
    "none": np.zeros,
    "two kinds": lambda n: np.where(np.arange(n) % 2, 1.0, -1.0),
    "evenly": lambda n: np.linspace(-1.0, 1.0, n),
    "few": lambda n: np.where(np.arange(n) % 10, -1.0, 9.0),
}
CASES = [
    (shape, clients, ratio)
    for shape in SHAPES
    for clients in (20, 200)
    for ratio in ((1.0, 2.0, 5.0) if shape != "none" else (0.0,))
]


@pytest.mark.statistical
@pytest.mark.parametrize(("shape", "clients", "ratio"), CASES)
def test_skew_interval_covers(shape: str, clients: int, ratio: float) -> None:
    """`ratio` is the root mean square of the gaps in standard errors."""
    random = np.random.default_rng(0)
    wanted, error = np.full(clients, 1 / clients), 0.05 / clients
    gaps = SHAPES[shape](clients)
    gaps *= ratio * error / max(1e-9, float(np.sqrt((gaps**2).mean())))
    truth = float(np.abs(gaps).sum())
    covered = []
    for _ in range(300):
        noise = error * random.standard_normal(clients)
        low, high = estimate_skew(
            wanted + gaps + noise - noise.mean(),
            wanted,
            lambda weights: np.full(len(weights), error),
            lambda slopes: float((slopes**2).sum()) * error**2,
        ).interval
        covered.append(low <= truth + 1e-12 and truth <= high + 1e-12)
    assert np.mean(covered) >= 0.9
