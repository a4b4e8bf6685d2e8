"""The ledger: atomic commits, concurrent writers, crashes and invalid databases.

Runs on SQLite, and on PostgreSQL if a server is installed.
"""

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from threading import Barrier
from time import monotonic, sleep

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

pytest.importorskip("sqlalchemy", reason="the ledger needs fedtide[flower]")

import sqlalchemy as sql

import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.flower.ledger.ledger import (
    Entry,
    Ledger,
    read_ledger,
    read_ledger_part,
    read_rounds,
)
from fedtide.participation import STAGES, normalise_log, read_log, write_log
from fedtide.participation.log.schema import REASONS

from .databases import create_version_1, execute
from .postgres import POSTGRES, Server

NOW = 1_800_000_000.0
files = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def list_tables(url: str) -> list[str]:
    engine = sql.create_engine(url)
    names = sql.inspect(engine).get_table_names()
    engine.dispose()
    return names


clients = st.sampled_from(["ann", "bob", "7", "ü/é", "it's"])
entries = st.builds(
    Entry,
    client=clients,
    stage=st.sampled_from(STAGES),
    weight=st.none() | st.floats(0, 1e6),
    time=st.none() | st.floats(0, 4e9),
    asked=st.none() | st.integers(0, 2**40),
    reason=st.none() | st.sampled_from(list(REASONS)),
)
rounds = st.lists(st.lists(entries, unique_by=lambda entry: entry.client), min_size=1, max_size=5)
federations = count()


@files
@given(rounds)
@pytest.mark.parametrize(
    "url", [pytest.param("sqlite", marks=pytest.mark.fuzz), POSTGRES], indirect=True
)
def test_committed_rounds_are_read_back(url: str, history: list[list[Entry]]):
    ledger = Ledger(url, federation := f"federation {next(federations)}")
    for t, entries in enumerate(history):
        ledger.commit(t, entries, time=NOW + t)
    assert ledger.ended == len(history)
    ledger.close()
    expected = [
        {name: value for name, value in (vars(e) | {"round": t}).items() if name != "asked"}
        for t, entries in enumerate(history)
        for e in entries
    ]
    log = read_ledger(f"{url}#{federation}")
    key = lambda row: (row["round"], row["client"].encode())  # noqa: E731
    assert sorted(log.to_dicts(), key=key) == sorted(expected, key=key)
    assert read_rounds(f"{url}#{federation}").rows() == [(t, NOW + t) for t in range(len(history))]
    assert_frame_equal(normalise_log(log), log)


def test_a_ledger_reads_like_a_log_file(url: str, tmp_path: Path):
    ledger = Ledger(url)
    ledger.commit(0, [Entry("b", "selected"), Entry("a", "used", 0.5, NOW)], NOW)
    ledger.commit(2, [Entry("a", "used", 1.0, NOW)], NOW)
    write_log(tmp_path / "log.parquet", read_ledger(url))
    assert_frame_equal(read_log(tmp_path / "log.parquet"), read_ledger(url))


def test_a_part_has_the_round_read_last_and_the_rows_of_those_after_it(url: str):
    Ledger(url).close()
    empty = read_ledger_part(url, -1, 10)
    assert (empty.federation, len(empty.rounds), len(empty.rows)) == ("", 0, 0)
    ledger = Ledger(url, "north")
    for t in (0, 1, 3, 4):
        ledger.commit(t, [Entry("b", "used", 1.0, NOW, 0), Entry("a", "selected")], NOW + t)
    Ledger(url, "south").commit(2, [Entry("c", "used")], NOW)
    part = read_ledger_part(f"{url}#north", 1, 2)
    assert part.federation == "north"
    assert part.rounds.rows() == [(1, NOW + 1), (3, NOW + 3)]
    assert sorted(part.rows.select("round", "client", "asked").rows()) == [
        (3, "a", None),
        (3, "b", 0),
    ]
    assert read_ledger_part(f"{url}#north", 4, 10).rounds["round"].to_list() == [4]
    assert read_ledger_part(f"{url}#north", 4, 10).rows.is_empty()


def test_committing_a_round_again_changes_nothing(url: str):
    entries = [Entry("a", "used", 1.0, NOW), Entry("b", "reported", None, NOW, asked=3)]
    Ledger(url).commit(4, entries, NOW)
    Ledger(url).commit(4, entries[::-1], NOW + 1)
    assert len(read_ledger(url)) == 2
    for other in ([], entries[:1], [entries[0], Entry("b", "used", None, NOW, asked=3)]):
        with pytest.raises(InvalidInputError, match=r"^ledger: round 4 of 'default'.*; "):
            Ledger(url).commit(4, other, NOW)
    assert len(read_ledger(url)) == 2


