"""Availability against selection, on logs drawn with NumPy alone."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from tests.auditing.logs import Present, build_log, draw_chains

import fedtide as ft
from fedtide.auditing import Audit
from fedtide.auditing.statistics.stages import measure_shift

Random = np.random.Generator
STAGES = np.array(["none", "available", "selected", "reported", "used"])


def select(random: Random, available: Present, weights: NDArray[np.float64], size: int) -> Present:
    """Choose clients one after another by weight among those available (exponential clocks)."""
    clocks = np.where(available, random.exponential(size=available.shape) / weights, np.inf)
    chosen = np.zeros_like(available)
    np.put_along_axis(chosen, np.argsort(clocks, axis=1)[:, :size], True, axis=1)
    return chosen & available


def influence(present: Present) -> NDArray[np.float64]:
    held = present[present.any(axis=1)]
    return np.asarray((held / held.sum(axis=1, keepdims=True)).mean(axis=0))


def to_frame(*levels: Present) -> pl.DataFrame:
    """Return the rows of a log; each level is a subset of the one before, the last is "used"."""
    names = {1: [4], 2: [1, 4], 3: [1, 2, 4], 4: [1, 2, 3, 4]}[len(levels)]
    stage = np.zeros(levels[0].shape, dtype=int)
    for code, level in zip(names, levels, strict=True):
        stage[level] = code
    rounds, clients = np.nonzero(stage)
    return pl.DataFrame(
        {"round": rounds, "client": clients, "stage": STAGES[stage[rounds, clients]]}
    )


@pytest.fixture(scope="module")
def staged() -> tuple[Audit, dict[str, Present]]:
    """200 clients, of which a server with favourites uses a few; 6 are never available."""
    random = np.random.default_rng(0)
    rates = np.clip(random.gamma(1.0, 0.2, 200), 0.05, 0.9)
    available = random.random((300, 200)) < rates
    available[:, :6] = False
    weights = np.where(np.arange(200) < 30, 1.0, 1e-9)
    selected = select(random, available, weights, 5)
    reported = selected & (random.random(selected.shape) < 0.9)
    used = reported.copy()
    used[:, 29] = False
    levels = {"available": available, "selected": selected, "reported": reported, "used": used}
    return ft.audit(to_frame(*levels.values()), clients=200), levels


def test_every_unused_client_has_a_reason(staged: tuple[Audit, dict[str, Present]]) -> None:
    result, levels = staged
    assert result.availability is not None
    assert result.selection is not None
    ever = {name: level.any(axis=0) for name, level in levels.items()}
    assert result.availability.never.tolist() == list(range(6))
    left_out = np.flatnonzero(ever["available"] & ~ever["selected"])
    assert len(left_out) > 100
    assert result.selection.left_out.tolist() == left_out.tolist()
    assert result.selection.refused.tolist() == [29]
    assert (
        result.selection.lost.tolist()
        == np.flatnonzero(ever["selected"] & ~ever["reported"]).tolist()
    )
    reasons = [result.availability.never, left_out, result.selection.refused, result.selection.lost]
    assert sorted(np.concatenate(reasons)) == result.coverage.never.tolist()


def test_bias_of_availability_is_that_of_using_everyone(
    staged: tuple[Audit, dict[str, Present]],
) -> None:
    result, levels = staged
    assert result.availability is not None
    expected = np.abs(influence(levels["available"]) - 1 / 200).sum()
    assert result.availability.objective.l1_skew == pytest.approx(expected)
    low, high = result.availability.objective.interval
    assert low < expected < high


@pytest.mark.statistical
def test_uniform_selection_is_not_called_uneven() -> None:
    """At level 0.05 on bursty availability, in 120 logs: at most 14 rejections, P < 0.001."""
    random = np.random.default_rng(2)
    rates = np.clip(random.gamma(2.0, 0.15, 40), 0.05, 0.9)
    rejected = covered = 0
    for _ in range(120):
        available = draw_chains(random, rates, 200, 0.1)
        used = select(random, available, np.ones(40), 4)
        shift = measure_shift(build_log(available), build_log(used))
        rejected += shift.p_value < 0.05
        covered += shift.distance.interval[0] <= 0.0
    assert rejected <= 14
    assert covered >= 107


@pytest.mark.statistical
def test_interval_covers_the_shift_of_a_selection() -> None:
    """Favourites on bursty availability: the mean weights of 60 selections from the same clients.

    0.87 to 1 of 100 intervals cover: three standard errors around 0.94.
    """
    random = np.random.default_rng(3)
    rates = np.clip(random.gamma(2.0, 0.15, 40), 0.05, 0.9)
    weights = np.where(np.arange(40) % 2, 2.0, 1.0)
    covered = 0
    for _ in range(100):
        available = draw_chains(random, rates, 200, 0.1)
        used = select(random, available, weights, 4)
        again = [influence(select(random, available, weights, 4)) for _ in range(60)]
        truth = np.abs(np.mean(again, axis=0) - influence(available)).sum()
        low, high = measure_shift(build_log(available), build_log(used)).distance.interval
        covered += low <= truth <= high
    assert covered >= 87


@pytest.mark.statistical
@pytest.mark.parametrize("kept", [5, 25])
def test_cohorts_that_are_kept_do_not_favour_anybody(kept: int) -> None:
    """All are taken alike in the long run: 10 of 50 intervals miss 0 with P < 0.001 at level 0.05.

    With the errors of independent draws, almost all would miss it.
    """
    random = np.random.default_rng(6)
    covered = uneven = 0
    for _ in range(50):
        available = random.random((300, 40)) < 0.7
        order = random.random((-(-300 // kept), 40)).repeat(kept, axis=0)[:300]
        clocks = np.where(available, order, np.inf)
        used = available & (clocks <= np.partition(clocks, 3, axis=1)[:, 3:4])
        shift = measure_shift(build_log(available), build_log(used))
        covered += shift.distance.interval[0] <= 0.0
        uneven += shift.p_value < 0.001
    assert covered >= 41
    assert uneven <= 2


@pytest.mark.statistical
def test_failures_that_last_do_not_favour_anybody() -> None:
    """Every client fails a fifth of the time, for some 10 rounds; error probabilities as above."""
    random = np.random.default_rng(7)
    covered = uneven = 0
    for _ in range(50):
        selected = select(random, np.ones((300, 40), dtype=bool), np.ones(40), 10)
        failing = draw_chains(random, np.full(40, 0.2), 300, 0.1)
        used = selected & ~failing
        shift = measure_shift(build_log(selected), build_log(used))
        covered += shift.distance.interval[0] <= 0.0
        uneven += shift.p_value < 0.001
    assert covered >= 41
    assert uneven <= 2


def test_selection_with_favourites_is_called_uneven() -> None:
    random = np.random.default_rng(4)
    available = random.random((200, 30)) < 0.5
    used = select(random, available, np.where(np.arange(30) < 10, 3.0, 1.0), 4)
    assert measure_shift(build_log(available), build_log(used)).p_value < 1e-6


@pytest.mark.parametrize("stage", ["selected", "reported"])
def test_logs_without_availability_say_what_they_can(stage: str) -> None:
    rows: dict[str, Any] = {
        "round": [0, 0, 1, 1, 2],
        "client": ["a", "b", "a", "b", "a"],
        "stage": ["used", stage, "used", stage, "used"],
    }
    result = ft.audit(pl.DataFrame(rows), clients=3)
    assert result.availability is None
    assert result.selection is not None
    limits = " ".join(result.limits)
    assert "never selected, and perhaps never available: 1 client" in limits
    if stage == "selected":
        assert result.selection.lost.tolist() == [1]
    else:
        assert "refused: 1 client (b 2 times)" in limits
