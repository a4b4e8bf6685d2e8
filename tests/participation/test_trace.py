"""Traces against a brute-force search of the intervals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedtide.errors import InvalidInputError
from fedtide.participation import Replay, Table, Trace
from fedtide.population import Population

CLIENTS = 4
tenths = st.integers(0, 120)
files = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def write_trace(path: Path, rows: list[tuple[object, object, object]]) -> Path:
    pl.DataFrame(rows, schema=["client", "start", "end"], orient="row").write_csv(path)
    return path


@st.composite
def intervals(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Draw disjoint (touching allowed) intervals of tenths of seconds for each client."""
    rows = []
    for client in range(CLIENTS):
        times = sorted(draw(st.lists(tenths, max_size=8, unique=draw(st.booleans()))))
        rows += [(client, a, b) for a, b in zip(times[::2], times[1::2], strict=False)]
    return draw(st.permutations(rows)) if rows else [(0, 0, 10)]


@pytest.mark.fuzz
@files
@given(rows=intervals(), step=st.integers(1, 15), repeat=st.integers(0, 130), data=st.data())
def test_every_round_matches_brute_force(
    rows: list[tuple[int, int, int]], step: int, repeat: int, data: st.DataObject, tmp_path: Path
) -> None:
    """Everything in tenths of seconds, so that decimals meet binary fractions at boundaries."""
    path = write_trace(tmp_path / "trace.csv", [(c, f"{a / 10}", f"{b / 10}") for c, a, b in rows])
    last = max(b for _, a, b in rows if a < b) if any(a < b for _, a, b in rows) else 0
    repeats: bool | float = False
    if repeat % 3 == 1:
        repeats = True
    elif repeat % 3 == 2 and repeat >= last:
        repeats = repeat / 10
    trace = Trace(path, round_seconds=step / 10, repeat=repeats)
    if not last:
        with pytest.raises(InvalidInputError, match=r"^file: .* has no rows with an end after"):
            trace.begin(Population(clients=CLIENTS), seed=0)
        return
    running = trace.begin(Population(clients=CLIENTS), seed=0)
    period = last if repeats is True else repeat
    for t in [*range(30), data.draw(st.integers(30, 10**7))]:
        instant = t * step
        if repeats is not False:
            instant %= period
        expected = sorted({c for c, a, b in rows if a <= instant < b})
        assert running.round(t).clients.tolist() == expected