def test_a_round_with_a_repeated_client_is_not_added(url: str):
    ledger = Ledger(url)
    with pytest.raises(InvalidInputError, match="ledger: "):
        ledger.commit(0, [Entry("a", "used"), Entry("b", "used"), Entry("a", "used")], NOW)
    assert ledger.ended == 0
    assert read_ledger(url).is_empty()


def test_federations_share_a_database(url: str):
    for name in ("north", "south"):
        Ledger(url, name).commit(0, [Entry(f"{name}-1", "used", 1.0)], NOW)
    assert read_ledger(url + "#south")["client"].to_list() == ["south-1"]
    with pytest.raises(InvalidInputError, match=r"^ledger: .*2 federations; .*#north"):
        read_ledger(url)
    with pytest.raises(InvalidInputError, match=r"^ledger: .*'sout'; did you mean 'south'"):
        read_ledger(url + "#sout")


def run_concurrently(*work: Callable[[], None]) -> list[BaseException | None]:
    """Call functions concurrently and return the InvalidInputError of each, or None."""
    barrier = Barrier(len(work))

    def call(function: Callable[[], None]) -> BaseException | None:
        barrier.wait()
        try:
            function()
        except InvalidInputError as error:
            return error
        return None

    with ThreadPoolExecutor(len(work)) as pool:
        return list(pool.map(call, work))


def test_concurrent_writers_add_a_round_once(url: str):
    writers = [Ledger(url), Ledger(url)]
    for t in range(20):
        same = [Entry("a", "used", 0.5, NOW), Entry("b", "used", 0.5, NOW)]
        assert run_concurrently(*(partial(w.commit, t, same, NOW) for w in writers)) == [None, None]
    for t in range(20, 40):
        work = [partial(w.commit, t, [Entry(f"c{i}", "used")], NOW) for i, w in enumerate(writers)]
        [reason] = [error for error in run_concurrently(*work) if error is not None]
        assert "other entries" in str(reason)
    assert read_rounds(url)["round"].to_list() == list(range(40))
    assert read_ledger(url).height == 2 * 20 + 20


def test_concurrent_federations_create_the_tables_once(url: str):
    names = [f"federation {n}" for n in range(4)]
    work = [lambda name=name: Ledger(url, name).commit(0, [], NOW) for name in names]
    assert run_concurrently(*work) == [None] * 4
    assert [read_rounds(f"{url}#{name}").height for name in names] == [1] * 4


@pytest.mark.process
def test_a_restarted_server_keeps_all_rounds_and_accepts_more(postgres: Server):
    ledger = Ledger(url := postgres.database())
    for t in range(3):
        ledger.commit(t, [Entry("a", "used", 1.0, NOW)], NOW)
        postgres.stop(signal.SIGQUIT)  # immediate shutdown; the server recovers from its journal
        with pytest.raises(InvalidInputError, match=r"^ledger: .* fails"):
            ledger.commit(t + 1, [], NOW)
        postgres.start()
    ledger.commit(3, [], NOW)
    assert read_rounds(url)["round"].to_list() == [0, 1, 2, 3]
    assert read_ledger(url).height == 3


def test_the_audit_reads_a_ledger_and_errors_hide_the_password(url: str):
    Ledger(url).commit(0, [Entry("ann", "used", 1.0, NOW), Entry("bob", "selected")], NOW)
    Ledger(url).commit(1, [], NOW)
    assert ft.audit(url, clients=3).log.length == 2
    if url.startswith("postgresql"):
        secret = url.replace("@", ":secret@").replace("ledger_", "nobody_")
        with pytest.raises(InvalidInputError, match=r"ledger: .*:\*\*\*@") as error:
            ft.audit(secret)
        assert "secret" not in str(error.value)


KILLED_IN_COMMIT = """
import os, signal, sys
import sqlalchemy as sql
from fedtide.flower.ledger.ledger import Entry, Ledger

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


@pytest.mark.process
@pytest.mark.parametrize(
    ("event", "count"),
    [("before_cursor_execute", 2), ("after_cursor_execute", 2), ("after_cursor_execute", 3)],
)
def test_a_writer_killed_during_a_commit_leaves_earlier_rounds_only(
    url: str, event: str, count: int
):
    command = [sys.executable, "-c", KILLED_IN_COMMIT, url, event, str(count)]
    killed = subprocess.run(command, check=False, env=os.environ | {"PYTHONWARNINGS": "ignore"})
    assert killed.returncode == -signal.SIGKILL
    assert read_rounds(url)["round"].to_list() == [0]
    assert len(read_ledger(url)) == 1
    Ledger(url).commit(1, [Entry("a", "used")], 1.0)
    assert len(read_ledger(url)) == 2


KILLED_AT_CREATION = """
import os, signal, sys
import sqlalchemy as sql
from fedtide.flower.ledger.ledger import Ledger

