"""Variances of means over dependent rounds, against closed forms and plain computations."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.auditing.logs import build_log, draw_chains, from_cohorts

from fedtide.auditing import ParticipationLog
from fedtide.auditing.statistics.influence import compare_objectives
from fedtide.auditing.statistics.long_run_variance import fit_shape, long_run_variance
from fedtide.auditing.statistics.pattern import Pattern, find_pattern
from fedtide.auditing.statistics.periodogram import Parts, client_periodograms, series_periodogram
from fedtide.auditing.statistics.rate_estimates import (
    Dispersion,
    RateEstimates,
    estimate_dispersion,
    estimate_rates,
)
from fedtide.auditing.statistics.recent_influence import measure_recent_influence
from fedtide.auditing.statistics.runs import count_runs
from fedtide.auditing.statistics.variance import VarianceModel

Floats = NDArray[np.float64]


def disperse(log: ParticipationLog, period: int | None = None) -> Dispersion:
    rates = log.counts / log.length
    return estimate_dispersion(log, None, rates, rates * (1 - rates), count_runs(log), period)


def spectrum(series: Floats) -> Floats:
    """|Σ_t y_t exp(−2πi f t / T)|² / T for f = 1, 2, ..., by NumPy's transform."""
    return np.asarray(np.abs(np.fft.rfft(series, axis=0)[1:]) ** 2 / len(series))


