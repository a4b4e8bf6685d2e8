"""What the audit says about patterns: never an effect that a stationary process does not have.

Logs are drawn here with NumPy alone; seeds are fixed. A stationary process may raise a false alarm
in at most 1% of its logs, so more than 3 of 60 have a probability of 0.003 at most.
"""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.auditing.logs import Present, build_log, draw_chains, from_cohorts, to_frame

import fedtide as ft
from fedtide.auditing.output.sentences import describe_forgetting, describe_memory
from fedtide.auditing.statistics.autocorrelation import estimate_autocorrelation
from fedtide.auditing.statistics.pattern import find_pattern

Random = np.random.Generator


def coins(random: Random) -> Present:
    return random.random((500, 40)) < np.linspace(0.05, 0.5, 40)


def regions(random: Random) -> Present:
    """Four regions go up and down independently in every round, with all of their clients."""
    return (random.random((500, 4)) < 0.5)[:, np.arange(40) % 4] & (random.random((500, 40)) < 0.7)


def slow_chains(random: Random) -> Present:
    return draw_chains(random, np.full(40, 0.4), 500, 0.1)


def served(random: Random) -> Present:
    """Five of the available take part: those longest absent."""
    available = draw_chains(random, np.full(40, 0.4), 500, 0.1)
    last = -random.random(40)
    for t, row in enumerate(available):
        ids = np.flatnonzero(row)
        chosen = ids[np.argsort(last[ids])[:5]]
        row[:] = False
        row[chosen] = True
        last[chosen] = t + 1 + 0.5 * random.random(len(chosen))
    return available


def sessions(random: Random) -> Present:
    """On and off times are Weibull of shape 0.6, rounded up."""
    present = np.zeros((40, 1500), dtype=bool)
    for row in present:
        ends = np.cumsum(np.ceil(random.weibull(0.6, 800) * np.tile([4, 8], 400))).astype(int)
        for begin, end in zip(ends[::2], ends[1::2], strict=True):
            row[begin:end] = True
    return present[:, 1000:].T


def pauses(random: Random) -> Present:
    """After a round, a client pauses for 24 rounds."""
    joins, until = np.linspace(0.03, 0.2, 40), np.zeros(40)
    present = np.zeros((700, 40), dtype=bool)
    for t, row in enumerate(present):
        row[:] = (until <= t) & (random.random(40) < joins)
        until[row] = t + 25
    return present[200:]


def weeks(random: Random) -> Present:
    """Eight weeks of 168 rounds, drawn from four; levels of clients differ between the four."""
    hours = np.arange(168)[:, None]
    daily = np.cos(2 * np.pi * (hours - random.uniform(20, 28, 40)) / 24)
    pool = []
    for _ in range(4):
        level = random.normal(-1.5, 1.2, 40) + random.normal(0, 0.8, 40)
        rates = 1 / (1 + np.exp(-level - 2 * daily))
        row, table = random.random(40) < rates[0], []
        for chance in rates:
            row = np.where(random.random(40) < 0.7, row, random.random(40) < chance)
            table.append(row)
        pool.append(np.array(table))
    return np.concatenate([pool[w] for w in random.integers(4, size=8)])


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("draw", "allowed", "periods"),
    [
        (coins, {"independent", "undecided"}, ()),
        (regions, {"independent", "undecided"}, ()),
        (slow_chains, {"persistent", "undecided"}, ()),
        (served, {"persistent", "regularized", "independent", "undecided"}, ()),
        (sessions, {"persistent", "undecided"}, ()),
        (pauses, {"persistent", "regularized", "independent", "undecided"}, ()),
        (weeks, {"cyclic", "persistent", "regularized", "undecided"}, (24, 168, 336)),
    ],
)
def test_stationary_logs_raise_no_alarm(
    draw: Callable[[Random], Present], allowed: set[str], periods: tuple[int, ...]
) -> None:
    alarms = []
    for seed in range(60):
        found = find_pattern(build_log(draw(np.random.default_rng(seed))))
        alarms.append(
            found.family not in allowed
            or (found.period is not None and found.period not in periods)
            or found.drift.found is True
        )
    assert sum(alarms) <= 3


def without_rounds(random: Random, present: Present, pauses: int = 3) -> Present:
    """The same rounds with a server that is down some times, for up to 24 rounds."""
    for begin in random.integers(10, len(present) - 40, pauses):
        present[begin : begin + random.integers(3, 25)] = False
    return present


