"""Statistics of small random logs against brute-force computations."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.auditing.logs import Present, build_log, to_frame

import fedtide as ft
from fedtide.auditing import ParticipationLog
from fedtide.auditing.log.reader import read_participation_log
from fedtide.auditing.statistics import autocorrelation, forgetting, windows
from fedtide.auditing.statistics.coverage import measure_coverage
from fedtide.auditing.statistics.forgetting import measure_forgetting
from fedtide.auditing.statistics.influence import average_over_cohorts
from fedtide.auditing.statistics.pattern import find_pattern
from fedtide.auditing.statistics.rate_estimates import count_clients_for_half, wilson_interval
from fedtide.auditing.statistics.runs import count_runs
from fedtide.auditing.statistics.windows import measure_regularity

tables = st.integers(2, 5).flatmap(
    lambda n: st.lists(
        st.lists(st.booleans(), min_size=n, max_size=n), min_size=4, max_size=24
    ).filter(lambda rows: any(map(any, rows)))
)


def index(rows: list[list[bool]]) -> tuple[ParticipationLog, Present]:
    present = np.array(rows)
    return build_log(present), present


@given(rows=tables)
def test_both_orders_hold_the_same_entries(rows: list[list[bool]]) -> None:
    log, present = index(rows)
    np.testing.assert_array_equal(log.counts, present.sum(axis=0))
    np.testing.assert_array_equal(log.cohorts, present.sum(axis=1))
    np.testing.assert_array_equal(log.indicators(np.arange(log.size)), present.T)


@given(rows=tables)
def test_coverage_counts_absences(rows: list[list[bool]]) -> None:
    log, present = index(rows)
    found = measure_coverage(log)
    between = []
    for n in range(log.size):
        runs = "".join("1" if there else "0" for there in present[:, n]).split("1")
        assert found.absences[n] == max(map(len, runs))
        between += [len(run) for run in runs[1:-1] if run]
    assert found.typical_absence == (np.median(between) if between else 0)
    assert found.empty_rounds == (~present.any(axis=1)).sum()
    assert found.longest_absence == found.absences[present.any(axis=0)].max()


@given(rows=tables)
def test_run_counts(rows: list[list[bool]]) -> None:
    log, present = index(rows)
    found = count_runs(log)
    x = present.astype(int)
    np.testing.assert_array_equal(found.pairs, (x[1:] * x[:-1]).sum(axis=0))


@given(rows=tables)
def test_cohort_average_weights_and_scale(rows: list[list[bool]]) -> None:
    log, present = index(rows)
    held = present[present.any(axis=1)]
    y = held / held.sum(axis=1, keepdims=True)
    weights, scale = average_over_cohorts(log)
    np.testing.assert_allclose(weights, y.mean(axis=0))
    np.testing.assert_allclose(weights * (scale - weights), y.var(axis=0), atol=1e-12)


@given(rows=tables)
def test_regularity_of_windows(rows: list[list[bool]]) -> None:
    log, present = index(rows)
    size = log.size
    y = present / np.maximum(present.sum(axis=1, keepdims=True), 1)
    wanted = np.full(size, 1 / size)
    weights, _ = average_over_cohorts(log)
    found = measure_regularity(log, wanted, weights, 0.1, None)
    for period, value in zip(found.periods, found.values, strict=True):
        cut = len(y) // period * period
        sums = y[:cut].reshape(-1, period, size).sum(axis=1)
        held = sums.sum(axis=1, keepdims=True)  # the number of nonempty rounds
        if held.any():
            sums, held = sums[held[:, 0] > 0], held[held[:, 0] > 0]
        means = sums / np.maximum(held, 1)
        each = size * ((means - wanted) ** 2).sum(axis=1)
        assert value == pytest.approx(each.mean(), abs=1e-9)
    near = found.periods[found.values <= found.floor + 0.1]
    assert found.period == (near[0] if len(near) else None)


@given(st.lists(st.integers(0, 50), min_size=1).filter(any))
def test_clients_for_half_of_all_updates(counts: list[int]) -> None:
    half = count_clients_for_half(counts)
    rising = sorted(counts, reverse=True)
    assert 2 * sum(rising[:half]) >= sum(counts) > 2 * sum(rising[: half - 1])


def test_wilson_interval_solves_its_equation() -> None:
    """The share lies 1.96 standard deviations from both ends."""
    low, high = wilson_interval(0.3, 40)
    for end in (float(low), float(high)):
        assert abs(0.3 - end) / np.sqrt(end * (1 - end) / 40) == pytest.approx(1.959964, abs=1e-5)


def test_windows_of_a_log_with_idle_nights_become_regular() -> None:
    """Windows of whole days have the mean weights of their busy hours."""
    hours = np.arange(960) % 24
    present = (np.random.default_rng(0).random((960, 20)) < 0.3) & (hours < 8)[:, None]
    log, _ = index(present.tolist())
    weights, _ = average_over_cohorts(log)
    found = measure_regularity(log, np.full(20, 0.05), weights, 0.1, 24)
    assert found.period is not None
    assert found.period <= 240


@given(rows=tables, cycle=st.integers(1, 6))
def test_idle_rounds_are_left_out_in_whole_cycles(rows: list[list[bool]], cycle: int) -> None:
    """Against a walk over the rounds that drops a cycle of empty ones whenever one is complete."""
    log, present = index(rows)
    expected: list[int] = []
    empty = 0
    for t, row in enumerate(present):
        expected.append(t)
        empty = 0 if row.any() else empty + 1
        if empty == cycle:
            del expected[-cycle:]
            empty = 0
    busy, kept = log.leave_out_idle(cycle)
    assert len(kept) == len(expected)
    np.testing.assert_array_equal(busy.indicators(np.arange(log.size)).T, present[expected])
    np.testing.assert_array_equal(present[kept], present[expected])
    np.testing.assert_array_equal(busy.cohorts, present[kept].sum(axis=1))


@pytest.mark.parametrize(("hurst", "said"), [(0.5, 0), (0.8, 4)])
def test_memory_beyond_the_log_is_said_or_leaves_no_intervals(hurst: float, said: int) -> None:
    """Fractional Gaussian noise below a threshold (circulant embedding; Davies and Harte 1987).

    With H = 0.8 some 0.9 of such logs have either, so less than 4 of 6 have a probability of 0.02.
    """
    lags = np.arange(501.0)
    powers = (lags + 1) ** (2 * hurst) - 2 * lags ** (2 * hurst) + np.abs(lags - 1) ** (2 * hurst)
    circle = np.concatenate([powers / 2, powers[-2:0:-1] / 2])
    scales = np.sqrt(np.maximum(np.fft.fft(circle).real, 0) / len(circle))
    random = np.random.default_rng(0)
    found = 0
    for _ in range(6):
        noise = random.standard_normal((50, len(circle), 2)) @ np.array([1, 1j])
        present = np.fft.fft(scales * noise, axis=1).real[:, :500] < -0.84
        clients, rounds = np.nonzero(present)
        result = ft.audit(pl.DataFrame({"round": rounds, "client": clients}))
        warned = any("rounds before the log" in limit for limit in result.limits)
        found += warned or not result.rates.intervals
    assert found >= said
    assert found == 0 or said


@pytest.mark.parametrize("weighted", [False, True])
def test_samples_of_large_logs_depend_neither_on_names_nor_on_the_order_of_rows(
    monkeypatch: pytest.MonkeyPatch, weighted: bool
) -> None:
    """With low limits, each statistic of this log comes from a third of the clients or fewer."""
    for module, limit, least in (
        (autocorrelation, "_MAX_CELLS", 6000),
        (forgetting, "_MAX_ENTRIES", 1000),
        (windows, "_MAX_ENTRIES", 1000),
    ):
        monkeypatch.setattr(module, limit, least)
    random = np.random.default_rng(0)
    starts = random.random((120, 150)) < np.geomspace(0.05, 0.2, 150)
    present = starts | np.roll(starts, 1, axis=0) | np.roll(starts, 2, axis=0)
    rows = to_frame(present)
    if weighted:
        rows = rows.with_columns(samples=np.geomspace(10, 1000, 150).round()[rows["client"]])
    renamed = rows.with_columns(client=random.permutation(150)[rows["client"]])
    numbers = []
    for log in (rows, renamed, rows.sample(fraction=1.0, shuffle=True, seed=1)):
        found = read_participation_log(log)
        cycle = find_pattern(found).cycle
        assert cycle is not None
        share = np.full(150, 1 / 150)
        curve = measure_regularity(found, share, average_over_cohorts(found)[0], 0.1, None)
        numbers.append(
            [
                cycle.strength,
                *measure_forgetting(found).estimates,
                *curve.values,
            ]
        )
    assert numbers[1] == pytest.approx(numbers[0], rel=1e-9, nan_ok=True)
    assert numbers[2] == pytest.approx(numbers[0], rel=1e-9, nan_ok=True)


def test_a_sample_has_its_share_of_frequent_and_of_rare_clients() -> None:
    """A tenth of the clients at random would have a tenth of the entries within some 30%."""
    random = np.random.default_rng(0)
    present = random.random((200, 400)) < random.permutation(np.geomspace(0.003, 0.9, 400))
    present[:, :20] = False
    log = build_log(present)
    sample = log.sample_clients(0.1)
    assert len(set(sample.tolist())) == len(sample) == round(np.count_nonzero(log.counts) / 10)
    assert log.counts[sample].min() > 0
    assert log.counts[sample].sum() == pytest.approx(len(log.clients) / 10, rel=0.03)
    assert log.sample_clients(1.0).tolist() == list(range(400))
