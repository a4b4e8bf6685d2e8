"""The ledger: atomic commits, concurrent writers, crashes and invalid databases.

Runs on SQLite, and on PostgreSQL if a server is installed.
"""

import os
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
from time import monotonic

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

pytest.importorskip("sqlalchemy", reason="the ledger needs fedtide[flower]")


import fedtide as ft
from fedtide.errors import InvalidInputError
from fedtide.flower.ledger.ledger import (
    Entry,
    Ledger,
    read_ledger,
    read_rounds,
)
from fedtide.participation import STAGES, normalise_log
from fedtide.participation.log.schema import REASONS

from .databases import create_version_1, execute
from .postgres import POSTGRES

NOW = 1_800_000_000.0
files = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


clients = st.sampled_from(["ann", "bob", "7", "ü/é", "it's"])
entries = st.builds(
    Entry,
    client=clients,
    stage=st.sampled_from(STAGES),
    weight=st.none() | st.floats(0, 1e6),
    time=st.none() | st.floats(0, 4e9),
    asked=st.none() | st.integers(0, 2**40),
    reason=st.none() | st.sampled_from(list(REASONS)),
    step_weight=st.none() | st.floats(-1e6, 1e6),
    norm=st.none() | st.floats(0, 1e9),
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
    assert_frame_equal(normalise_log(log), log.drop("step_weight", "norm"))


def test_committing_a_round_again_changes_nothing(url: str):
    entries = [Entry("a", "used", 1.0, NOW), Entry("b", "reported", None, NOW, asked=3)]
    Ledger(url).commit(4, entries, NOW)
    Ledger(url).commit(4, entries[::-1], NOW + 1)
    assert len(read_ledger(url)) == 2
    for other in ([], entries[:1], [entries[0], Entry("b", "used", None, NOW, asked=3)]):
        with pytest.raises(InvalidInputError, match=r"^ledger: round 4 of 'default'.*; "):
            Ledger(url).commit(4, other, NOW)
    assert len(read_ledger(url)) == 2


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
    ("event", "count"), [("before_cursor_execute", 2), ("after_cursor_execute", 3)]
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


@pytest.mark.parametrize(
    "url",
    [
        "ledger.db",
        "sqlite:///nowhere/ledger.db",
        "sqlite:///text.db",
        "sqlite:///empty.db",
        "sqlite:///other.db",
        "postgresql+psycopg://fed:pa55@127.0.0.1:port/ledger",
        "postgresql+psycopg://fed:pa55#w0rd@127.0.0.1/ledger",
        "postgresql+psycopg://127.0.0.1:1/ledger?user=fed&password=pa55",
        "postgresql//fed:pa55@127.0.0.1/ledger",
        "fed:pa55@127.0.0.1",
    ],
)
def test_what_is_no_ledger_is_refused_and_no_password_is_shown(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    sqlite3.connect("other.db").execute("CREATE TABLE x (y)").connection.close()
    Path("text.db").write_text("no database" * 100)
    Path("empty.db").touch()
    with pytest.raises(InvalidInputError, match=r"^ledger: ") as error:
        read_ledger(url)
    assert "pa55" not in str(error.value)
    assert "w0rd" not in str(error.value)


def test_a_ledger_of_version_1_is_read(url: str):
    create_version_1(url)
    assert read_ledger(url).select("round", "client", "stage", "reason").rows() == [
        (0, "ann", "used", None),
        (0, "bob", "reported", None),
        (1, "bob", "used", None),
    ]
    assert read_rounds(url).rows() == [(0, 10.0), (1, 20.0)]
    assert ft.audit(url).log.length == 2
    with pytest.raises(InvalidInputError, match=r"^ledger: .*fedtide ledger migrate "):
        Ledger(url)


def test_values_of_another_type_are_refused(file_url: str):
    """SQLite stores any value in any column."""
    Ledger(file_url).commit(0, [Entry("ann", "used", 1.0)], time=0.0)
    execute(file_url, "UPDATE participation SET weight = 'much'")
    with pytest.raises(InvalidInputError, match=r"^ledger: "):
        read_ledger(file_url)


def test_tables_of_another_version_are_rejected(url: str):
    Ledger(url)
    execute(url, "UPDATE fedtide_schema SET version = 9")
    for function in (Ledger, read_ledger):
        with pytest.raises(InvalidInputError, match=r"^ledger: .*version 9.*; "):
            function(url)


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