def cycles(random: Random) -> Present:
    """Days of 24 rounds, in a third of which nobody is there."""
    hours = np.arange(480)[:, None] % 24
    return (hours >= 8) & (random.random((480, 40)) < 0.1 + 0.5 * (hours < 14))


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("draw", "family", "period"),
    [
        (coins, "independent", None),
        (lambda random: draw_chains(random, np.full(40, 0.4), 500, 0.5), "persistent", None),
        (lambda random: np.ones((100, 5), dtype=bool), "always", None),
        (cycles, "cyclic", 24),
    ],
    ids=["independent", "persistent", "always", "cyclic"],
)
def test_a_server_that_is_down_does_not_change_the_pattern(
    draw: Callable[[Random], Present], family: str, period: int | None
) -> None:
    """The clients do what they did; at most 3 of 30 logs differ, as above."""
    different = []
    for seed in range(30):
        random = np.random.default_rng(seed)
        present = without_rounds(random, draw(random))
        found = find_pattern(build_log(present))
        different.append((found.family, found.period) != (family, period))
        if family != "cyclic":
            assert found.idle_rounds == (~present.any(axis=1)).sum()
    assert sum(different) <= 3


@pytest.mark.parametrize(("before", "idle"), [(100, 100), (250, 1000)])
def test_a_pause_changes_neither_churn_nor_windows_nor_the_clients_not_seen(
    before: int, idle: int
) -> None:
    """Ten of 100 clients leave after 200 rounds, ten join after 100, and 100 hardly ever come."""
    random = np.random.default_rng(2)
    rates = np.append(np.clip(random.lognormal(-2.0, 0.5, 100), 0.02, 0.9), np.full(100, 0.002))
    present = random.random((300, 200)) < rates
    present[200:, :10] = False
    present[:100, 10:20] = False
    paused = np.insert(present, [before] * idle, False, axis=0)
    without, found = (ft.audit(to_frame(rounds)) for rounds in (present, paused))
    assert without.pattern.idle_rounds == 0
    assert len(without.churn.gone) > 0
    np.testing.assert_array_equal(found.churn.gone, without.churn.gone)
    np.testing.assert_array_equal(found.churn.late, without.churn.late)
    late = without.churn.last >= before
    np.testing.assert_array_equal(found.churn.last, without.churn.last + idle * late)
    np.testing.assert_array_equal(found.regularity.values, without.regularity.values)
    assert found.unseen == without.unseen


@pytest.mark.statistical
@pytest.mark.parametrize(
    "factor",
    [
        lambda u, n: np.where(u < 0.5, 1.0, 0.5),
        lambda u, n: 1 - 0.6 * u,
        lambda u, n: 1 + np.where(n % 2, 0.6, -0.6) * (2 * u - 1),
    ],
    ids=["step", "ramp", "half rise, half fade"],
)
def test_changing_rates_are_found(factor: Callable[[Any, Any], Any]) -> None:
    """In 9 of 10 logs of 40 clients; 5 misses in 30 have a probability below 0.003 at 97%."""
    found = []
    for seed in range(30):
        random = np.random.default_rng(seed)
        time = np.linspace(0, 1, 500)[:, None]
        rates = np.linspace(0.1, 0.4, 40) * factor(time, np.arange(40))
        found.append(find_pattern(build_log(random.random((500, 40)) < rates)).family)
    assert found.count("drifting") > 25


def test_sessions_of_a_few_clients_are_no_drift() -> None:
    """A tenth in sessions of 100 rounds; without regard to them, 2 of 5 such logs drift."""
    for seed in range(12):
        random = np.random.default_rng(seed)
        present = random.random((120, 50)) < 0.2
        present[:, ::10] = draw_chains(random, np.full(5, 0.25), 120, 1 / 75)
        assert find_pattern(build_log(present)).family != "drifting"


def test_common_causes_that_last_are_no_drift() -> None:
    """All clients pause together for 10 rounds after 20; the cohort sizes show that memory."""
    found = []
    for seed in range(12):
        random = np.random.default_rng(seed)
        bad = draw_chains(random, np.full(1, 1 / 3), 500, 0.15)
        present = random.random((500, 50)) < np.linspace(0.1, 0.5, 50) * np.where(bad, 0.2, 1.0)
        found.append(find_pattern(build_log(present)).family)
    assert found.count("drifting") == 0


def test_copies_of_clients_are_no_further_evidence() -> None:
    """20 copies of 5 independent clients inform as much as these 5."""
    present = np.random.default_rng(0).random((2000, 5)) < 0.3
    found = estimate_autocorrelation(build_log(np.repeat(present, 20, axis=1)))
    assert found is not None
    assert found.effective_clients == pytest.approx(5, rel=0.1)
    assert found.design_effect == pytest.approx(20, rel=0.1)