def test_interval_boundaries_and_repeats(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.csv", [(0, 0, 10), (1, 10, 20), (0, 20, 30)])
    running = Trace(path, round_seconds=10).begin(Population(clients=2), seed=0)
    assert [running.round(t).clients.tolist() for t in range(4)] == [[0], [1], [0], []]
    assert running.length == 3
    running = Trace(path, 10, repeat=True).begin(Population(clients=2), seed=0)
    assert [running.round(t).clients.tolist() for t in (0, 2, 3, 4, 3 * 10**9)] == [
        [0],
        [0],
        [0],
        [1],
        [0],
    ]
    running = Trace(path, 10, repeat=40).begin(Population(clients=2), seed=0)
    assert [running.round(t).clients.tolist() for t in (3, 4, 5)] == [[], [0], [1]]


def test_intervals_of_a_client_that_overlap_count_once(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.csv", [(0, 0, 5), (0, 3, 8), (1, 4, 5)])
    running = Trace(path, 1).begin(Population(clients=2), seed=0)
    found = [running.round(t).clients.tolist() for t in range(8)]
    assert found == [[0], [0], [0], [0], [0, 1], [0], [0], [0]]


def test_many_intervals_of_different_lengths(tmp_path: Path) -> None:
    """Lengths over 12 powers of 2; the reference compares all intervals with each instant."""
    rng = np.random.default_rng(0)
    clients = np.arange(3000)
    starts = rng.random(3000) * 1000
    ends = starts + np.exp(rng.uniform(-4, 6, 3000))
    path = tmp_path / "trace.parquet"
    pl.DataFrame({"client": clients, "start": starts, "end": ends}).write_parquet(path)
    running = Trace(path, 7.25).begin(Population(clients=3000), seed=0)
    for t in range(150):
        available = (starts <= 7.25 * t) & (7.25 * t < ends)
        np.testing.assert_array_equal(running.round(t).clients, clients[available])


def test_decimal_instants_meet_interval_boundaries(tmp_path: Path) -> None:
    """Round 100 of 0.57 s is at 57 s, where 0.57 * 100 in binary is below it."""
    assert 0.57 * 100 < 57
    path = write_trace(tmp_path / "trace.csv", [(0, 57, 58)])
    running = Trace(path, 0.57).begin(Population(clients=1), seed=0)
    assert running.round(100).clients.tolist() == [0]


def test_times_in_single_precision_are_the_decimals_that_are_meant(tmp_path: Path) -> None:
    """0.3 in single precision is 0.30000001192, after the instant of round 3 of 0.1 seconds."""
    rows = [(0, 0.3, 0.5), (1, 0.1, 0.3)]
    frame = pl.DataFrame(
        rows, schema={"client": pl.Int64, "start": pl.Float32, "end": pl.Float32}, orient="row"
    )
    frame.write_parquet(tmp_path / "trace.parquet")
    running = Trace(tmp_path / "trace.parquet", 0.1).begin(Population(clients=2), seed=0)
    found = [running.round(t).clients.tolist() for t in range(6)]
    assert found == [[], [1], [1], [0], [0], []]
    wrong = frame.with_columns(end=pl.Series([0.5, float("nan")], dtype=pl.Float32))
    wrong.write_parquet(tmp_path / "trace.parquet")
    with pytest.raises(InvalidInputError, match=r"^file: end in row 2 is"):
        Trace(tmp_path / "trace.parquet", 0.1).begin(Population(clients=2), seed=0)


@pytest.mark.parametrize(
    ("rows", "start"),
    [
        ([(0, 5, 3)], "file: row 1 ends at 3.0, before its start"),
        ([(9, 0, 5)], "file: client 9"),
        ([("a", 0, 1), ("a", 1, 2)], "file: 1 different client"),
        ([(0, -1, 5)], "file: start in row 1 is"),
        ([(0, 0, 5), (0, "2026-01-01T00:00", 5)], "file: start in row 2 is '2026-01-01T00:00'"),
        ([(0, 1767225600, 1767229200)], "file: its times begin at 1767225600 seconds"),
        ([], "file: '.*trace.csv' has no rows"),
        ([(None, 0, 5)], "file: the client is missing in row 1"),
    ],
)
def test_invalid_rows_are_rejected(
    rows: list[tuple[object, object, object]], start: str, tmp_path: Path
) -> None:
    path = write_trace(tmp_path / "trace.csv", rows)
    with pytest.raises(InvalidInputError, match=f"^{start}.*; .+"):
        Trace(path, 1.0).begin(Population(clients=2), seed=0)


def test_invalid_parameters_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"^round_seconds: 0 "):
        Trace("trace.csv", round_seconds=0)
    with pytest.raises(InvalidInputError, match=r"^repeat: -1 "):
        Trace("trace.csv", round_seconds=1, repeat=-1)
    path = write_trace(tmp_path / "trace.csv", [(0, 0, 10)])
    with pytest.raises(InvalidInputError, match=r"^repeat: 5 .*; "):
        Trace(path, 1, repeat=5).begin(Population(clients=1), seed=0)
    pl.DataFrame({"client": [0], "begin": [1], "end": [2]}).write_csv(path)
    with pytest.raises(InvalidInputError, match=r"^file: .*'start'.*'client', 'begin'.*; "):
        Trace(path, 1).begin(Population(clients=1), seed=0)


TABLES: dict[str, Callable[[pl.DataFrame], Any]] = {
    "polars": lambda frame: frame,
    "rows": pl.DataFrame.to_dicts,
    "pandas": lambda frame: pytest.importorskip("pandas").DataFrame(frame.to_dict(as_series=False)),
}


@pytest.mark.parametrize("library", TABLES)
def test_tables_in_memory(library: str) -> None:
    convert, names = TABLES[library], Population(2, names=np.array(["ann", "bob"]))
    log = pl.DataFrame({"round": [0, 1, 1], "client": ["bob", "ann", "bob"], "weight": 0.5})
    trace = pl.DataFrame({"client": ["bob", "ann"], "start": [0.0, 1.0], "end": [2.0, 1.5]})
    for process in (Replay(convert(log)), Table(convert(log)), Trace(convert(trace), 1.0)):
        for _ in range(2):
            running = process.begin(names, seed=0)
            assert [running.round(t).clients.tolist() for t in range(3)] == [[1], [0, 1], []]
    rates = Table(convert(log)).known_rates(names, seed=0)
    assert rates.tolist() == [0.5, 1.0]
