"""What a log says beyond participation: earlier stages, and weights from sample counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.auditing.logs import list_entries

from fedtide.auditing import ParticipationLog
from fedtide.auditing.log.reader import read_participation_log as read
from fedtide.errors import InvalidInputError

STAGES = ["available", "selected", "reported", "used"]


def pairs(log: ParticipationLog | None) -> set[tuple[int, object]]:
    """Return the entries of a log as (round, client)."""
    assert log is not None
    return set(list_entries(log))


def draw_levels(seed: int, rounds: int = 12, clients: int = 7) -> np.ndarray:
    """Return the level that each client reached in each round, (T, N): −1 none, 3 used."""
    return np.random.default_rng(seed).integers(-1, 4, (rounds, clients))


def last_stage_rows(levels: np.ndarray) -> pl.DataFrame:
    """Return one row per round and client: the last stage."""
    rounds, clients = np.nonzero(levels >= 0)
    stages = [STAGES[level] for level in levels[rounds, clients]]
    return pl.DataFrame({"round": rounds, "client": clients, "stage": stages})


def event_rows(levels: np.ndarray, seed: int) -> pl.DataFrame:
    """Return a row for each stage that a client passed, shuffled."""
    rows = [
        {"round": t, "client": n, "stage": STAGES[level]}
        for t in range(len(levels))
        for n in range(levels.shape[1])
        for level in range(levels[t, n] + 1)
    ]
    return pl.DataFrame(rows).sample(fraction=1.0, shuffle=True, seed=seed)


@pytest.mark.parametrize("layout", ["last stage", "events", "events in a file"])
def test_stages_of_a_log_are_those_that_clients_reached(tmp_path: Path, layout: str) -> None:
    levels = draw_levels(seed=3)
    source: pl.DataFrame | Path = last_stage_rows(levels)
    if layout != "last stage":
        source = event_rows(levels, seed=4)
    if layout == "events in a file":
        source.write_parquet(tmp_path / "log.parquet")
        source = tmp_path / "log.parquet"
    log = read(source)
    for entries, lowest in ((log.available, 0), (log.selected, 1), (log, 3)):
        expected = {(int(t), int(n)) for t, n in np.argwhere(levels >= lowest)}
        assert pairs(entries) == expected
        assert entries is not None
        assert (entries.length, entries.size, entries.first_round) == (12, 7, 0)


def test_earlier_stages_are_known_only_if_the_log_has_rows_of_them() -> None:
    rows = last_stage_rows(draw_levels(seed=5))
    used = read(rows.filter(pl.col("stage") == "used"))
    assert used.available is None
    assert used.selected is None
    without_available = read(rows.filter(pl.col("stage") != "available"))
    assert without_available.available is None
    assert without_available.selected is not None
    only_two = read(rows.filter(pl.col("stage").is_in(["available", "used"])))
    assert only_two.available is not None
    assert only_two.selected is None


@pytest.mark.parametrize("stage", STAGES)
def test_client_twice_at_the_same_stage_of_a_round_is_refused(stage: str) -> None:
    stages = ["used", "available", stage, stage]
    rows = pl.DataFrame({"round": [0, 6, 7, 7], "client": [1, 1, 4, 4], "stage": stages})
    with pytest.raises(InvalidInputError, match=r"^client: 4 appears twice in round 7; "):
        read(rows)


@pytest.mark.parametrize("name", ["samples", "num_examples"])
def test_weights_are_the_shares_of_declared_samples_in_each_round(name: str) -> None:
    rows = pl.DataFrame({"round": [0, 0, 2, 2, 2], "client": list("abbac")})
    log = read(rows.with_columns(pl.Series(name, [10, 30, 30, 10, 60])))
    assert log.samples is not None
    assert log.samples.tolist() == [10, 30, 60]
    assert log.weights is not None
    np.testing.assert_allclose(log.weights, [0.25, 0.75, 0.3, 0.1, 0.6], rtol=1e-6)


def test_samples_are_means_and_unknown_where_a_client_declares_none() -> None:
    rows = {
        "round": [0, 1, 1, 2],
        "client": list("aabc"),
        "stage": ["used", "used", "selected", "available"],
        "samples": [10, 20, 7, None],
    }
    log = read(pl.DataFrame(rows))
    assert log.samples is not None
    np.testing.assert_array_equal(log.samples, [15, 7, np.nan])
    assert log.weights is not None
    assert log.weights.tolist() == [1.0, 1.0]
    none = pl.DataFrame({"round": [0, 1], "client": ["a", "b"], "samples": [None, None]})
    assert read(none).samples is None


@pytest.mark.parametrize(
    "weights",
    [
        [0.5, 0.5, 1.0],  # 1 / |S_t|
        [1.3, 0.2, 0.9],  # FedAU's, which sum to about 1
        [2.0, 1.0, 2.0],  # whole numbers, but of the size of q_t^n
    ],
)
def test_participation_weights_stay_as_they_are(weights: list[float]) -> None:
    rows = pl.DataFrame({"round": [0, 0, 1], "client": list("abb"), "weight": weights})
    log = read(rows)
    assert log.weights is not None
    np.testing.assert_array_equal(log.weights, np.float32(weights))
    assert not log.notes


@pytest.mark.parametrize("column", ["weight", "samples"])
def test_rows_of_weight_0_are_no_participation(column: str) -> None:
    """A table with a row for every client in every round reads like the rows of those there."""
    random = np.random.default_rng(8)
    there, counts = random.random((40, 6)) < 0.5, np.array([10.0, 20, 40, 80, 160, 320])
    numbers = there * counts
    if column == "weight":
        numbers = numbers / np.maximum(numbers.sum(axis=1, keepdims=True), 1)
    rounds, clients = np.indices(there.shape).reshape(2, -1)
    table = pl.DataFrame({"round": rounds, "client": clients, column: numbers.ravel()})
    expected = read(table.filter(pl.Series(there.ravel())))
    log = read(table)
    assert pairs(log) == pairs(expected)
    assert log.weights is not None
    assert expected.weights is not None
    np.testing.assert_array_equal(log.weights, expected.weights)
    np.testing.assert_array_equal(log.samples, expected.samples)
    assert log.weightless == (~there).sum()
    assert any(f"{(~there).sum()} of 240 used rows have the" in note for note in log.notes)


def test_stages_say_who_took_part_whatever_the_weights() -> None:
    """A row for each stage: a client whose update was used with weight 0 was neither lost..."""
    rows = [
        {"round": t, "client": n, "stage": stage, "weight": n * t / 3}
        for t in range(3)
        for n in range(2)
        for stage in ("available", "selected", "reported", "used")
    ]
    log = read(pl.DataFrame(rows))
    assert log.selected is not None
    assert len(log.clients) == len(log.selected.clients) == 6
    assert log.notes == ()
    only_used = read(pl.DataFrame(rows).filter(stage="used"))  # ...nor refused
    assert only_used.selected is only_used.reported is None
    assert len(only_used.clients) == 6
