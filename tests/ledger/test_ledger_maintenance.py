"""The commands `fedtide ledger`: check, migrate, prune and export, on SQLite and PostgreSQL."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

pytest.importorskip("sqlalchemy", reason="the ledger needs fedtide[flower]")


import fedtide as ft
from fedtide.cli.main import main
from fedtide.flower.ledger.ledger import Entry, Ledger, read_ledger, read_rounds
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
            Entry("ann", "used", 0.5, NOW + t, step_weight=0.25, norm=1.0 + t),
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
    assert "federation 'default': rounds 0 to 11, 12 in all; tables of version 3" in out
    assert "federation 'other': rounds 40 to 42, 3 in all" in out
    assert "nothing is wrong" in out
    assert "'default'" not in fedtide("check", f"{url}#other")[1]


def test_a_check_names_what_is_wrong(fedtide: Command, file_url: str) -> None:
    write_history(file_url, 12)
    for table in ("participation", "rounds"):
        execute(file_url, f"DELETE FROM {table} WHERE round IN (3, 7)")
    execute(file_url, "UPDATE participation SET weight = NULL WHERE client = 'ann' AND round = 6")
    status, out, _ = fedtide("check", file_url)
    assert status == 2
    assert "the ledger lacks 2 rounds from 3 on" in out
    assert "the weights of used clients do not sum to 1 in 1 round from 6 on" in out


# migrate


def test_a_ledger_of_version_1_is_migrated_and_goes_on(fedtide: Command, url: str) -> None:
    create_version_1(url)
    before, rounds = read_ledger(url), read_rounds(url)
    assert fedtide("check", url)[0] == 0
    assert "fedtide ledger migrate" in fedtide("check", url)[1]
    status, out, _ = fedtide("migrate", url)
    assert (status, out) == (0, "the tables were of version 1 and are of version 3 now\n")
    assert_frame_equal(read_ledger(url), before)
    assert before["norm"].null_count() == len(before)
    assert_frame_equal(read_rounds(url), rounds)
    status, out, _ = fedtide("migrate", url)
    assert (status, out) == (0, "the tables are of version 3 already; nothing was changed\n")
    ledger = Ledger(url)
    assert ledger.ended == 2
    ledger.commit(1, [Entry("bob", "used", 1.0, 19.0, asked=0)], 20.0)  # as it was: no change
    ledger.commit(2, [Entry("ann", "selected", None, 29.0, reason="error")], 30.0)
    assert read_ledger(url).row(-1) == (2, "ann", "selected", None, 29.0, "error", None, None)
    assert fedtide("check", url)[0] == 0


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


@pytest.mark.parametrize(
    ("federation", "keep", "field"),
    [("#nowhere", 5, "ledger"), ("", 5, "ledger"), ("#a", 1, "keep"), ("#a", 2, "yes")],
)
def test_impossible_prunings_are_refused(
    fedtide: Command, file_url: str, federation: str, keep: int, field: str
) -> None:
    """The last one would have to ask, without a terminal."""
    for name in ("a", "b"):
        write_history(file_url, 3, name)
    confirmed = [] if field == "yes" else ["--yes"]
    status, _, err = fedtide("prune", file_url + federation, "--keep", keep, *confirmed)
    assert status == 2
    assert err.startswith(f"fedtide: {field}: ")


# sites


def test_the_list_of_sites_says_who_moves_the_model_and_who_is_quarantined(
    fedtide: Command, url: str
) -> None:
    write_history(url, 12)
    assert fedtide("quarantine", url, "it's")[0] == 0
    assert fedtide("quarantine", url, "ann")[0] == 0
    assert fedtide("quarantine", url, "ann")[0] == 0
    assert fedtide("release", url, "it's")[0] == 0
    status, out, _ = fedtide("sites", url)
    lines = {line.split()[1]: line.split()[2:] for line in out.splitlines() if "│" in line}
    assert status == 0
    rounds = [t for t in range(12) if t % 5]
    norm = f"{sorted(1.0 + t for t in rounds)[len(rounds) // 2]:.3g}"
    assert [cell for cell in lines["ann"] if cell != "│"][:4] == ["9", "11", "0.25", norm]
    assert [cell for cell in lines["bob"] if cell != "│"] == ["9", "11", "–", "–"]
    assert [name for name, cells in lines.items() if "UTC" in cells] == ["ann"]
    assert fedtide("quarantine", url, "anna")[0] == 2


# export


def test_an_exported_ledger_is_a_log_for_audits_and_replays(
    fedtide: Command, tmp_path: Path
) -> None:
    write_history(url := f"sqlite:///{tmp_path / 'ledger.db'}", 12)
    status, out, _ = fedtide("export", url, path := tmp_path / "log.csv")
    assert status == 0
    assert "27 rows of 12 rounds" in out
    assert "3 of them are without clients" in out
    facts = ["step_weight", "norm"]
    assert_frame_equal(read_log(path), read_ledger(url).drop(facts))
    assert_frame_equal(pl.read_csv(path)[facts], read_ledger(url)[facts])
    exported, ledger = ft.audit(path), ft.audit(url)
    assert exported.to_dict()["refusals"] == ledger.to_dict()["refusals"]
    assert exported.log.counts.tolist() == ledger.log.counts.tolist()
    replay = ft.participation.Replay(path).begin(Population(3), seed=0)
    assert [replay.round(t).clients.tolist() for t in (1, 5)] == [[0, 1], []]
    assert fedtide("export", url, tmp_path / "log.xlsx")[0] == 2
