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
from tests.auditing.logs import to_frame

import fedtide as ft
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


def test_weights_that_happen_to_be_as_wanted_leave_a_skew_open() -> None:
    """Two clients that took part equally often may still have unequal rates."""
    error = 0.05
    found = estimate_skew(
        np.full(2, 0.5),
        np.full(2, 0.5),
        lambda weights: np.full(len(weights), error),
        lambda slopes: float((slopes**2).sum()) * error**2,
    )
    assert found.observed == found.interval[0] == 0
    assert found.corrected == pytest.approx(0, abs=1e-6)
    assert error <= found.interval[1] <= 6 * error


def test_clients_far_apart_do_not_lend_their_size_to_the_others() -> None:
    """Four of 200 have gaps of 20 standard errors, the others none, of which the floor remains.

    That is √0.1 s_n each; as draws around one common shape, they would keep all of their noise. The
    mean of 20 draws has a standard error of 0.06 of the truth, and lies three of them below.
    """
    random, clients, error = np.random.default_rng(0), 200, 0.05 / 200
    gaps = np.zeros(clients)
    gaps[:4] = [20 * error, 20 * error, -20 * error, -20 * error]
    found = []
    for _ in range(20):
        noise = error * random.standard_normal(clients)
        skew = estimate_skew(
            1 / clients + gaps + noise - noise.mean(),
            np.full(clients, 1 / clients),
            lambda weights: np.full(len(weights), error),
            lambda slopes: float((slopes**2).sum()) * error**2,
        )
        found.append(skew.corrected)
    assert np.mean(found) < np.abs(gaps).sum() + (clients - 4) * 0.1**0.5 * error


@pytest.mark.parametrize(("rounds", "seen", "clients"), [(40, 6, 1000), (300, 20, 10_000)])
def test_few_clients_of_many_are_never_explained_by_chance(
    rounds: int, seen: int, clients: int
) -> None:
    """With equal rates, hundreds of participations would be those of hundreds of clients."""
    for seed in range(3):
        present = np.random.default_rng(seed).random((rounds, seen)) < 0.4
        found = ft.audit(to_frame(present), clients=clients)
        low, high = found.objectives.plain.interval
        assert low > 0.5
        assert high == pytest.approx(2 * (1 - seen / clients), abs=1e-3)
        assert any(f"why {clients - seen:,} clients" in limit for limit in found.limits)


@pytest.mark.parametrize("rate", [0.0024, 0.01])
def test_equal_rates_are_not_excluded_by_logs_in_which_most_clients_never_come(rate: float) -> None:
    """40 rounds of 1000 clients: 0.1 and 0.4 visits each."""
    for seed in range(5):
        present = np.random.default_rng(seed).random((40, 1000)) < rate
        found = ft.audit(to_frame(present), clients=1000)
        assert found.objectives.plain.interval[0] == 0


def test_an_interval_ends_where_its_hypotheses_are_first_rejected() -> None:
    """Seven of nine clients came, at four rates; hypotheses far beyond have weights below 0.

    They have no noise left, and were accepted again, so that intervals ended at 2.
    """
    ends = []
    for seed in range(60):
        random = np.random.default_rng(seed)
        clients = int(random.integers(4, 9))
        present = random.random((100, clients)) < random.choice([0.05, 0.1, 0.5, 0.9], clients)
        skew = ft.audit(to_frame(present), clients=clients + 2).objectives.plain.skew
        low, high = skew.interval
        ends.append((high - skew.corrected) / max(skew.corrected - low, 0.02))
    assert max(ends) < 8
