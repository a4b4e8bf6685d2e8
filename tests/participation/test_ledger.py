"""The ledger: rounds that are there wholly and once, whatever dies when, and what it refuses."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

pytest.importorskip("sqlalchemy", reason="the ledger needs fedtide[flower]")

from fedtide.errors import BadInput
from fedtide.participation import STAGES, normalise_log, read_log, write_log
from fedtide.participation.ledger import Entry, Ledger, read_ledger, read_rounds

NOW = 1_800_000_000.0
files = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


clients = st.sampled_from(["ann", "bob", "7", "ü/é", "it's"])
entries = st.builds(
    Entry,
    client=clients,
    stage=st.sampled_from(STAGES),
    weight=st.none() | st.floats(0, 1e6),
    time=st.none() | st.floats(0, 4e9),
    asked=st.none() | st.integers(0, 2**40),
)
rounds = st.lists(st.lists(entries, unique_by=lambda entry: entry.client), max_size=5)


@files
@given(rounds)
def test_what_is_committed_is_read_and_survives_a_file(tmp_path: Path, history: list[list[Entry]]):
    path = tmp_path / "ledger.db"
    path.unlink(missing_ok=True)
    url = f"sqlite:///{path}"
    ledger = Ledger(url)
    for t, entries in enumerate(history):
        ledger.commit(t, entries, time=NOW + t)
    assert ledger.ended == len(history)
    ledger.close()
    wanted = [
        {"round": t, "client": e.client, "stage": e.stage, "weight": e.weight, "time": e.time}
        for t, entries in enumerate(history)
        for e in entries
    ]
    log = read_ledger(url)
    key = lambda row: (row["round"], row["client"].encode())  # noqa: E731
    assert sorted(log.to_dicts(), key=key) == sorted(wanted, key=key)
    assert read_rounds(url).rows() == [(t, NOW + t) for t in range(len(history))]
    assert_frame_equal(normalise_log(log), log)


def test_a_ledger_reads_as_a_log_file_does(url: str, tmp_path: Path):
    ledger = Ledger(url)
    ledger.commit(0, [Entry("b", "selected"), Entry("a", "used", 0.5, NOW)], NOW)
    ledger.commit(2, [Entry("a", "used", 1.0, NOW)], NOW)
    write_log(tmp_path / "log.parquet", read_ledger(url))
    assert_frame_equal(read_log(tmp_path / "log.parquet"), read_ledger(url))


def test_a_round_is_added_once(url: str):
    entries = [Entry("a", "used", 1.0, NOW), Entry("b", "reported", None, NOW, asked=3)]
    Ledger(url).commit(4, entries, NOW)
    Ledger(url).commit(4, entries[::-1], NOW + 1)
    assert len(read_ledger(url)) == 2
    for other in ([], entries[:1], [entries[0], Entry("b", "used", None, NOW, asked=3)]):
        with pytest.raises(BadInput, match="ledger: round 4 of 'default' is there with other"):
            Ledger(url).commit(4, other, NOW)
    assert len(read_ledger(url)) == 2


def test_a_round_is_added_wholly_or_not_at_all(url: str):
    ledger = Ledger(url)
    with pytest.raises(BadInput, match="ledger: "):
        ledger.commit(0, [Entry("a", "used"), Entry("b", "used"), Entry("a", "used")], NOW)
    assert ledger.ended == 0
    assert read_ledger(url).is_empty()


def test_federations_share_a_database(url: str):
    for name in ("north", "south"):
        Ledger(url, name).commit(0, [Entry(f"{name}-1", "used", 1.0)], NOW)
    assert read_ledger(url + "#south")["client"].to_list() == ["south-1"]
    with pytest.raises(BadInput, match="holds 2 federations; put #north"):
        read_ledger(url)
    with pytest.raises(BadInput, match="no federation 'sout'; did you mean 'south'"):
        read_ledger(url + "#sout")


KILLED = """
import os, signal, sys
import sqlalchemy as sql
from fedtide.participation.ledger import Entry, Ledger

ledger = Ledger(sys.argv[1])
ledger.commit(0, [Entry("a", "used")], 0.0)
count = 0

@sql.event.listens_for(sql.Engine, sys.argv[2])
def die(*anything):
    global count
    count += 1
    if count == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

ledger.commit(1, [Entry(f"c{i}", "used", 0.5) for i in range(1000)], 1.0)
"""


@pytest.mark.parametrize(
    ("event", "count"),
    [("before_cursor_execute", 2), ("after_cursor_execute", 2), ("after_cursor_execute", 3)],
)
def test_a_writer_killed_in_a_round_leaves_the_rounds_before(url: str, event: str, count: int):
    command = [sys.executable, "-c", KILLED, url, event, str(count)]
    killed = subprocess.run(command, check=False, env=os.environ | {"PYTHONWARNINGS": "ignore"})
    assert killed.returncode == -signal.SIGKILL
    assert read_rounds(url)["round"].to_list() == [0]
    assert len(read_ledger(url)) == 1
    Ledger(url).commit(1, [Entry("a", "used")], 1.0)
    assert len(read_ledger(url)) == 2


MAKING = """
import os, signal, sys
import sqlalchemy as sql
from fedtide.participation.ledger import Ledger

@sql.event.listens_for(sql.Engine, "before_cursor_execute")
def die(connection, cursor, statement, *rest):
    if statement.startswith(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

Ledger(sys.argv[1])
"""


@pytest.mark.parametrize(
    "statement", ["\nCREATE TABLE participation", "INSERT INTO fedtide_schema"]
)
def test_the_tables_are_made_together(url: str, statement: str):
    command = [sys.executable, "-c", MAKING, url, statement]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        assert connection.execute("SELECT * FROM sqlite_master").fetchall() == []
    Ledger(url).commit(0, [], NOW)
    assert read_rounds(url)["round"].to_list() == [0]


def test_tables_of_another_version_are_refused(url: str, tmp_path: Path):
    Ledger(url)
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("UPDATE fedtide_schema SET version = 9")
    for refused in (Ledger, read_ledger):
        with pytest.raises(BadInput, match="tables of version 9, this fedtide reads 1"):
            refused(url)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ledger.db", "'ledger.db' is no database URL"),
        ("sqlite:///nowhere/ledger.db", "there is no database 'nowhere/ledger.db'"),
        ("nosuchbase://x", "no database URL|driver"),
    ],
)
def test_what_cannot_be_read_is_refused(url: str, sentence: str):
    with pytest.raises(BadInput, match=sentence):
        read_ledger(url)


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path):
    other = tmp_path / "other.db"
    sqlite3.connect(other).execute("CREATE TABLE x (y)").connection.close()
    (tmp_path / "text.db").write_text("no database" * 100)
    for name in ("other.db", "text.db"):
        with pytest.raises(BadInput, match=r"ledger: .* fails"):
            read_ledger(f"sqlite:///{tmp_path / name}")


def test_an_unknown_stage_is_refused():
    with pytest.raises(BadInput, match="stage: 'usd' is unknown; did you mean 'used'"):
        Entry("a", "usd")


def test_an_empty_ledger_is_an_empty_log(url: str):
    Ledger(url)
    assert read_ledger(url).schema == read_ledger_schema()


def read_ledger_schema() -> pl.Schema:
    log = normalise_log(pl.DataFrame({"round": [0], "client": ["a"], "time": [1.0]}))
    return log.schema
