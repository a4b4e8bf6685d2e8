"""The number of clients that a log has not seen, against federations of known size.

Clients take part with NumPy's generator. A share of 0.95 over 300 logs has a standard deviation of
0.0126; the bounds are three of them away, so a test of a calibrated estimate fails with probability
0.002.
"""

from collections import Counter

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

import fedtide as ft
from fedtide.auditing import ParticipationLog
from fedtide.auditing.statistics.unseen import UnseenClients, estimate_unseen

Present = NDArray[np.bool_]


def build_log(present: Present) -> ParticipationLog:
    """Return the log of the clients that took part: it does not say that there are others."""
    rounds, clients = np.nonzero(present)
    names, clients = np.unique(clients, return_inverse=True)
    return ParticipationLog.from_entries(
        pl.Series(names), rounds, clients.astype(np.int32), (0, len(present))
    )


def draw(random: np.random.Generator, rates: NDArray[np.float64], rounds: int) -> Present:
    return random.random((rounds, len(rates))) < rates


def cover(rates: NDArray[np.float64], rounds: int, logs: int) -> tuple[float, float]:
    """Return how often the interval covers, and how often its lower end holds."""
    random = np.random.default_rng(0)
    inside = below = 0
    for _ in range(logs):
        found = estimate_unseen(build_log(draw(random, rates, rounds)), 1.0)
        truth = len(rates) - found.seen
        low, high = found.interval
        inside += low <= truth <= high
        below += low <= truth
    return inside / logs, below / logs


@pytest.mark.statistical
@pytest.mark.parametrize(("clients", "rate", "rounds"), [(1000, 0.02, 50), (300, 0.01, 300)])
def test_interval_covers_clients_of_equal_rates(clients: int, rate: float, rounds: int) -> None:
    inside, _ = cover(np.full(clients, rate), rounds, 300)
    assert 0.912 <= inside <= 0.99


@pytest.mark.statistical
def test_few_unseen_clients_are_covered_too() -> None:
    """2.5 of 50 clients on average, and 0.1: the estimate is a small count."""
    for rate in (0.01, 0.02):
        inside, _ = cover(np.full(50, rate), 300, 300)
        assert inside >= 0.912


@pytest.mark.statistical
@pytest.mark.parametrize("shape", [1.0, 2.0])
def test_uneven_rates_only_bound_from_below(shape: float) -> None:
    """Chao's estimate is a lower bound if rates differ, and the sentences say so."""
    rates = np.minimum(np.random.default_rng(1).gamma(shape, 0.02 / shape, 500), 1.0)
    inside, below = cover(rates, 100, 200)
    assert below == 1.0
    assert inside < 0.9


@pytest.mark.statistical
def test_sessions_count_as_one_visit() -> None:
    """500 clients in sessions of 10 rounds on average, at the rate 0.01; about 300 are not seen.

    Round by round, hardly a client is seen exactly once, and nearly all unseen ones would be
    missed. τ = (1 + 0.9) / (1 − 0.9) = 19.
    """
    random = np.random.default_rng(2)
    rate, leave = 0.01, 0.1
    covered, estimates, truths, naive = 0, [], [], []
    for _ in range(60):
        present = np.zeros((500, 500), dtype=bool)
        present[0] = random.random(500) < rate
        for t, draws in enumerate(random.random((499, 500)), start=1):
            join = leave * rate / (1 - rate)
            present[t] = np.where(present[t - 1], draws >= leave, draws < join)
        log = build_log(present)
        found = estimate_unseen(log, 19.0)
        truths.append(500 - found.seen)
        estimates.append(found.estimate)
        naive.append(estimate_unseen(log, 1.0).estimate)
        covered += found.interval[0] <= truths[-1] <= found.interval[1]
    assert covered >= 50  # P < 0.001 at 0.95
    assert np.mean(estimates) == pytest.approx(np.mean(truths), rel=0.1)
    assert np.mean(naive) < np.mean(truths) / 5


def test_lasting_presence_is_more_than_one_visit() -> None:
    """Clients that come about every fifth round all along are no rare ones, whatever τ is."""
    present = draw(np.random.default_rng(6), np.full(30, 0.2), 600)
    found = estimate_unseen(build_log(present), 40.0)
    assert found.once == found.twice == 0
    assert found.estimate == 0


@pytest.mark.statistical
def test_coverage_of_the_sample_is_the_share_of_the_seen() -> None:
    """Good's estimate against the true share of the rates of the clients seen."""
    random = np.random.default_rng(3)
    rates = np.minimum(random.gamma(1.0, 0.01, 500), 1.0)
    covered = 0
    for _ in range(200):
        present = draw(random, rates, 60)
        truth = rates[present.any(axis=0)].sum() / rates.sum()
        low, high = estimate_unseen(build_log(present), 1.0).coverage_interval
        covered += low <= truth <= high
    assert 0.9 <= covered / 200 <= 0.995


def test_counts_are_those_of_a_plain_loop() -> None:
    present = draw(np.random.default_rng(4), np.full(40, 0.05), 30)
    found = estimate_unseen(build_log(present), 1.0)
    times = Counter(int(count) for count in present.sum(axis=0))
    assert (found.once, found.twice) == (times[1], times[2])
    assert (found.seen, found.visits) == (40 - times[0], present.sum())
    once, twice = times[1], times[2]
    expected = 29 / 30 * once * (once - 1) / (2 * (twice + 1))
    assert found.estimate == pytest.approx(expected)


def audit_strangers() -> tuple[ft.auditing.Audit, pl.DataFrame]:
    """97 rounds of 40 clients out of 10,000."""
    random = np.random.default_rng(5)
    rounds = np.repeat(np.arange(97), 40)
    log = pl.DataFrame({"round": rounds, "client": random.integers(0, 10_000, len(rounds))})
    log = log.unique(maintain_order=True)
    return ft.audit(log), log


def test_strangers_of_a_large_federation_are_counted() -> None:
    result, log = audit_strangers()
    seen = log["client"].n_unique()
    assert isinstance(result.unseen, UnseenClients)
    assert result.unseen.interval[0] <= 10_000 - seen <= result.unseen.interval[1]
    low, high = result.unseen.coverage_interval
    assert low <= seen / 10_000 <= high
    assert result.to_dict()["unseen"]["seen_once"] == result.unseen.once


def test_a_first_turn_of_all_clients_says_nothing_of_others() -> None:
    """In cohorts drawn without replacement nobody comes twice: not a sign of 561 other clients."""
    order = np.random.default_rng(1).permutation(100)[:70]
    frame = pl.DataFrame({"round": np.arange(70) // 10, "client": order})
    audit = ft.audit(frame)
    assert audit.unseen is not None
    assert audit.unseen.interval == (0, float("inf"))
    assert not any("never came" in limit for limit in audit.limits)