def test_the_autocorrelation_of_a_long_log_takes_little_memory() -> None:
    """Products of all pairs of 4000 rounds would take 128 MB."""
    log = build_log(np.random.default_rng(0).random((4000, 4)) < 0.3)
    tracemalloc.start()
    estimate_autocorrelation(log)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16e6


@pytest.mark.parametrize(("repeats", "said"), [(0, "no client came twice"), (3, "only 3 times")])
def test_clients_that_hardly_come_back_say_nothing(repeats: int, said: str) -> None:
    """250 clients in cohorts of 5, once each but for a few: independent rounds cannot be told."""
    cohorts = np.random.default_rng(2).permutation(250).reshape(50, 5)
    present = np.zeros((50, 250), dtype=bool)
    np.put_along_axis(present, cohorts, True, axis=1)
    present[40, cohorts[0, :repeats]] = True
    result = ft.audit(to_frame(present))
    assert result.pattern.family == "undecided"
    assert said in describe_memory(result)
    assert "at most" not in describe_forgetting(result)


def test_gaps_in_the_numbers_of_rounds_are_no_cycle() -> None:
    random = np.random.default_rng(0)
    cohorts = [np.flatnonzero(random.random(20) < 0.3).tolist() for _ in range(40)]
    spread = [cohorts[t // 7] if t % 7 == 0 else [] for t in range(280)]
    found = find_pattern(from_cohorts(spread[:274], 20))
    assert (found.family, found.period) == ("undecided", None)
    assert "number the rounds without gaps" in found.reason


@pytest.mark.parametrize("period", [2, 3, 5, 8, 12])
def test_short_cycles_are_found(period: int) -> None:
    """Groups alternate; a client is present with 0.7 in its turn, else with 0.1."""
    turn = (np.arange(500)[:, None] + np.arange(20)) % period == 0
    present = np.random.default_rng(0).random((500, 20)) < np.where(turn, 0.7, 0.1)
    found = find_pattern(build_log(present))
    assert (found.family, found.period) == ("cyclic", period)


@pytest.mark.parametrize("period", [None, 24])
def test_the_size_of_drift_is_the_slow_change_of_the_rates(period: int | None) -> None:
    """Rates of 0.3 and 0.1 half of the time each: ± 0.1 around 0.2; by day and night, too."""
    random = np.random.default_rng(0)
    rates = np.where(np.arange(960) < 480, 0.3, 0.1)[:, None]
    if period is not None:
        rates = rates * np.where(np.arange(960)[:, None] % period < 12, 1.8, 0.2)
    found = find_pattern(build_log(random.random((960, 60)) < rates))
    assert found.period == period
    assert found.drift.found
    assert found.drift.interval is not None
    low, high = found.drift.interval
    assert (low, high) == pytest.approx((0.4, 0.5), abs=0.1)  # 0.47 in the cosines up to k = 4


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_memory_has_the_dispersion_of_a_chain(correlation: float) -> None:
    present = draw_chains(np.random.default_rng(1), np.full(100, 0.3), 1000, 1 - correlation)
    memory = find_pattern(build_log(present)).memory
    low, high = memory.interval
    assert low < (1 + correlation) / (1 - correlation) < high
    assert memory.state == ("positive" if correlation else "none")


def test_sessions_as_long_as_the_log_are_not_told_from_drift() -> None:
    """Each client is there for 150 of 400 rounds in a row, with 0.9 in each."""
    random = np.random.default_rng(0)
    time, starts = np.arange(400)[:, None], random.integers(0, 400, 40)
    present = ((time - starts) % 400 < 150) & (random.random((400, 40)) < 0.9)
    drift = find_pattern(build_log(present)).drift
    assert drift.found is None or drift.found
    assert (drift.found is None) == bool(drift.obstacle)


def test_slow_regimes_common_to_all_are_seldom_called_drift() -> None:
    """Two regimes of 80 rounds; by the power alone, one in five logs drifts."""
    found = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        bad = draw_chains(random, np.full(1, 0.5), 500, 2 / 80)
        present = random.random((500, 50)) < np.linspace(0.1, 0.5, 50) * np.where(bad, 0.4, 1.0)
        found.append(find_pattern(build_log(present)).drift.found is True)
    assert sum(found) <= 6  # probability 0.002 at 0.1
