"""The participation log: round trips, replays and invalid files."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from fedtide.errors import InvalidInputError
from fedtide.participation import (
    STAGES,
    Bernoulli,
    Markov,
    RandomDropout,
    Replay,
    Schedule,
    Stage,
    Table,
    UniformOf,
    read_log,
    round_rows,
    to_frame,
    write_log,
)
from fedtide.population import Population

files = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
# Client names in plain-text files contain no control or surrogate characters.
names = st.text(st.characters(exclude_categories=["C"], codec="utf-8"), min_size=1, max_size=8)
names = names.filter(lambda name: not name.lstrip("-").isdigit() and name == name.strip())
suffixes = pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])


@st.composite
def logs(draw: st.DrawFn) -> pl.DataFrame:
    client = draw(st.sampled_from([st.integers(-(2**63), 2**63 - 1), names]))
    keys = st.tuples(st.integers(0, 2**40), client)
    rows = draw(st.lists(keys, min_size=1, max_size=20, unique=True))
    weight = st.none() | st.floats(0, 1e300, allow_subnormal=False)
    count = len(rows)
    return pl.DataFrame(
        {
            "round": [row[0] for row in rows],
            "client": [row[1] for row in rows],
            "stage": draw(st.lists(st.sampled_from(STAGES), min_size=count, max_size=count)),
            "weight": draw(st.lists(weight, min_size=count, max_size=count)),
        },
        schema_overrides={"stage": Stage, "weight": pl.Float64},
    )


@pytest.mark.fuzz
@suffixes
@files
@given(log=logs())
def test_round_trip_of_generated_logs(suffix: str, log: pl.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / f"log{suffix}"
    write_log(path, log)
    assert_frame_equal(read_log(path), log, check_exact=True)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_missing_columns_are_filled(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("server_round,node,time\n3,ann,1.5\n4,ann,2.5\n")
    log = read_log(path, {"round": "server_round", "client": "node"})
    assert log.columns == ["round", "client", "stage", "weight", "time"]
    assert log["round"].to_list() == [3, 4]
    assert log["stage"].to_list() == ["used", "used"]
    assert log["weight"].to_list() == [None, None]
    assert log["time"].to_list() == [1.5, 2.5]


def simulate_log(schedule: Schedule, rounds: int, lowest: str) -> pl.DataFrame:
    running = schedule.start(Population(clients=12), seed=6)
    return to_frame([round_rows(running.round(t), lowest) for t in range(rounds)])


def test_replaying_a_log_repeats_its_rounds(tmp_path: Path) -> None:
    schedule = Schedule(Markov(0.4), UniformOf(3), RandomDropout(0.2))
    path = tmp_path / "log.csv"
    write_log(path, simulate_log(schedule, 50, "available"))
    population = Population(clients=12)
    first = schedule.start(population, seed=6)
    used = Replay(path).begin(population, seed=0)
    selected = Replay(path, stage="selected").begin(population, seed=0)
    available = Replay(path, stage="available").begin(population, seed=0)
    for t in range(50):
        who = first.round(t)
        again = used.round(t)
        np.testing.assert_array_equal(again.clients, who.reported)
        assert again.weights is not None
        np.testing.assert_array_equal(again.weights, who.weights)
        np.testing.assert_array_equal(selected.round(t).clients, who.selected)
        np.testing.assert_array_equal(available.round(t).clients, who.available)


@pytest.mark.parametrize("lowest", STAGES)
def test_rows_name_the_furthest_stage(lowest: str) -> None:
    schedule = Schedule(Bernoulli(0.6), UniformOf(4), RandomDropout(0.4))
    population = Population(clients=12)
    running = schedule.start(population, seed=6)
    for t in range(30):
        who = running.round(t)
        used = who.reported[::2]
        frame = to_frame([round_rows(who, lowest, used)])
        expected = []
        for n in who.available.tolist():
            stage = sum(n in level for level in (who.selected, who.reported, used))
            weight = None
            if n in who.reported:
                weight = float(who.weights[who.reported.tolist().index(n)])
            if stage >= STAGES.index(lowest):
                expected.append((t, n, STAGES[stage], weight))
        assert frame.rows() == expected


@pytest.mark.parametrize("stages", [[], ["available"]])
def test_a_log_without_anybody_cannot_be_replayed(stages: list[str]) -> None:
    log = pl.DataFrame({"round": [0], "client": [1]}).head(len(stages))
    replay = Replay(log.with_columns(stage=pl.Series(stages, dtype=pl.String)))
    with pytest.raises(InvalidInputError, match=r"^log: it has no clients of the stage .*; "):
        replay.begin(Population(clients=2), seed=0)


ROWS = {"round": [0, 0, 1, 1, 2], "client": [0, 1, 3, 4, 2]}


def test_a_replay_refuses_what_may_say_who_failed() -> None:
    log = pl.DataFrame({"round": [0, 1, 1], "client": [0, 1, 0], "Status": ["ok", "timeout", "ok"]})
    with pytest.raises(InvalidInputError, match=r"^log: the column 'Status' tells rows apart"):
        Replay(log=log).begin(Population(clients=2), seed=0)
    stages = {"ok": "used", "timeout": "selected"}
    for replay in (Replay(log, stages=stages), Replay(log, where={"Status": "ok"})):
        stream = replay.begin(Population(clients=2), seed=0)
        assert [stream.round(t).clients.tolist() for t in range(2)] == [[0], [0]]
    everyone = Replay(log, ignore=["Status"]).begin(Population(clients=2), seed=0)
    assert everyone.round(1).clients.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("in_file", "start", "columns"),
    [(True, 0, {}), (False, 1, {}), (True, 100, {"round": "server_round"})],
)
def test_a_replay_begins_with_the_first_round_of_a_log(
    in_file: bool, start: int, columns: dict[str, str], tmp_path: Path
) -> None:
    log = pl.DataFrame(ROWS).with_columns(pl.col("round") + start).rename(columns)
    log.write_csv(tmp_path / "log.csv")
    replay = Replay(tmp_path / "log.csv" if in_file else log, columns=columns or None)
    running = replay.begin(Population(clients=5), seed=0)
    assert running.length == 3
    assert [running.round(t).clients.tolist() for t in range(3)] == [[0, 1], [3, 4], [2]]
    rates = replay.known_rates(Population(clients=5), seed=0)
    np.testing.assert_allclose(rates, np.full(5, 1 / 3))


@pytest.mark.parametrize(("first", "skipped"), [(None, 2), (0, 2), (1, 1), (2, 0)])
def test_a_log_with_stages_keeps_its_empty_first_rounds(first: int | None, skipped: int) -> None:
    """The first of its rows is of a client that was only available, and in round 2."""
    stages = ["available", *["used"] * 4]
    log = pl.DataFrame(ROWS).with_columns(pl.col("round") + 2, stage=pl.Series(stages))
    running = Replay(log, first_round=first).begin(Population(clients=5), seed=0)
    assert running.length == skipped + 3
    rounds = [running.round(t).clients.tolist() for t in range(running.length)]
    assert rounds == [[]] * skipped + [[1], [3, 4], [2]]


def test_a_first_round_after_rows_of_the_log_is_refused() -> None:
    replay = Replay(pl.DataFrame(ROWS), first_round=1)
    with pytest.raises(InvalidInputError, match=r"^first_round: .* round 0, before round 1; "):
        replay.begin(Population(clients=5), seed=0)
    with pytest.raises(InvalidInputError, match=r"^first_round: -1 is not a number"):
        Replay(pl.DataFrame(ROWS), first_round=-1)


def test_the_folder_of_a_run_is_replayed(tmp_path: Path) -> None:
    log = tmp_path / "participation.parquet"
    pl.DataFrame({"round": [0, 1], "client": [0, 1]}).write_parquet(log)
    replay = Replay(str(tmp_path))
    assert replay.log == log  # whose content belongs to the fingerprint of a run
    running = replay.begin(Population(clients=2), seed=0)
    assert [running.round(t).clients.tolist() for t in range(2)] == [[0], [1]]


def test_a_table_file_gives_the_same_rounds_as_its_array(tmp_path: Path) -> None:
    table = np.array([[0.5, 0, 0.5], [0, 0, 0], [0.2, 0.3, 0.5]])
    rounds, clients = np.nonzero(table + 1)
    path = tmp_path / "table.parquet"
    weights = table[rounds, clients]
    pl.DataFrame({"round": rounds, "client": clients, "weight": weights}).write_parquet(path)
    population = Population(clients=3)
    by_file, by_array = (Table(w).begin(population, 0) for w in (path, table))
    assert by_file.length == by_array.length == 3
    for t in range(4):
        ours, theirs = by_file.round(t), by_array.round(t)
        np.testing.assert_array_equal(ours.clients, theirs.clients)
        np.testing.assert_array_equal(ours.weights, theirs.weights)
    np.testing.assert_allclose(Table(path).known_rates(population, 0), [2 / 3, 1 / 3, 2 / 3])


def _file(name: str, content: str | bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


@pytest.mark.parametrize(
    ("make", "start", "word"),
    [
        (lambda d: d / "none.csv", "log: ", "none.csv"),
        (_file("log.txt", "round"), "log: ", "suffix"),
        (_file("log.parquet", ""), "log: ", "empty"),
        (_file("log.parquet", b"PAR1 cut short"), "log: ", "readable .parquet"),
        (_file("log.csv", b"\xff\xfe\x00\x01\x00"), "log: ", "save it as UTF-8"),
        (_file("log.csv", "step,client\n0,1\n"), "log: ", "'round' among 'step', 'client'"),
        (_file("log.csv", "round,client\n0,1\n1,2\n0,1\n"), "client: 1", "round 0"),
        (_file("log.csv", "round,client\n-1,1\n"), "round: -1", ""),
        (_file("log.csv", "round,client\n0,\n1,2\n"), "client: ", "missing in row 1"),
        (_file("log.jsonl", '{"round":0,"client":1.5}\n'), "client: ", "Float64"),
        (_file("log.csv", "round,client,stage\n0,1,slected\n"), "stage: ", "available, selected,"),
        (_file("log.csv", "round,client,weight\n0,1,inf\n"), "weight: inf", ""),
    ],
)
def test_invalid_files_are_rejected(
    make: Callable[[Path], Path], start: str, word: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{start}.*; .+") as error:
        read_log(make(tmp_path))
    assert word in str(error.value)


def test_rows_without_a_stage_are_rejected_where_others_have_one(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("round,client,stage\n0,a,used\n0,b,\n1,a,selected\n1,b,\n")
    with pytest.raises(InvalidInputError, match=r"^stage: 2 of 4 rows have no stage"):
        read_log(path)
    path.write_text("round,client,stage\n0,a,\n1,b,\n")
    assert read_log(path)["stage"].to_list() == ["used", "used"]


def test_replaying_availability_leaves_out_clients_whose_name_another_node_claimed() -> None:
    rows = [(0, "a", "used", None), (0, "b", "available", "unregistered"), (1, "b", "used", None)]
    log = pl.DataFrame(rows, schema=["round", "client", "stage", "reason"], orient="row")
    stream = Replay(log, stage="available").begin(Population(clients=2), seed=0)
    assert [stream.round(t).clients.tolist() for t in range(2)] == [[0], [1]]