@pytest.mark.parametrize(("length", "period"), [(100, None), (7, None), (107, 10), (60, 20)])
def test_periodograms_match_a_fourier_transform(length: int, period: int | None) -> None:
    """Of each client's part of the rounds less its share of all parts, in whole cycles."""
    random = np.random.default_rng(0)
    present = random.random((length, 6)) < [0.1, 0.3, 0.5, 0.9, 0.2, 0.0]
    log = build_log(present)
    parts = random.random(length)
    means = random.random(6)
    used = length // (period or 1) * (period or 1)
    series = present * parts[:, None]
    series = (series - means * series.sum(axis=1, keepdims=True))[:used]
    found = client_periodograms(log, Parts(parts), means, period)
    count = found.powers.shape[1]
    assert count == min(32, length // period - 1 if period else (length - 1) // 2)
    np.testing.assert_allclose(found.powers, spectrum(series)[:count].T, rtol=1e-4, atol=1e-6)
    of_entries = Parts(np.ones(length), parts[np.repeat(np.arange(length), log.cohorts)])
    np.testing.assert_allclose(
        client_periodograms(log, of_entries, means, None).powers,
        client_periodograms(log, Parts(parts), means, None).powers,
        rtol=1e-5,
    )


def test_periodograms_of_long_logs_are_accurate() -> None:
    series = np.random.default_rng(0).normal(size=50_000).cumsum()
    found = series_periodogram(series, None)
    np.testing.assert_allclose(found.powers[0], spectrum(series)[:32], rtol=0.02)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_variance_of_markov_chains(correlation: float) -> None:
    """From the exact spectral density; V = (1 + ρ) / (1 − ρ) − 2 ρ / ((1 − ρ)² T)."""
    length, clients = 1000, 200
    angle = 2 * np.pi * np.arange(1, 33) / length
    density = (1 - correlation**2) / (1 - 2 * correlation * np.cos(angle) + correlation**2)
    shape = fit_shape(np.tile(density, (clients, 1)), np.ones(clients))
    exact = (1 + correlation) / (1 - correlation)
    exact -= 2 * correlation / (1 - correlation) ** 2 / length
    assert shape.level == pytest.approx(exact, rel=0.05)
    np.testing.assert_allclose(shape.ratios[:8] * shape.level, density[:8], rtol=0.05)
    assert shape.long_memory < 0.01


@pytest.mark.parametrize(("bend", "corner"), [(0.7, 3.0), (1.0, 1.0), (1.4, 3.0)])
def test_variance_of_densities_with_a_cusp(bend: float, corner: float) -> None:
    """S = (1 + (f / f_0)^β)^(−2/β), as of uneven sessions, and V = ∫ S(f) sinc²(f) df."""
    step = 1 / 512
    frequencies = np.arange(step / 2, 256, step)

    def density(f: Floats) -> Floats:
        return np.asarray((1 + (f / corner) ** bend) ** (-2 / bend))

    exact = 2 * step * float((density(frequencies) * np.sinc(frequencies) ** 2).sum())
    powers = np.tile(density(np.arange(1.0, 33.0)), (400, 1))
    assert fit_shape(powers, np.ones(400)).level == pytest.approx(exact, rel=0.1)


def test_causes_in_common_leave_few_independent_series() -> None:
    """30 clients of rates 0.5: independent, or all present in the same rounds."""
    random = np.random.default_rng(0)
    for present, low, high in (
        (random.random((400, 30)) < 0.5, 20, 45),
        (np.repeat(random.random((400, 1)) < 0.5, 30, axis=1), 0.99, 1.01),
    ):
        log = build_log(present)
        found = client_periodograms(log, None, log.counts / 400, None)
        assert low < found.independent < high


def test_long_memory_is_recognised() -> None:
    """S(f) ∝ 1 / √f, the limit of sessions with Pareto's tail 1.5."""
    density = 1 / np.sqrt(np.arange(1, 33))
    assert fit_shape(np.tile(density, (200, 1)), np.ones(200)).long_memory > 0.9


def test_dispersion_of_independent_rounds_is_one() -> None:
    """Within 5% for 150 clients over 600 rounds: standard error 0.011."""
    present = np.random.default_rng(1).random((600, 150)) < np.linspace(0.05, 0.9, 150)
    found = disperse(build_log(present))
    assert found.values.mean() == pytest.approx(1, abs=0.05)
    assert found.freedom.min() > 30
    slopes: Floats = np.linspace(-75, 74, 150)  # known as well as from 64 degrees of freedom
    series: Floats = np.einsum("tn,n->t", present, slopes)
    variances = present.mean(axis=0) * (1 - present.mean(axis=0)) * found.values
    exact = float((slopes**2 * variances).sum()) / 600
    assert found.variance_of_mean(series) == pytest.approx(exact, rel=0.4)


def test_rare_clients_have_a_memory_of_their_own() -> None:
    """D = (1 + ρ) / (1 − ρ) = 19 for 40 rare clients, beside 40 frequent ones without memory.

    The mean over 40 clients has a standard error of about 0.1 of it: 0.35 is 3.5 of them.
    """
    rates, correlation = np.repeat([0.3, 0.03], 40), np.repeat([0.0, 0.9], 40)
    found = disperse(build_log(draw_chains(np.random.default_rng(3), rates, 2000, 1 - correlation)))
    assert found.values[:40].mean() == pytest.approx(1, rel=0.35)
    assert found.values[40:].mean() == pytest.approx(19, rel=0.35)


def test_visits_of_equal_rare_clients_do_not_predict_their_memory() -> None:
    """Of 1000 clients in sessions of 4 rounds on average, 0.5 a client, many never come.

    D = (1 + ρ) / (1 − ρ) with 4 = 1 / ((1 − ρ) (1 − p)).
    """
    correlation = 1 - 1 / (4 * (1 - 0.004))
    rates = np.full(1000, 0.004)
    present = draw_chains(np.random.default_rng(4), rates, 500, 1 - correlation)
    found = disperse(build_log(present))
    exact = (1 + correlation) / (1 - correlation)
    never = ~present.any(axis=0)
    assert never.sum() > 400
    assert found.values[never].mean() == pytest.approx(exact, rel=0.4)


@pytest.mark.parametrize("floor", [0.0, 0.5])
def test_variance_above_noise_without_memory(floor: float) -> None:
    """S = (1 − c) g(f) / g(1) + c, g of a Markov chain, and V = ∫ S(f) sinc²(f) df."""
    step = 1 / 512
    frequencies = np.arange(step / 2, 256, step)

    def density(f: Floats) -> Floats:
        return np.asarray((1 - floor) * 5 / (1 + (f / 2) ** 2) / 4 + floor)

    exact = 2 * step * float((density(frequencies) * np.sinc(frequencies) ** 2).sum())
    powers = density(np.arange(1.0, 33.0))
    clients = fit_shape(np.tile(powers, (400, 1)), np.ones(400))
    assert clients.level == pytest.approx(exact, rel=0.25)
    stretch = (1.998 / 1.960) ** 2  # Student's t of 64 degrees of freedom
    variance = long_run_variance(powers, clients.posterior)
    assert variance == pytest.approx(exact * stretch, rel=0.25)


def test_a_sum_may_have_a_slower_memory_than_its_clients() -> None:
    """S = 1 / (1 + (f / 2)²) of a sum of clients without memory, which show V = 1 at most."""
    powers = 1 / (1 + (np.arange(1.0, 33.0) / 2) ** 2)
    without = fit_shape(np.ones((200, 32)), np.ones(200)).posterior
    with_it = fit_shape(np.tile(powers, (200, 1)), np.ones(200)).posterior
    alike = long_run_variance(powers, with_it)
    assert powers.mean() < 0.15
    assert alike == pytest.approx(1, rel=0.2)
    assert alike < long_run_variance(powers, without) < 6 * alike


def test_strict_cycles_leave_nothing_to_chance() -> None:
    place = (np.arange(240)[:, None] + np.arange(12)) % 24
    found = disperse(build_log(place < np.arange(4, 16)), period=24)
    assert found.values.max() < 1e-6
    np.testing.assert_allclose(found.means, np.arange(4, 16) / 24)


def test_strict_cycles_of_some_do_not_make_those_that_never_came_certain() -> None:
    """Beside 30 clients of independent rounds, whose dispersion is 1."""
    place = (np.arange(480)[:, None] + np.arange(12)) % 24
    present = np.random.default_rng(0).random((480, 31)) < 0.3
    present[:, 30] = False
    log = build_log(np.concatenate([place < np.arange(4, 16), present], axis=1))
    assert disperse(log, period=24).values[-1] > 1


def test_dispersion_falls_with_a_pause_and_rises_with_sessions() -> None:
    """Renewals: the variance of counts relative to chance is (σ / μ)² / (1 − p) of the times."""
    random = np.random.default_rng(2)
    gaps = 10 + random.geometric(0.1, (100, 80))
    rounds = gaps.cumsum(axis=1) - random.integers(10, 40, (100, 1))
    present = np.zeros((800, 100), dtype=bool)
    for client, own in enumerate(rounds):
        present[own[(own >= 0) & (own < 800)], client] = True
    expected = 90 / 20**2 / (1 - 1 / 20)
    found = disperse(build_log(present))
    assert np.median(found.values) == pytest.approx(expected, rel=0.3)
    lasting = np.repeat(random.random((60, 100)) < 0.3, 10, axis=0)
    found = disperse(build_log(lasting))
    assert np.median(found.values) == pytest.approx(10, rel=0.3)


@pytest.mark.parametrize("length", [1, 11])
def test_logs_of_a_few_rounds_have_no_intervals(length: int) -> None:
    """Chance makes strict cycles of a few rounds, whose rates seemed to be known exactly."""
    log = from_cohorts([[t % 2] for t in range(length)], 3)
    found = estimate_rates(log, find_pattern(log))
    assert not found.intervals
    assert np.isnan(found.low).all()
    assert np.isnan(found.high).all()
    assert found.reason is not None
    assert "too few rounds" in found.reason


@pytest.mark.parametrize(("clients", "first"), [(5, [2, 4]), (6, [0, 3, 5])])
def test_a_log_with_power_at_one_frequency_has_intervals_or_a_reason(
    clients: int, first: list[int]
) -> None:
    """No two frequencies can be compared, and the difference of equal sums may round below 0."""
    log = from_cohorts([first] + [list(range(clients))] * 3, clients)
    found = estimate_rates(log, find_pattern(log))
    assert found.intervals or found.reason


def test_few_clients_in_long_sessions_leave_no_intervals() -> None:
    """5 of 50 clients stay for 100 rounds at a time, three times in 1000; the others are quick."""
    random = np.random.default_rng(0)
    for _ in range(2):
        present = random.random((1000, 50)) < 0.2
        log = build_log(present)
        assert estimate_rates(log, find_pattern(log)).intervals
        lasting = random.permuted(np.tile(np.arange(10) < 3, (5, 1)), axis=1)
        present[:, :5] = np.repeat(lasting.T, 100, axis=0)
        log = build_log(present)
        assert not estimate_rates(log, find_pattern(log)).intervals


@pytest.mark.parametrize("idle", [50, 2400])
def test_a_pause_of_the_server_leaves_the_intervals_of_weights_alone(idle: int) -> None:
    """Weights are means over the other rounds: as if the pause had not been."""
    present = np.random.default_rng(1).random((200, 20)) < 0.3
    paused = np.concatenate([present[:100], np.zeros((idle, 20), dtype=bool), present[100:]])
    intervals = []
    for one in (present, paused):
        log = build_log(one)
        pattern = find_pattern(log)
        intervals.append(compare_influence(log, pattern, estimate_rates(log, pattern)))
    without, with_pause = intervals
    for found, expected in zip(with_pause, without, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)
    assert without[0][0] == 0  # no skew


def compare_influence(
    log: ParticipationLog, pattern: Pattern, rates: RateEstimates
) -> tuple[tuple[float, float], Floats, Floats, tuple[float, float]]:
    """Return the intervals of the skew, of the weights, and of the skew in the last rounds."""
    wanted = np.full(log.size, 1 / log.size)
    found = compare_objectives(log, VarianceModel(log, pattern, rates), wanted)
    recent = measure_recent_influence(log, pattern, rates, wanted)
    return found.plain.interval, found.low, found.high, recent.objective.interval
