"""The ledger: rounds that are there wholly and once, whatever dies when, and what it refuses.

With SQLite, and with a PostgreSQL server where the machine has one.
"""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from threading import Barrier

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

pytest.importorskip("sqlalchemy", reason="the ledger needs fedtide[flower]")

import sqlalchemy as sql

import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.participation import STAGES, normalise_log, read_log, write_log
from fedtide.participation.log.ledger import Entry, Ledger, read_ledger, read_rounds

from .postgres import Server, programs, server

NOW = 1_800_000_000.0
files = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    found = programs()
    if found is None:
        pytest.skip("no PostgreSQL server on this machine: initdb is not on the PATH")
    if find_spec("psycopg") is None:
        pytest.skip("no driver for PostgreSQL: pip install 'psycopg[binary]'")
    with server(found) as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return request.getfixturevalue("postgres").database()


def run(url: str, statement: str) -> None:
    engine = sql.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sql.text(statement))
    engine.dispose()


def tables(url: str) -> list[str]:
    engine = sql.create_engine(url)
    found = sql.inspect(engine).get_table_names()
    engine.dispose()
    return found


clients = st.sampled_from(["ann", "bob", "7", "ü/é", "it's"])
entries = st.builds(
    Entry,
    client=clients,
    stage=st.sampled_from(STAGES),
    weight=st.none() | st.floats(0, 1e6),
    time=st.none() | st.floats(0, 4e9),
    asked=st.none() | st.integers(0, 2**40),
)
rounds = st.lists(st.lists(entries, unique_by=lambda entry: entry.client), min_size=1, max_size=5)
federations = count()


@files
@given(rounds)
def test_what_is_committed_is_read(url: str, history: list[list[Entry]]):
    ledger = Ledger(url, federation := f"federation {next(federations)}")
    for t, entries in enumerate(history):
        ledger.commit(t, entries, time=NOW + t)
    assert ledger.ended == len(history)
    ledger.close()
    wanted = [
        {"round": t, "client": e.client, "stage": e.stage, "weight": e.weight, "time": e.time}
        for t, entries in enumerate(history)
        for e in entries
    ]
    log = read_ledger(f"{url}#{federation}")
    key = lambda row: (row["round"], row["client"].encode())  # noqa: E731
    assert sorted(log.to_dicts(), key=key) == sorted(wanted, key=key)
    assert read_rounds(f"{url}#{federation}").rows() == [(t, NOW + t) for t in range(len(history))]
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
        with pytest.raises(
            InvalidInputError, match="ledger: round 4 of 'default' is there with other"
        ):
            Ledger(url).commit(4, other, NOW)
    assert len(read_ledger(url)) == 2


def test_a_round_is_added_wholly_or_not_at_all(url: str):
    ledger = Ledger(url)
    with pytest.raises(InvalidInputError, match="ledger: "):
        ledger.commit(0, [Entry("a", "used"), Entry("b", "used"), Entry("a", "used")], NOW)
    assert ledger.ended == 0
    assert read_ledger(url).is_empty()


def test_federations_share_a_database(url: str):
    for name in ("north", "south"):
        Ledger(url, name).commit(0, [Entry(f"{name}-1", "used", 1.0)], NOW)
    assert read_ledger(url + "#south")["client"].to_list() == ["south-1"]
    with pytest.raises(InvalidInputError, match="holds 2 federations; put #north"):
        read_ledger(url)
    with pytest.raises(InvalidInputError, match="no federation 'sout'; did you mean 'south'"):
        read_ledger(url + "#sout")


def together(*work: Callable[[], None]) -> list[BaseException | None]:
    """Do several things at once, and return what each of them raised."""
    barrier = Barrier(len(work))

    def begin(one: Callable[[], None]) -> BaseException | None:
        barrier.wait()
        try:
            one()
        except InvalidInputError as error:
            return error
        return None

    with ThreadPoolExecutor(len(work)) as pool:
        return list(pool.map(begin, work))


