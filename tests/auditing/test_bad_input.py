"""Logs and rosters that cannot be used: one sentence, exit status 2."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fedtide as ft
from fedtide.cli.main import main
from fedtide.errors import InvalidInputError
from fedtide.participation.log.ledger import Entry, Ledger

GOOD = pl.DataFrame({"round": [0, 0, 1, 3], "client": [0, 1, 0, 2]})


def complaint(log: object, **options: object) -> str:
    with pytest.raises(InvalidInputError) as caught:
        ft.audit(log, **options)  # type: ignore[arg-type]
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_a_client_twice(tmp_path: Path) -> None:
    rows = pl.DataFrame({"round": [5, 6, 6], "client": [1, 7, 7]})
    assert "client: 7 is twice in round 6" in complaint(rows)
    rows.write_parquet(tmp_path / "log.parquet")
    assert "client: 7 is twice in round 6" in complaint(tmp_path / "log.parquet")


def test_any_order_and_gaps_are_fine(tmp_path: Path) -> None:
    GOOD.sample(fraction=1.0, shuffle=True, seed=1).write_parquet(tmp_path / "log.parquet")
    found = ft.audit(tmp_path / "log.parquet")
    assert (found.log.length, found.coverage.empty_rounds) == (4, 1)
    assert found.log.counts.tolist() == [2, 1, 1]


def test_a_client_beyond_all(tmp_path: Path) -> None:
    assert "client: 2 is not one of the 2 clients" in complaint(GOOD, clients=2)
    names = GOOD.with_columns(pl.col("client").cast(pl.String))
    assert "the log names 3, more than 2" in complaint(names, clients=2)
    roster = pl.DataFrame({"client": [0, 1]})
    assert "2 is not one of the 2 clients of --roster" in complaint(GOOD, roster=roster)


def test_mixed_ids(tmp_path: Path) -> None:
    lines = [{"round": 0, "client": 1}, {"round": 1, "client": "a"}]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert "string" in complaint(path)
    assert "type" in complaint(pl.DataFrame({"round": [0], "client": [0.5]}))


def test_nothing_there(tmp_path: Path) -> None:
    assert "nobody takes part" in complaint(GOOD.head(0))
    assert "nobody takes part" in complaint(GOOD.with_columns(stage=pl.lit("available")))
    GOOD.head(0).write_parquet(tmp_path / "log.parquet")
    assert "nobody takes part" in complaint(tmp_path / "log.parquet")


def test_a_missing_column_offers_the_mapping(tmp_path: Path) -> None:
    rows = GOOD.rename({"round": "server_round"})
    assert complaint(rows).endswith("say which it is with --columns round=server_round")
    found = ft.audit(rows, columns={"round": "server_round"})
    assert found.log.length == 4
    assert "no 'rnd'" in complaint(rows, columns={"round": "rnd"})


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_empty_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"log{suffix}"
    path.touch()
    assert "is empty" in complaint(path)
    assert "there is no file" in complaint(tmp_path / f"other{suffix}")


def test_a_truncated_parquet(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    GOOD.write_parquet(path)
    path.write_bytes(path.read_bytes()[:-20])
    assert "no readable .parquet file" in complaint(path)


def test_rounds_that_are_times() -> None:
    rows = pl.DataFrame({"round": [1_700_000_000, 1_700_500_000], "client": [0, 1]})
    assert "look like times" in complaint(rows)
    assert "-1 is no round" in complaint(pl.DataFrame({"round": [-1], "client": [0]}))


def test_a_million_rounds_of_one_client_each(tmp_path: Path) -> None:
    """As asynchronous training logs them: unusual, and fine."""
    path = tmp_path / "log.csv"
    clients = np.random.default_rng(0).integers(5, size=1_000_000)
    pl.DataFrame({"round": np.arange(1_000_000), "client": clients}).write_csv(path)
    found = ft.audit(path)
    assert found.log.length == 1_000_000
    assert found.pattern.family == "independent"


def test_unknown_stage() -> None:
    assert "did you mean 'used'" in complaint(GOOD.with_columns(stage=pl.lit("usd")))


def test_rosters() -> None:
    twice = pl.DataFrame({"client": [0, 0]})
    assert "is there twice" in complaint(GOOD, roster=twice)
    assert "no column 'client'" in complaint(GOOD, roster=pl.DataFrame({"id": [0]}))
    everyone = pl.DataFrame({"client": [0, 1, 2], "region": ["a", "b", "b"]})
    assert "did you mean 'region'" in complaint(GOOD, roster=everyone, groups="regoin")
    assert "--roster" in complaint(GOOD, groups="region")
    assert "leave one of the two out" in complaint(GOOD, roster=everyone, clients=3)
    wrong = everyone.with_columns(weight=pl.lit(-1.0))
    assert "weight" in complaint(GOOD, roster=wrong)


def test_ledgers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    assert "there is no database" in complaint(url)
    ledger = Ledger(url)
    ledger.commit(0, [], time=0.0)
    ledger.commit(1, [Entry("ann", "used", 0.75), Entry("bob", "selected")], time=1.0)
    ledger.commit(2, [Entry("ann", "used", 1.0), Entry("cid", "used", 0.25)], time=2.0)
    ledger.close()
    found = ft.audit(url)
    assert (found.log.first, found.log.length, len(found.coverage.never)) == (0, 3, 1)
    assert found.objectives.given is not None
    assert found.objectives.given.weights.tolist() == [0.875, 0.0, 0.125]
    assert "there is no federation 'x'" in complaint(f"{url}#x")


def test_weights_that_are_none() -> None:
    assert "-1.0 is no weight" in complaint(GOOD.with_columns(weight=pl.lit(-1.0)))
    assert ft.audit(GOOD.with_columns(weight=pl.lit(None))).objectives.given is None
    assert ft.audit(GOOD.with_columns(weight=pl.lit(0.0))).objectives.given is None


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        ("", [], "is empty"),
        ("round,client\n", [], "nobody takes part"),
        ("server_round,client\n0,1\n", [], "--columns round=server_round"),
        ("round,client\n0,1\n0,1\n", [], "is twice in round 0"),
        ("round,client\n0,5\n", ["--clients", "3"], "is not one of the 3 clients"),
        ("round,client\n0.5,1\n", [], "0.5 is no round"),
        ("round,client\n0,\n", [], "the client is missing"),
        ("round,client\n0,1\n", ["--roster", "no.csv"], "there is no file"),
        ("round,client\n0,1\n", ["--groups", "region"], "--roster"),
        ("round,client\n0,1\n", ["--columns", "round"], "is not NAME=COLUMN"),
        ("round,client\n0,1\n", ["--html", "no/where/a.html"], "cannot be written"),
    ],
)
def test_the_command_says_it_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: str,
    options: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text(content)
    monkeypatch.setattr(sys, "argv", ["fedtide", "audit", "log.csv", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    complaint = capsys.readouterr().err
    assert ended.value.code == 2
    assert complaint.count("\n") == 1
    assert said in complaint


def test_the_command_line_says_it_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    path.touch()
    command = [
        sys.executable,
        "-c",
        "import fedtide.cli.main; fedtide.cli.main.main()",
        "audit",
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "is empty" in done.stderr