@sql.event.listens_for(sql.Engine, "before_cursor_execute")
def die(connection, cursor, statement, *rest):
    if statement.startswith(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

Ledger(sys.argv[1])
"""


@pytest.mark.process
@pytest.mark.parametrize(
    "statement", ["\nCREATE TABLE participation", "INSERT INTO fedtide_schema"]
)
def test_tables_are_created_in_one_transaction(url: str, statement: str):
    command = [sys.executable, "-c", KILLED_AT_CREATION, url, statement]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert list_tables(url) == []
    Ledger(url).commit(0, [], NOW)
    assert read_rounds(url)["round"].to_list() == [0]


def test_tables_of_another_version_are_rejected(url: str):
    Ledger(url)
    execute(url, "UPDATE fedtide_schema SET version = 9")
    for function in (Ledger, read_ledger):
        with pytest.raises(InvalidInputError, match=r"^ledger: .*version 9.*; "):
            function(url)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("ledger.db", "'ledger.db'"),
        ("sqlite:///nowhere/ledger.db", "'nowhere/ledger.db'"),
        ("nosuchbase://x", "not the URL"),
    ],
)
def test_urls_of_no_database_are_rejected(url: str, name: str):
    with pytest.raises(InvalidInputError, match=rf"^ledger: .*{name}.*; "):
        read_ledger(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://fed:pa55@127.0.0.1:port/ledger",
        "postgresql://fed:pa55@[::1/ledger",
        "postgresql+psycopg://fed:pa55#w0rd@127.0.0.1/ledger",
        "postgresql+psycopg://fed:pa55@w0rd@127.0.0.1:port/ledger",
        "postgresql+psycopg://127.0.0.1:port/ledger?user=fed&password=pa55&sslmode=require",
        "postgresql+psycopg://127.0.0.1:1/ledger?user=fed&password=pa55",
        "postgresql//fed:pa55@127.0.0.1/ledger",
        "nosuchbase://fed:pa55@127.0.0.1/ledger",
        "sqlite://fed:pa55@127.0.0.1/ledger",
        "fed:pa55@127.0.0.1",
    ],
)
@pytest.mark.parametrize("use", [read_ledger, Ledger])
def test_no_error_about_a_url_shows_a_password(url: str, use: Callable[[str], object]):
    """A port that is no number ended in SQLAlchemy's ValueError, and other typos showed the URL."""
    with pytest.raises(InvalidInputError, match=r"^ledger: .*; ") as error:
        use(url)
    assert "pa55" not in str(error.value)
    assert "w0rd" not in str(error.value)


def test_files_that_are_not_ledgers_are_rejected(tmp_path: Path):
    other = tmp_path / "other.db"
    sqlite3.connect(other).execute("CREATE TABLE x (y)").connection.close()
    (tmp_path / "text.db").write_text("no database" * 100)
    (tmp_path / "empty.db").touch()
    for name, complaint in {
        "other.db": "holds no ledger; give",
        "empty.db": "holds no ledger; give",
        "text.db": "fails",
        "x" * 300: "no database",
    }.items():
        with pytest.raises(InvalidInputError, match=f"ledger: .*{complaint}"):
            read_ledger(f"sqlite:///{tmp_path / name}")


def test_the_path_of_a_ledger_in_place_of_its_url_is_corrected(tmp_path: Path):
    path = tmp_path / "ledger.db"
    path.touch()
    with pytest.raises(InvalidInputError, match=f"; write sqlite:///{path},"):
        read_ledger(str(path))


def test_a_ledger_of_version_1_is_read_and_not_written(url: str):
    create_version_1(url)
    log = read_ledger(url)
    assert log.select("round", "client", "stage", "reason").rows() == [
        (0, "ann", "used", None),
        (0, "bob", "reported", None),
        (1, "bob", "used", None),
    ]
    assert read_rounds(url).rows() == [(0, 10.0), (1, 20.0)]
    assert ft.audit(url).log.length == 2
    with pytest.raises(InvalidInputError, match=r"^ledger: .*version 1.*fedtide ledger migrate "):
        Ledger(url)


def test_an_empty_ledger_is_an_empty_log(url: str):
    Ledger(url)
    row = {"round": [0], "client": ["a"], "time": [1.0], "reason": ["late"]}
    log = normalise_log(pl.DataFrame(row))
    assert read_ledger(url).schema == log.schema


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


def test_a_reader_in_the_middle_of_a_ledger_does_not_hold_up_the_next_round(file_url: str):
    """An audit of a long ledger reads for minutes; the federation goes on meanwhile."""
    ledger = Ledger(file_url)
    for t in range(3):
        ledger.commit(t, [Entry(f"client-{n}", "used", 0.01) for n in range(100)], time=float(t))
    path = file_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as reader:
        rows = reader.execute("SELECT * FROM participation")
        rows.fetchone()
        began = monotonic()
        ledger.commit(3, [Entry("client-0", "used", 1.0)], time=3.0)
        assert monotonic() - began < 3
        assert len(rows.fetchall()) == 299  # as of the beginning of the read
    assert read_rounds(file_url).height == 4


def test_a_ledger_waits_for_another_that_creates_its_tables(file_url: str):
    """SQLite does not wait before it changes the journal of a file that another writes."""
    other = sqlite3.connect(file_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as pool:
        ledger = pool.submit(Ledger, file_url)
        sleep(0.3)
        other.execute("ROLLBACK")
        assert ledger.result().ended == 0
    other.close()


def test_a_writer_waits_for_another_instead_of_failing(file_url: str):
    ledger = Ledger(file_url)
    path = file_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(ledger.commit, 0, [Entry("ann", "used", 1.0)], 0.0)
            with pytest.raises(TimeoutError):
                writing.result(timeout=0.5)
            other.execute("COMMIT")
            writing.result(timeout=20)
    assert ledger.ended == 1


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_only_its_owner_reads_a_ledger_until_its_mode_is_changed(file_url: str):
    """It names the clients; a mode that the operator chose is kept."""
    path = Path(file_url.removeprefix("sqlite:///"))
    Ledger(file_url).commit(0, [Entry("ann", "used", 1.0)], time=0.0)
    for file in path.parent.glob("ledger.db*"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    path.chmod(0o640)
    Ledger(file_url).commit(1, [Entry("ann", "used", 1.0)], time=1.0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_ledger_that_is_opened_twice_keeps_all_rounds_beside_readers(file_url: str):
    """Readers removed the write-ahead log of a process that had opened the file twice."""
    query = "SELECT federation, round FROM rounds ORDER BY 1, 2"
    script = (
        f"import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute({query!r}).fetchall())"
    )
    command = [sys.executable, "-c", script, file_url.removeprefix("sqlite:///")]
    read = partial(subprocess.run, command, check=True, capture_output=True, text=True)
    first = Ledger(file_url, "first")
    first.commit(0, [], time=0.0)
    second = Ledger(file_url, "second")
    read()
    first.commit(1, [], time=1.0)
    second.commit(0, [], time=1.0)
    assert read().stdout.strip() == str([("first", 0), ("first", 1), ("second", 0)])


def test_a_ledger_is_read_while_its_writer_is_open_and_after_it_was_killed(file_url: str):
    ledger = Ledger(file_url)
    ledger.commit(0, [Entry("ann", "used", 1.0)], time=0.0)
    assert read_ledger(file_url)["client"].to_list() == ["ann"]
    copy = Path(file_url.removeprefix("sqlite:///")).parent / "copy"
    copy.mkdir()  # what a kill leaves: the file with its write-ahead log
    for file in copy.parent.glob("ledger.db*"):
        shutil.copy(file, copy)
    assert read_ledger(f"sqlite:///{copy / 'ledger.db'}")["client"].to_list() == ["ann"]


def sqlite_url(file: Path, **query: str) -> str:
    return sql.URL.create("sqlite", database=str(file), query=query).render_as_string()


def test_databases_in_memory_and_uris_leave_no_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with closing(Ledger("sqlite:///:memory:")) as ledger:
        ledger.commit(0, [Entry("ann", "used", 1.0)], time=0.0)
        assert ledger.ended == 1
    assert not [*tmp_path.iterdir()]
    with closing(Ledger("sqlite:///file:ledger.db?uri=true")) as ledger:
        ledger.commit(0, [Entry("ann", "used", 1.0)], time=0.0)
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.db"]
    assert read_ledger("sqlite:///file:ledger.db?mode=ro&uri=true")["client"].to_list() == ["ann"]


def test_a_writer_takes_no_federation_in_its_url(tmp_path: Path):
    """SQLite took it for a part of the file's name, and readers found no ledger."""
    with pytest.raises(InvalidInputError, match=r"^ledger: the URL has a #; .* federation"):
        Ledger(f"{sqlite_url(tmp_path / 'ledger.db')}#ward")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "change", ["weight = 'much'", "stage = x'75'", "client = x'ff'"], ids=["text", "bytes", "names"]
)
def test_values_of_another_type_are_refused(tmp_path: Path, change: str):
    """SQLite stores any value in any column."""
    ledger = Ledger(url := sqlite_url(tmp_path / "ledger.db"))
    ledger.commit(0, [Entry("ann", "used", 1.0)], time=0.0)
    execute(url, f"UPDATE participation SET {change}")
    for read in (read_ledger, partial(read_ledger_part, after=-1, most=9)):
        with pytest.raises(InvalidInputError, match=r"^ledger: a column holds .*; "):
            read(url)
