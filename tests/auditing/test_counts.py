"""Everything that is counted, against counting it the slow way."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedtide.auditing.statistics.coverage import cover
from fedtide.auditing.statistics.rate_estimates import half_of, wilson
from fedtide.auditing.statistics.runs_test import count_runs, dependence_tests
from fedtide.auditing.statistics.weights import fedau_weights, participation_shares
from fedtide.auditing.statistics.windows import regularity

tables = st.integers(2, 5).flatmap(
    lambda n: st.lists(
        st.lists(st.booleans(), min_size=n, max_size=n), min_size=4, max_size=24
    ).filter(lambda rows: any(map(any, rows)))
)


def to_frame(of_rounds: Any, rows: list[list[bool]]) -> tuple[Any, NDArray[np.bool_]]:
    present = np.array(rows)
    cohorts = [np.flatnonzero(row).tolist() for row in present]
    return of_rounds(cohorts, present.shape[1]), present


@given(rows=tables)
def test_orders_hold_the_same(of_rounds: Any, rows: list[list[bool]]) -> None:
    log, present = to_frame(of_rounds, rows)
    np.testing.assert_array_equal(log.counts, present.sum(axis=0))
    np.testing.assert_array_equal(log.cohorts, present.sum(axis=1))
    np.testing.assert_array_equal(log.dense(np.arange(log.size)), present.T)


@given(rows=tables)
def test_absences(of_rounds: Any, rows: list[list[bool]]) -> None:
    log, present = to_frame(of_rounds, rows)
    found = cover(log)
    between = []
    for n in range(log.size):
        runs = "".join("1" if there else "0" for there in present[:, n]).split("1")
        assert found.absences[n] == max(map(len, runs))
        between += [len(run) for run in runs[1:-1] if run]
    assert found.typical_absence == (np.median(between) if between else 0)
    assert found.empty_rounds == (~present.any(axis=1)).sum()
    assert found.longest_absence == found.absences[present.any(axis=0)].max()


@given(rows=tables)
def test_runs(of_rounds: Any, rows: list[list[bool]]) -> None:
    log, present = to_frame(of_rounds, rows)
    found = count_runs(log)
    x = present.astype(int)
    np.testing.assert_array_equal(found.pairs, (x[1:] * x[:-1]).sum(axis=0))
    np.testing.assert_array_equal(found.triples, (x[2:] * x[1:-1] * x[:-2]).sum(axis=0))
    np.testing.assert_array_equal(found.returns, (x[2:] * (1 - x[1:-1]) * x[:-2]).sum(axis=0))


@pytest.mark.parametrize("present", [(0, 1, 2, 6), (0, 3, 5), (1, 2), (0, 2, 4, 6)])
def test_the_runs_test_is_exact(of_rounds: Any, present: tuple[int, ...]) -> None:
    """The law of the number of runs, by going through all arrangements."""
    length = 7
    log = of_rounds([[0] if t in present else [] for t in range(length)], 1)
    p, _ = dependence_tests(count_runs(log))

    def runs(places: tuple[int, ...]) -> int:
        return sum(t - 1 not in places for t in places)

    law = np.array([runs(c) for c in combinations(range(length), len(present))])
    found = runs(present)
    expected = min(1.0, 2 * min((law <= found).mean(), (law >= found).mean()))
    assert p[0] == pytest.approx(expected)


@given(rows=tables)
def test_shares_and_their_scale(of_rounds: Any, rows: list[list[bool]]) -> None:
    log, present = to_frame(of_rounds, rows)
    held = present[present.any(axis=1)]
    y = held / held.sum(axis=1, keepdims=True)
    weights, scale = participation_shares(log)
    np.testing.assert_allclose(weights, y.mean(axis=0))
    np.testing.assert_allclose(weights * (scale - weights), y.var(axis=0), atol=1e-12)


@given(rows=tables, cutoff=st.one_of(st.none(), st.integers(1, 8)))
def test_fedau_weights_by_its_listing(
    of_rounds: Any, rows: list[list[bool]], cutoff: int | None
) -> None:
    """Algorithm 2 of paper 001, client by client and round by round."""
    log, present = to_frame(of_rounds, rows)
    expected = np.zeros(log.size)
    for n in range(log.size):
        closed: list[int] = []
        waited = 0
        for t, there in enumerate(present[:, n]):
            if t > 0:
                waited += 1
                if present[t - 1, n] or waited == cutoff:
                    closed.append(waited)
                    waited = 0
            expected[n] += there * (np.mean(closed) if closed else 1.0)
    np.testing.assert_allclose(fedau_weights(log, cutoff), expected / log.length)


@given(rows=tables)
def test_windows(of_rounds: Any, rows: list[list[bool]]) -> None:
    log, present = to_frame(of_rounds, rows)
    size = log.size
    y = present / np.maximum(present.sum(axis=1, keepdims=True), 1)
    wanted = np.full(size, 1 / size)
    weights, _ = participation_shares(log)
    found = regularity(log, wanted, weights, 0.1, None)
    for period, value, worst in zip(found.periods, found.values, found.worst, strict=True):
        cut = len(y) // period * period
        means = y[:cut].reshape(-1, period, size).mean(axis=1)
        each = size * ((means - wanted) ** 2).sum(axis=1)
        assert value == pytest.approx(each.mean(), abs=1e-9)
        assert worst == pytest.approx(each.max(), abs=1e-9)
    near = found.periods[found.values <= found.floor + 0.1]
    assert found.period == (near[0] if len(near) else None)


@given(st.lists(st.integers(0, 50), min_size=1).filter(any))
def test_half_of_all_updates(counts: list[int]) -> None:
    half = half_of(counts)
    rising = sorted(counts, reverse=True)
    assert 2 * sum(rising[:half]) >= sum(counts) > 2 * sum(rising[: half - 1])


def test_wilson_solves_its_equation() -> None:
    """The ends are the rates from which the share is 1.96 standard deviations away."""
    low, high = wilson(0.3, 40)
    for end in (float(low), float(high)):
        assert abs(0.3 - end) / np.sqrt(end * (1 - end) / 40) == pytest.approx(1.959964, abs=1e-5)
