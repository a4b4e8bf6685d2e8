"""Calibration of the audit: 1000 logs of each process, with fixed seeds.

The logs are drawn here with NumPy alone, independently of the library's processes. A share of 0.95
over 1000 logs has a standard deviation of 0.007; each bound is three of them away, so a test of a
calibrated audit fails with probability 0.003.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from fedtide.auditing import ParticipationLog
from fedtide.auditing.statistics.influence import compare_objectives
from fedtide.auditing.statistics.pattern import find_pattern
from fedtide.auditing.statistics.rate_estimates import estimate_rates
from fedtide.auditing.statistics.variance import VarianceModel

Present = NDArray[np.bool_]
Random = np.random.Generator


@dataclass(frozen=True)
class KnownLog:
    """A log of known rates.

    Args:
        present: 1 for participation, shape (T, N).
        rates: the true rates, (N,).
    """

    present: Present
    rates: NDArray[np.float64]


def uneven(random: Random, clients: int) -> NDArray[np.float64]:
    return np.clip(random.gamma(1.0, 0.15, clients), 0.02, 0.9)


def bernoulli(random: Random, clients: int, rounds: int) -> KnownLog:
    rates = uneven(random, clients)
    return KnownLog(random.random((rounds, clients)) < rates, rates)


def successive(random: Random, weights: NDArray[np.float64], size: int, rounds: int) -> Present:
    """Draw `size` clients a round, one after another by weight (exponential clocks)."""
    clocks = random.exponential(size=(rounds, len(weights))) / weights
    chosen = np.argpartition(clocks, size - 1, axis=1)[:, :size]
    present = np.zeros(clocks.shape, dtype=bool)
    np.put_along_axis(present, chosen, True, axis=1)
    return present


def uniform(random: Random, clients: int, rounds: int) -> KnownLog:
    size = max(1, clients // 10)
    present = successive(random, np.ones(clients), size, rounds)
    return KnownLog(present, np.full(clients, size / clients))


def markov(random: Random, clients: int, rounds: int) -> KnownLog:
    """Stationary chains; P(off → on) at most 0.05, and less where P(on → off) would exceed 1."""
    rates = uneven(random, clients)
    off_on = np.minimum(0.05, rates / (1 - rates))
    on_off = off_on * (1 - rates) / rates
    present = np.empty((rounds, clients), dtype=bool)
    present[0] = random.random(clients) < rates
    draws = random.random((rounds, clients))
    for t in range(1, rounds):
        present[t] = np.where(present[t - 1], draws[t] >= on_off, draws[t] < off_on)
    return KnownLog(present, rates)


def cyclic(random: Random, clients: int, rounds: int, period: int = 100) -> KnownLog:
    """Each client is on for the first part of its cycle, which starts at a random round."""
    on = np.clip(np.rint(uneven(random, clients) * period), 1, period - 1)
    starts = random.integers(period, size=clients)
    place = (np.arange(rounds)[:, None] + starts) % period
    return KnownLog(place < on, on / period)


def daily(random: Random, clients: int, rounds: int) -> KnownLog:
    return cyclic(random, clients, rounds, period=24)


def turns(random: Random, clients: int, rounds: int) -> KnownLog:
    """Three groups, each on for 20 rounds: present with 0.5 then, else with 0.05."""
    group = np.arange(clients) % 3
    turn = (np.arange(rounds) + random.integers(60)) // 20 % 3
    chance = np.where(turn[:, None] == group, 0.5, 0.05)
    return KnownLog(random.random((rounds, clients)) < chance, np.full(clients, 0.2))


def permutations(random: Random, clients: int, rounds: int) -> KnownLog:
    """Everyone once, in a random order, before anyone returns."""
    size = max(1, clients // 10)
    orders = [random.permutation(clients) for _ in range(-(-rounds * size // clients))]
    queue = np.concatenate(orders)[: rounds * size].reshape(rounds, size)
    present = np.zeros((rounds, clients), dtype=bool)
    np.put_along_axis(present, queue, True, axis=1)
    return KnownLog(present, np.full(clients, size / clients))


DRAWS: dict[str, tuple[str, int | None, Callable[[Random, int, int], KnownLog]]] = {
    "bernoulli": ("independent", None, bernoulli),
    "uniform": ("independent", None, uniform),
    "markov": ("markov", None, markov),
    "cyclic": ("cyclic", 100, cyclic),
    "daily": ("cyclic", 24, daily),
    "turns": ("cyclic", 60, turns),
    "permutations": ("regularized", None, permutations),
}
"""The family and the period of each process."""

STRICT = ("cyclic", "daily", "permutations")
"""Processes whose rates a whole cycle determines exactly: their intervals always cover."""


def build_log(present: Present) -> ParticipationLog:
    rounds, clients = np.nonzero(present)
    length, size = present.shape
    names = pl.Series("client", np.arange(size))
    return ParticipationLog.from_entries(names, rounds, clients.astype(np.int32), (0, length))


@pytest.mark.statistical
@pytest.mark.parametrize("name", DRAWS)
def test_families_periods_and_rates(name: str) -> None:
    """Family and period right in 95%, intervals cover 93% to 97%, false drift in at most 2%."""
    family, period, draw = DRAWS[name]
    right, exact, drifting, covered = [], [], [], []
    for seed in range(500):
        known = draw(np.random.default_rng(seed), (10, 20, 50, 100, 300)[seed % 5], 500)
        log = build_log(known.present)
        pattern = find_pattern(log)
        right.append(pattern.family == family)
        exact.append(pattern.period == period)
        drifting.append(pattern.family == "drifting")
        got = estimate_rates(log, pattern)
        inside = (got.low <= known.rates + 1e-12) & (known.rates <= got.high + 1e-12)
        covered.append(inside.mean())
    assert np.mean(right) >= 0.95
    assert np.mean(exact) >= 0.95
    assert np.mean(drifting) <= 0.02
    assert np.mean(covered) >= 0.93
    if name not in STRICT:
        assert np.mean(covered) <= 0.97


def decaying(random: Random, clients: int, rounds: int) -> KnownLog:
    """Paper 004's weights, stretched to this number of clients; the rates are not used."""
    weights = np.exp(-np.arange(clients) * 10 / clients)
    return KnownLog(successive(random, weights, clients // 10, rounds), weights)


def halves(clients: int) -> NDArray[np.float64]:
    return np.where(np.arange(clients) % 2, 0.4, 0.2)


def coins(random: Random, clients: int, rounds: int) -> KnownLog:
    rates = halves(clients)
    return KnownLog(random.random((rounds, clients)) < rates, rates)


def bursts(random: Random, clients: int, rounds: int) -> KnownLog:
    """Markov chains of correlation 0.75: rates alternating between 0.2 and 0.4."""
    rates = halves(clients)
    present = np.empty((rounds, clients), dtype=bool)
    present[0] = random.random(clients) < rates
    draws = random.random((rounds, clients))
    for t in range(1, rounds):
        present[t] = draws[t] < np.where(present[t - 1], 0.75 + 0.25 * rates, 0.25 * rates)
    return KnownLog(present, rates)


def skew_of(rates: NDArray[np.float64]) -> float:
    """Exact skew of independent clients: w_n ∝ p_n E[1 / (1 + others present)]."""
    weights = []
    for n, own in enumerate(rates):
        distribution = np.ones(1)
        for rate in np.delete(rates, n):
            distribution = np.convolve(distribution, [1 - rate, rate])
        weights.append(own * float((distribution / np.arange(1, len(distribution) + 1)).sum()))
    return float(np.abs(np.array(weights) / sum(weights) - 1 / len(rates)).sum())


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("draw", "clients", "rounds", "exact"),
    [
        (decaying, 100, 500, 1.289078),
        (uniform, 100, 500, 0.0),
        (uniform, 20, 200, 0.0),
        (bernoulli, 20, 500, None),
        (markov, 20, 500, None),
        (coins, 20, 500, None),
        (coins, 100, 500, None),
        (bursts, 20, 500, None),
        (bursts, 100, 500, None),
    ],
)
def test_skew_intervals_cover(
    draw: Callable[[Random, int, int], KnownLog], clients: int, rounds: int, exact: float | None
) -> None:
    """In 95% of 400 logs, up to three standard errors: error probability 0.003 for each process.

    `benchmarks/audit.py skews` measures more processes, with 1000 logs each.
    """
    covered = []
    logs = 400
    for seed in range(logs):
        known = draw(np.random.default_rng(seed), clients, rounds)
        log = build_log(known.present)
        pattern = find_pattern(log)
        rates = estimate_rates(log, pattern)
        variances, wanted = VarianceModel(log, pattern, rates), np.full(clients, 1 / clients)
        low, high = compare_objectives(log, variances, rates, wanted, 50).plain.interval
        truth = skew_of(known.rates) if exact is None else exact
        covered.append(low <= truth + 1e-9 and truth <= high)
    error = np.sqrt(0.95 * 0.05 / logs)
    assert abs(np.mean(covered) - 0.95) <= 3 * error