def test_two_writers_add_the_same_round_once(url: str):
    writers = [Ledger(url), Ledger(url)]
    for t in range(20):
        same = [Entry("a", "used", 0.5, NOW), Entry("b", "used", 0.5, NOW)]
        assert together(*(partial(w.commit, t, same, NOW) for w in writers)) == [None, None]
    for t in range(20, 40):
        work = [partial(w.commit, t, [Entry(f"c{i}", "used")], NOW) for i, w in enumerate(writers)]
        [reason] = [error for error in together(*work) if error is not None]
        assert "is there with other entries" in str(reason)
    assert read_rounds(url)["round"].to_list() == list(range(40))
    assert read_ledger(url).height == 2 * 20 + 20


def test_federations_that_begin_together_make_the_tables_once(url: str):
    names = [f"federation {n}" for n in range(4)]
    work = [lambda name=name: Ledger(url, name).commit(0, [], NOW) for name in names]
    assert together(*work) == [None] * 4
    assert [read_rounds(f"{url}#{name}").height for name in names] == [1] * 4


def test_a_server_that_crashed_and_is_back_has_all_rounds_and_takes_more(postgres: Server):
    ledger = Ledger(url := postgres.database())
    for t in range(3):
        ledger.commit(t, [Entry("a", "used", 1.0, NOW)], NOW)
        postgres.end(signal.SIGQUIT)  # at once, as in a crash: it recovers from its journal
        with pytest.raises(InvalidInputError, match=r"ledger: .* fails"):
            ledger.commit(t + 1, [], NOW)
        postgres.start()
    ledger.commit(3, [], NOW)
    assert read_rounds(url)["round"].to_list() == [0, 1, 2, 3]
    assert read_ledger(url).height == 3


def test_the_audit_reads_it_and_no_password_is_shown(url: str):
    Ledger(url).commit(0, [Entry("ann", "used", 1.0, NOW), Entry("bob", "selected")], NOW)
    assert ft.audit(url, clients=3).log.length == 1
    if url.startswith("postgresql"):
        secret = url.replace("@", ":secret@").replace("ledger_", "nobody_")
        with pytest.raises(InvalidInputError, match=r"ledger: .*:\*\*\*@") as refused:
            ft.audit(secret)
        assert "secret" not in str(refused.value)


KILLED = """
import os, signal, sys
import sqlalchemy as sql
from fedtide.participation.log.ledger import Entry, Ledger

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
from fedtide.participation.log.ledger import Ledger

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
    assert tables(url) == []
    Ledger(url).commit(0, [], NOW)
    assert read_rounds(url)["round"].to_list() == [0]


def test_tables_of_another_version_are_refused(url: str):
    Ledger(url)
    run(url, "UPDATE fedtide_schema SET version = 9")
    for refused in (Ledger, read_ledger):
        with pytest.raises(InvalidInputError, match="tables of version 9, this fedtide reads 1"):
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
    with pytest.raises(InvalidInputError, match=sentence):
        read_ledger(url)


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path):
    other = tmp_path / "other.db"
    sqlite3.connect(other).execute("CREATE TABLE x (y)").connection.close()
    (tmp_path / "text.db").write_text("no database" * 100)
    for name in ("other.db", "text.db"):
        with pytest.raises(InvalidInputError, match=r"ledger: .* fails"):
            read_ledger(f"sqlite:///{tmp_path / name}")


def test_an_unknown_stage_is_refused():
    with pytest.raises(InvalidInputError, match="stage: 'usd' is unknown; did you mean 'used'"):
        Entry("a", "usd")


def test_an_empty_ledger_is_an_empty_log(url: str):
    Ledger(url)
    assert read_ledger(url).schema == read_ledger_schema()


def read_ledger_schema() -> pl.Schema:
    log = normalise_log(pl.DataFrame({"round": [0], "client": ["a"], "time": [1.0]}))
    return log.schema
