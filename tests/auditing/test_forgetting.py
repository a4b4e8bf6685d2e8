"""Forgetting, and the objective of the last rounds, on logs drawn with NumPy."""

from statistics import NormalDist

import numpy as np
import polars as pl
import pytest
from tests.auditing.logs import build_log, draw_chains, to_frame

import fedtide as ft
from fedtide.auditing import Audit, ParticipationLog
from fedtide.auditing.output.sentences import describe_forgetting
from fedtide.auditing.statistics.forgetting import measure_forgetting
from fedtide.auditing.statistics.pattern import find_pattern
from fedtide.auditing.statistics.rate_estimates import estimate_rates
from fedtide.auditing.statistics.recent_influence import RecentInfluence, measure_recent_influence

Present = np.ndarray


def run_audit(present: Present) -> Audit:
    return ft.audit(to_frame(present), clients=present.shape[1])


def groups_in_turn(seed: int, clients: int, groups: int, turn: int, rounds: int) -> Present:
    """A fifth of the clients of one group after another, from a random offset."""
    random = np.random.default_rng(seed)
    size = clients // groups
    start = random.integers(groups * turn)
    present = np.zeros((rounds, clients), dtype=bool)
    for t in range(rounds):
        first = (t + start) // turn % groups * size
        present[t, first + random.choice(size, size // 5, replace=False)] = True
    return present


def rise_and_fade(seed: int, clients: int = 60, rounds: int = 1000) -> Present:
    random = np.random.default_rng(seed)
    rising = np.linspace(0.05, 0.35, rounds)[:, None]
    half = np.arange(clients) < clients // 2
    return random.random((rounds, clients)) < np.where(half, rising, rising[::-1])


def distance_by_hand(group: np.ndarray, groups: int, window: int) -> float:
    """Return the mean distance of windows from the whole log if a group's clients weigh alike."""
    shares = np.eye(groups)[group]
    count = len(group) // window
    means = shares[: count * window].reshape(count, window, groups).mean(axis=1)
    return float(0.5 * np.abs(means - shares.mean(axis=0)).sum(axis=1).mean())


def test_groups_in_turn_forget_four_fifths_of_the_objective() -> None:
    """250 clients, five groups, turns of 100 rounds: within a turn the distance is 1 − 1/5."""
    log = build_log(groups_in_turn(1, 250, 5, 100, 2000))
    found = measure_forgetting(log, cycle=500)
    group = log.clients[log.starts[:-1]] // 50
    assert found.window < 100
    assert found.estimate == pytest.approx(0.8, abs=0.08)
    truth = distance_by_hand(group, 5, found.window)
    assert truth - 0.06 < found.estimate < truth + 0.02  # short of it: few rounds per client
    long = int(np.searchsorted(found.windows, 50))
    truth = distance_by_hand(group, 5, int(found.windows[long]))
    assert found.low[long] <= truth <= found.high[long]
    assert found.p_value < 0.001
    assert found.halving_window is not None
    assert 100 < found.halving_window <= 500
    assert found.estimates[found.windows == 500] < 0.02


def with_idle_rounds(present: Present, kind: str) -> Present:
    """The same rounds, eight of 24 by day, or around a pause of a third of their number."""
    count = len(present)
    if "nights" in kind:
        places = np.arange(count) // 8 * 24 + np.arange(count) % 8
    else:
        places = np.arange(count) + count // 3 * (np.arange(count) >= count // 2)
    spread = np.zeros((places[-1] + 1, present.shape[1]), dtype=bool)
    spread[places] = present
    return spread


@pytest.mark.parametrize(
    "kind",
    [
        "uneven rates",
        "empty rounds",
        "idle nights",
        "fixed cohorts, a pause",
    ],
)
def test_independent_rounds_forget_nothing(kind: str) -> None:
    """40 logs of each kind: p-values below 0.05 in at most 6 (chance of more: 0.01)."""
    rejected, estimates = 0, []
    for seed in range(40):
        random = np.random.default_rng([3, seed])
        draws = random.random((200, 30))
        if "fixed cohorts" in kind:
            present = draws <= np.sort(draws, axis=1)[:, 4:5]
        else:
            present = draws < random.uniform(0.02, 0.5, 30) * (0.2 if "empty" in kind else 1)
        if "nights" in kind or "pause" in kind:
            present = with_idle_rounds(present, kind)
        found = measure_forgetting(build_log(present))
        rejected += found.p_value < 0.05
        estimates.append(found.estimates.mean())
    assert rejected <= 6
    assert np.mean(estimates) < 0.03


@pytest.mark.statistical
def test_p_values_and_intervals_of_forgetting_hold_for_independent_rounds() -> None:
    """300 logs at the nominal 0.05: more than 28 fail with probability 0.001."""
    p_values, above = [], 0
    for seed in range(300):
        random = np.random.default_rng(seed)
        clients, rounds = (20, 50, 200)[seed % 3], (100, 500)[seed % 2]
        draws = random.random((rounds, clients))
        if seed % 4 < 2:
            present = draws < random.uniform(0.02, 0.4, clients)
        else:
            size = max(1, clients // 10)
            present = draws <= np.sort(draws, axis=1)[:, size - 1 : size]
        found = measure_forgetting(build_log(present))
        p_values.append(found.p_value)
        above += found.interval[0] > 0
    assert np.sum(np.array(p_values) < 0.05) <= 28
    assert np.min(p_values) > 1e-4
    assert above <= 28


def test_forgetting_does_not_depend_on_the_order_of_cohort_sizes() -> None:
    """Exchangeable rounds of very unequal cohorts: half are of two clients, half of twenty."""
    random = np.random.default_rng(8)
    present = np.zeros((400, 40), dtype=bool)
    for row in present:
        row[random.permutation(40)[: random.choice([2, 20])]] = True
    found = measure_forgetting(build_log(present))
    assert found.p_value > 0.01
    assert found.interval[0] == 0


def test_bursts_forget_within_a_burst_only() -> None:
    """Bursts of ten rounds on average, at the rate 0.25."""
    present = draw_chains(np.random.default_rng(5), np.full(40, 0.25), 1000, 0.4 / 3)
    found = measure_forgetting(build_log(present))
    assert found.window < 20
    assert found.p_value < 0.001
    assert found.halving_window is not None
    assert found.halving_window < 200


def test_windows_of_amplification_last_as_long_as_the_swings() -> None:
    """Turns of 5 busy rounds, one busy round in 3: a swing has gone after 15 rounds and more."""
    turns = np.repeat(np.tile(np.eye(4, dtype=bool), (30, 1)), 5, axis=0)
    present = np.zeros((3 * len(turns), 4), dtype=bool)
    present[::3] = turns
    present[1, 0] = True  # else the rounds would be renumbered
    found = run_audit(present)
    assert found.forgetting.p_value < 0.001
    periods = [one.parameters["period"] for one in found.advice if "period" in one.parameters]
    assert periods
    assert min(periods) > 15


def test_objective_now_is_that_of_the_last_rounds() -> None:
    """The exact objective of the last W rounds of half that rises and half that fades."""
    recent = run_audit(rise_and_fade(1)).objectives.recent
    assert recent is not None
    rising = np.linspace(0.05, 0.35, 1000)[-recent.window :].mean()
    exact = abs(rising - 0.2) / 0.2  # shares of (0.2 ± gap) / 0.4
    low, high = recent.objective.interval
    assert 20 <= recent.window <= 250
    assert low <= exact <= high
    assert low > 0.5
    assert recent.ends[-1] == 1000
    assert np.all(np.diff(recent.ends) > 0)
    middle = recent.skews[np.abs(recent.ends - recent.window / 2 - 500).argmin()]
    assert middle < 2.5 * recent.chance[0]
    assert recent.chance[0] <= 0.21
    assert recent.skews[-1] > 5 * recent.chance[0] / 2


def test_objective_now_of_a_periodic_log_covers_whole_cycles() -> None:
    audit = run_audit(groups_in_turn(2, 50, 5, 20, 1200))
    recent = audit.objectives.recent
    assert recent is not None
    assert audit.pattern.period == 100
    assert recent.window % 100 == 0
    assert recent.objective.interval[0] < 0.02


def draw_sessions(random: np.random.Generator, rounds: int, clients: int) -> Present:
    """Clients alike, with log-normal sessions (mean 5.6 rounds) and pauses (mean 15)."""
    present = np.zeros((rounds, clients), dtype=bool)
    for n in range(clients):
        t, on = -int(random.integers(500, 1000)), False
        while t < rounds:
            length = max(1, round(random.lognormal(1.0 if on else 2.0, 1.2)))
            if on:
                present[max(t, 0) : max(t + length, 0), n] = True
            t, on = t + length, not on
    return present


@pytest.mark.statistical
def test_long_sessions_are_no_skew_of_the_last_rounds() -> None:
    """The window alone shows too little of the memory: it had a skew in 61 of 100 logs.

    Of ten intervals of 95%, three or more miss 0 with a probability of 0.012.
    """
    random = np.random.default_rng(8)
    audits = [run_audit(draw_sessions(random, 400, 40)) for _ in range(10)]
    lows = np.nan_to_num([audit.objectives.now.interval[0] for audit in audits])
    assert (lows > 1e-6).sum() <= 2


def draw_weighted(
    random: np.random.Generator, samples: np.ndarray, rounds: int
) -> tuple[np.ndarray, np.ndarray]:
    """Uniform cohorts of five, and their shares of the cohort's samples, shape (rounds, 5)."""
    cohorts = random.random((rounds, len(samples))).argpartition(5, axis=1)[:, :5]
    shares = samples[cohorts]
    return cohorts, shares / shares.sum(axis=1, keepdims=True)


def measure_recent(cohorts: np.ndarray, shares: np.ndarray, wanted: np.ndarray) -> RecentInfluence:
    log = ParticipationLog.from_entries(
        pl.Series("client", np.arange(len(wanted))),
        np.repeat(np.arange(len(cohorts)), 5),
        cohorts.ravel().astype(np.int32),
        (0, len(cohorts)),
        shares.ravel().astype(np.float32),
    )
    pattern = find_pattern(log)
    return measure_recent_influence(log, pattern, estimate_rates(log, pattern), wanted)


@pytest.mark.parametrize(("sigma", "window"), [(0.0, 75), (1.0, 89), (3.0, 150)])
def test_last_rounds_hold_enough_visits_of_the_clients_that_count(
    sigma: float, window: int
) -> None:
    """150 Σ a² / p rounds of 300 for a log-normal law's quantiles as samples, at most half."""
    quantiles = np.array([NormalDist().inv_cdf((n + 0.5) / 60) for n in range(60)])
    samples = np.exp(sigma * quantiles)
    wanted = samples / samples.sum()
    cohorts, shares = draw_weighted(np.random.default_rng(0), samples, 300)
    counts = np.bincount(cohorts.ravel(), minlength=60)
    expected = 150 * float((wanted**2 / (counts / 300)).sum())
    assert min(max(75, np.ceil(expected)), 150) == window
    assert measure_recent(cohorts, shares, wanted).window == window


@pytest.mark.statistical
def test_intervals_of_the_last_rounds_cover_where_few_clients_have_most_samples() -> None:
    """At least 32 of 40 logs: a coverage of 0.92 fails with a probability of 0.004."""
    random = np.random.default_rng(3)
    held = 0
    for _ in range(40):
        samples = np.exp(1.5 * random.normal(size=60))
        cohorts, shares = draw_weighted(random, samples, 20_000)
        weights = np.bincount(cohorts.ravel(), shares.ravel(), minlength=60) / 20_000
        wanted = samples / samples.sum()
        recent = measure_recent(*draw_weighted(random, samples, 300), wanted)
        low, high = recent.objective.interval
        held += low <= np.abs(weights - wanted).sum() <= high
    assert held >= 32


def test_chance_of_windows_of_rare_clients_is_what_windows_show() -> None:
    """A client seen once or never shows no memory: of equal clients, windows differ by chance.

    Visits are Poisson with the mean λ = 1 / 2 in a window, so E |K − λ| / λ = 2 exp(−λ).
    """
    random = np.random.default_rng(2)
    log = build_log(random.random((200, 5000)) < 0.01)
    pattern = find_pattern(log)
    rates = estimate_rates(log, pattern)
    recent = measure_recent_influence(log, pattern, rates, np.full(5000, 1 / 5000))
    assert recent.window == 50
    assert recent.skews.mean() == pytest.approx(2 * np.exp(-0.5), rel=0.02)
    assert recent.chance[-1] == pytest.approx(2 * np.exp(-0.5), rel=0.1)


def exact_shares(rates: np.ndarray) -> np.ndarray:
    """Return w_n of independent clients: ∝ ∫ p_n Π (1 − p_m + p_m x) dx over [0, 1], m ≠ n."""
    x, weights = np.polynomial.legendre.leggauss(40)
    logarithms = np.log1p(rates[:, None] * ((x + 1) / 2 - 1))
    products = np.exp(logarithms.sum(axis=0) - logarithms)
    shares = (rates[:, None] * products * weights).sum(axis=1)
    return np.asarray(shares / shares.sum())


@pytest.mark.parametrize(("mean", "swing"), [(0.2, 0.15), (0.03, 0.02)])
def test_only_the_lower_end_bounds_the_distance_of_swinging_rates(
    mean: float, swing: float
) -> None:
    """Rates of 100 clients swing in cycles of 50 rounds, each at its own time.

    The distance is known from the expected shares of each round. What windows hold by chance hides
    it: the lower end is below it, but the upper end may be, too, so a summary gives none.
    """
    rounds, clients = np.arange(500)[:, None], np.arange(100)
    rates = mean + swing * np.sin(2 * np.pi * (rounds / 50 + clients / 100))
    shares = np.array([exact_shares(row) for row in rates[:50]])[np.arange(500) % 50]
    random = np.random.default_rng(1)
    below = []
    for _ in range(20):
        found = measure_forgetting(build_log(random.random(rates.shape) < rates))
        count = 500 // found.window
        means = shares[: count * found.window].reshape(count, found.window, -1).mean(axis=1)
        distance = 0.5 * np.abs(means - shares.mean(axis=0)).sum(axis=1).mean()
        below.append(found.interval[0] <= distance)
    assert np.count_nonzero(below) >= 18
    text = describe_forgetting(run_audit(random.random(rates.shape) < rates))
    assert ("at least" in text) == (mean == 0.2)
    assert "at most" not in text
    assert "95%" not in text
