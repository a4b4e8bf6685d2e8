"""The commands `fedtide ledger`: check, migrate, prune and export, on SQLite and PostgreSQL."""

import io
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

pytest.importorskip("sqlalchemy", reason="the ledger needs fedtide[flower]")

import sqlalchemy as sql
from sqlalchemy.dialects import postgresql, sqlite

import fedtide as ft
from fedtide.cli.ledger_commands import export_command
from fedtide.cli.main import main
from fedtide.flower.ledger import ledger_maintenance
from fedtide.flower.ledger.ledger import Entry, Ledger, read_ledger, read_rounds
from fedtide.flower.ledger.ledger_tables import PARTICIPATION
from fedtide.participation.log.read import read_log
from fedtide.population import Population

from .databases import create_version_1, execute

Command = Callable[..., tuple[int, str, str]]
NOW = 1_800_000_000.0


@pytest.fixture
def fedtide(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs `fedtide ledger`: (status, stdout, stderr)."""
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)

    def command(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedtide", "ledger", *map(str, arguments)])
        try:
            main()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return command


def write_history(url: str, rounds: int, federation: str = "default", first: int = 0) -> Ledger:
    """Commit rounds of two used clients, one that failed, and every fifth round empty."""
    ledger = Ledger(url, federation)
    for t in range(first, first + rounds):
        entries = [
            Entry("ann", "used", 0.5, NOW + t),
            Entry("bob", "used", 0.5, NOW + t, asked=t - 1 if t else None),
            Entry("it's", "selected", None, NOW + t, reason="error"),
        ]
        ledger.commit(t, entries if t % 5 else [], NOW + t)
    return ledger


# check


def test_a_ledger_without_faults_passes_the_check(fedtide: Command, url: str) -> None:
    write_history(url, 12)
    write_history(url, 3, "other", first=40)  # begun late, or pruned
    status, out, _ = fedtide("check", url)
    assert status == 0, out
    assert "federation 'default': rounds 0 to 11, 12 in all; tables of version 2" in out
    assert "federation 'other': rounds 40 to 42, 3 in all" in out
    assert "nothing is wrong" in out
    assert "'default'" not in fedtide("check", f"{url}#other")[1]


def test_a_new_ledger_passes_the_check(fedtide: Command, url: str) -> None:
    Ledger(url)
    assert fedtide("check", url)[0] == 0


FAULTS = {
    "DELETE FROM participation WHERE round IN (3, 7); DELETE FROM rounds WHERE round IN (3, 7)": (
        "the ledger lacks 2 rounds from 3 on, which an audit counts as"
    ),
    "UPDATE participation SET weight = 0.25 WHERE client = 'ann' AND round IN (1, 2, 3, 4)": (
        "the weights of used clients do not sum to 1 in 4 rounds from 1 on"
    ),
    "UPDATE participation SET weight = NULL WHERE client = 'ann' AND round = 6": (
        "the weights of used clients do not sum to 1 in 1 round from 6 on"
    ),
}


@pytest.mark.parametrize("statements", FAULTS, ids=[f"{n}" for n in range(len(FAULTS))])
def test_a_check_names_what_is_wrong(fedtide: Command, tmp_path: Path, statements: str) -> None:
    write_history(url := f"sqlite:///{tmp_path / 'ledger.db'}", 12)
    for statement in statements.split(";"):
        execute(url, statement)
    status, out, _ = fedtide("check", url)
    assert status == 2
    assert FAULTS[statements] in out


def test_a_damaged_file_is_refused(fedtide: Command, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    write_history(f"sqlite:///{path}", 80).close()
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 4096)
    status, _, err = fedtide("check", f"sqlite:///{path}")
    assert status == 2
    assert err.startswith("fedtide: ledger: ")


# migrate


def describe_tables(url: str) -> dict[str, list[tuple[str, str, bool, bool]]]:
    """Return name, type, nullability and membership in the key of the columns of each table."""
    engine = sql.create_engine(url)
    inspector = sql.inspect(engine)
    tables = {
        name: [
            (
                column["name"],
                str(column["type"].compile(engine.dialect)),
                bool(column["nullable"]),
                column["name"] in inspector.get_pk_constraint(name)["constrained_columns"],
            )
            for column in inspector.get_columns(name)
        ]
        for name in inspector.get_table_names()
    }
    engine.dispose()
    return tables


def test_a_ledger_of_version_1_is_migrated_and_goes_on(fedtide: Command, url: str) -> None:
    create_version_1(url)
    before, rounds = read_ledger(url), read_rounds(url)
    assert fedtide("check", url)[0] == 0
    assert "fedtide ledger migrate" in fedtide("check", url)[1]
    status, out, _ = fedtide("migrate", url)
    assert (status, out) == (0, "the tables were of version 1 and are of version 2 now\n")
    assert_frame_equal(read_ledger(url), before)
    assert_frame_equal(read_rounds(url), rounds)
    status, out, _ = fedtide("migrate", url)
    assert (status, out) == (0, "the tables are of version 2 already; nothing was changed\n")
    ledger = Ledger(url)
    assert ledger.ended == 2
    ledger.commit(1, [Entry("bob", "used", 1.0, 19.0, asked=0)], 20.0)  # as it was: no change
    ledger.commit(2, [Entry("ann", "selected", None, 29.0, reason="error")], 30.0)
    assert read_ledger(url).row(-1) == (2, "ann", "selected", None, 29.0, "error")
    assert fedtide("check", url)[0] == 0


def test_migrated_tables_are_those_of_a_new_ledger(fedtide: Command, url: str) -> None:
    create_version_1(url)
    assert fedtide("migrate", url)[0] == 0
    migrated = describe_tables(url)
    for name in ("participation", "rounds", "fedtide_schema"):
        execute(url, f"DROP TABLE {name}")
    Ledger(url)
    assert describe_tables(url) == migrated


@pytest.mark.parametrize(
    "dialect", [sqlite.dialect(), postgresql.dialect()], ids=["sqlite", "postgresql"]
)
def test_the_migration_adds_the_column_of_the_present_tables(dialect: sql.Dialect) -> None:
    """Also where no PostgreSQL is installed."""
    column = sql.schema.CreateColumn(PARTICIPATION.c.reason).compile(dialect=dialect)
    expected = f"ALTER TABLE participation ADD COLUMN {column}"
    assert ledger_maintenance._MIGRATIONS[1] == expected


KILLED = """
import os, signal, sys
import sqlalchemy as sql
from fedtide.flower.ledger.ledger_maintenance import migrate_ledger

@sql.event.listens_for(sql.Engine, "before_cursor_execute")
def die(connection, cursor, statement, *rest):
    if statement.startswith("UPDATE fedtide_schema"):
        os.kill(os.getpid(), signal.SIGKILL)

migrate_ledger(sys.argv[1])
"""


@pytest.mark.process
def test_a_migration_that_is_killed_changes_nothing(fedtide: Command, url: str) -> None:
    create_version_1(url)
    before = describe_tables(url)
    command = [sys.executable, "-c", KILLED, url]
    killed = subprocess.run(command, check=False, env=os.environ)
    assert killed.returncode == -signal.SIGKILL
    assert describe_tables(url) == before
    assert fedtide("migrate", url)[0] == 0


@pytest.mark.parametrize("action", ["check", "migrate"])
def test_tables_of_a_newer_version_are_refused(fedtide: Command, url: str, action: str) -> None:
    Ledger(url)
    execute(url, "UPDATE fedtide_schema SET version = 3")
    status, _, err = fedtide(action, url)
    assert status == 2
    assert "version 3" in err


# prune


def test_pruning_keeps_the_last_rounds_and_their_numbers(fedtide: Command, url: str) -> None:
    ledger = write_history(url, 20)
    write_history(url, 20, "other")
    log, rounds = read_ledger(f"{url}#default"), read_rounds(f"{url}#default")
    status, out, _ = fedtide("prune", f"{url}#default", "--keep", 6, "--yes")
    assert status == 0
    assert "removes 14 rounds; keeps rounds 14 to 19, 6 in all" in out
    assert_frame_equal(read_ledger(f"{url}#default"), log.filter(pl.col("round") >= 14))
    assert_frame_equal(read_rounds(f"{url}#default"), rounds.filter(pl.col("round") >= 14))
    assert len(read_rounds(f"{url}#other")) == 20
    assert ledger.ended == 20  # the training that writes it goes on
    ledger.commit(20, [], NOW + 20)
    assert ft.audit(f"{url}#default").log.first_round == 14
    assert fedtide("check", url)[0] == 0
    assert "nothing to remove" in fedtide("prune", f"{url}#default", "--keep", 7, "--yes")[1]


def test_pruning_asks_first(
    fedtide: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    write_history(url := f"sqlite:///{tmp_path / 'ledger.db'}", 10)
    status, _, err = fedtide("prune", url, "--keep", 4)
    assert (status, err) == (
        2,
        "fedtide: yes: there is no terminal to ask in; add --yes to remove the rounds\n",
    )
    for answer, left in (("n\n", 10), ("y\n", 4)):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        status, out, _ = fedtide("prune", url, "--keep", 4)
        assert status == 0
        assert ("nothing was removed" in out) == (left == 10)
        assert len(read_rounds(url)) == left


@pytest.mark.parametrize(
    ("url", "keep", "message"),
    [
        ("#nowhere", 5, "'nowhere'"),
        ("", 5, "2 federations"),
        ("#default", 1, "keep: 1 is not a number of at least 2"),
    ],
)
def test_impossible_prunings_are_refused(
    fedtide: Command, tmp_path: Path, url: str, keep: int, message: str
) -> None:
    base = f"sqlite:///{tmp_path / 'ledger.db'}"
    for name in ("default", "other"):
        write_history(base, 3, name)
    status, _, err = fedtide("prune", base + url, "--keep", keep, "--yes")
    assert status == 2
    assert message in err


# export


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_an_exported_ledger_is_a_log_for_audits_and_replays(
    fedtide: Command, tmp_path: Path, suffix: str
) -> None:
    write_history(url := f"sqlite:///{tmp_path / 'ledger.db'}", 12)
    status, out, _ = fedtide("export", url, path := tmp_path / f"log{suffix}")
    assert status == 0
    assert "27 rows of 12 rounds" in out
    assert "3 of them are without clients" in out
    assert_frame_equal(read_log(path), read_ledger(url))
    exported, ledger = ft.audit(path), ft.audit(url)
    assert exported.to_dict()["refusals"] == ledger.to_dict()["refusals"]
    assert exported.log.counts.tolist() == ledger.log.counts.tolist()
    replay = ft.participation.Replay(path).begin(Population(3), seed=0)
    assert [replay.round(t).clients.tolist() for t in (1, 5)] == [[0, 1], []]
    assert fedtide("export", url, tmp_path / "log.xlsx")[0] == 2


def test_the_help_of_export_says_how_an_experiment_replays_the_log(tmp_path: Path) -> None:
    example = shlex.split((export_command.__doc__ or "").strip().splitlines()[-1])
    assert example[:3] == ["fedtide", "run", "experiment.yaml"]
    pl.DataFrame({"round": [0, 1], "client": [0, 2]}).write_parquet(tmp_path / "log.parquet")
    file = tmp_path / "experiment.yaml"
    file.write_text(
        "problem: {type: regression, clients: 3, samples: 30, features: 2, informative: 1}\n"
        "participation: {type: bernoulli, rates: 0.5}\n"
        "local: {steps: 1, lr: 0.1}\n"
        "algorithm: fedavg\nrounds: 2\n",
        encoding="utf-8",
    )
    found = ft.Experiment.load(file, example[3:]).participation
    assert isinstance(found, ft.participation.Replay)
