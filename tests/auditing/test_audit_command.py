"""The command `fedtide audit`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from tests.auditing.logs import log_to_frame, simulate_log
from typer.testing import CliRunner

import fedtide as ft
from fedtide.cli.main import app, main
from fedtide.errors import InvalidInputError
from fedtide.participation import GroupCycle, Schedule, UniformOf


def test_command_writes_json_and_page(tmp_path: Path) -> None:
    log = simulate_log(Schedule(GroupCycle(4, 10), UniformOf(3)), 20, 400, 0)
    log_to_frame(log).rename({"round": "rnd"}).write_csv(tmp_path / "log.csv")
    arguments = ["audit", str(tmp_path / "log.csv"), "--columns", "round=rnd", "--clients", "25"]
    arguments += ["--json", str(tmp_path / "a.json"), "--html", str(tmp_path / "a.html")]
    done = CliRunner().invoke(app, [*arguments, "-L", "1.0"])
    assert done.exit_code == 0, done.output
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["never_seen"] == 5
    assert document["pattern"]["family"] == "cyclic"
    assert document["pattern"]["period"] == 40
    assert document["settings"]["learning_rates"]["fedau"]["lr"] > 0
    assert "never took part" in (tmp_path / "a.html").read_text()


def test_command_reads_times_and_strides(tmp_path: Path) -> None:
    rows = [(t, n) for t in range(0, 24, 3) for n in range(t % 4 + 1)]
    times = [f"2026-05-01T{t:02}:30:00,{n}" for t, n in rows]
    (tmp_path / "times.csv").write_text("\n".join(["time,client", *times]))
    (tmp_path / "rounds.csv").write_text(
        "\n".join(["round,client", *(f"{t},{n}" for t, n in rows)])
    )

    def count_rounds(name: str, *options: str) -> int:
        arguments = ["audit", str(tmp_path / name), "--json", str(tmp_path / "a.json"), *options]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        return int(json.loads((tmp_path / "a.json").read_text())["rounds"])

    assert count_rounds("times.csv", "--round-seconds", "3600", "--time-zone", "UTC") == 22
    assert count_rounds("times.csv", "--round-seconds", "10800", "--time-zone", "UTC") == 8
    assert count_rounds("rounds.csv", "--round-step", "3") == 8
    assert count_rounds("rounds.csv", "--round-step", "1") == 22
    assert count_rounds("rounds.csv", "--round-step", "1", "--from-round", "12") == 10
    (tmp_path / "privacy.yaml").write_text("clip: 1.0\nnoise_multiplier: 1.0\ndelta: 1.0e-5\n")
    private = ["--privacy", str(tmp_path / "privacy.yaml"), "--from-round", "3"]
    done = CliRunner().invoke(app, ["audit", str(tmp_path / "rounds.csv"), *private])
    assert str(done.exception).startswith("privacy: a client's loss counts from its first round")


def test_command_writes_the_method_that_is_asked_for(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rounds, clients = np.nonzero(random.random((60, 8)) < np.linspace(0.1, 0.8, 8))
    pl.DataFrame({"round": rounds, "client": clients}).write_csv(tmp_path / "log.csv")
    written = {name: str(tmp_path / name) for name in ("a.yaml", "a.py", "a.json")}
    arguments = ["audit", str(tmp_path / "log.csv"), "--method", "fedau"]
    refused = CliRunner().invoke(app, [*arguments, "--json", written["a.json"]])
    assert str(refused.exception).startswith("method: it has no effect alone")
    arguments += ["--experiment", written["a.yaml"], "--strategy", written["a.py"]]
    done = CliRunner().invoke(app, [*arguments, "--json", written["a.json"]])
    assert done.exit_code == 0, done.output
    advice = json.loads((tmp_path / "a.json").read_text())["advice"]
    fedau = next(one for one in advice if one["algorithm"] == "fedau")
    assert fedau is not advice[0]
    assert yaml.safe_load((tmp_path / "a.yaml").read_text()) == fedau["experiment"]
    assert (tmp_path / "a.py").read_text() == fedau["strategy"]
    unknown = CliRunner().invoke(app, [*arguments, "--method", "fedow"])
    assert str(unknown.exception).startswith("method: 'fedow' is not advised for this log; choose ")


@pytest.mark.parametrize(
    ("content", "options", "field", "word"),
    [
        ("", [], "log", "empty"),
        ("round,client\n0,1\n", ["--roster", "no.csv"], "roster", "no.csv"),
        ("round,client\n0,1\n", ["--groups", "region"], "groups", "--roster"),
        ("round,client\n0,1\n", ["--columns", "round"], "columns", "NAME=COLUMN"),
        ("round,client\n0,1\n1,1\n", ["--html", "no/where/a.html"], "html", "no/where/a.html"),
    ],
)
def test_command_reports_invalid_input_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: str,
    options: list[str],
    field: str,
    word: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text(content)
    monkeypatch.setattr(sys, "argv", ["fedtide", "audit", "log.csv", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    message = capsys.readouterr().err
    assert ended.value.code == 2
    assert message.count("\n") == 1
    assert f"{field}: " in message
    assert word in message


LOG = "round,client\n0,0\n0,1\n1,0\n2,1\n"


@pytest.mark.parametrize(
    ("log", "options", "output"),
    [
        ("log.json", [], ["--json", "log.json"]),
        pytest.param(
            *("log.json", [], ["--json", "link.json"]),
            marks=pytest.mark.skipif(os.name != "posix", reason="links need a privilege there"),
        ),
        ("log.csv", ["--roster", "roster.json"], ["--json", "roster.json"]),
        ("log.csv", ["--privacy", "privacy.yaml"], ["--experiment", "privacy.yaml"]),
        ("run", [], ["--json", "run/summary.json"]),
        ("run", [], ["--experiment", "run/experiment.yaml"]),
    ],
)
def test_outputs_do_not_replace_what_is_read(
    log: str, options: list[str], output: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text(LOG)
    frame = pl.read_csv("log.csv")
    Path("log.json").write_text(frame.write_json())
    if os.name == "posix":
        Path("link.json").symlink_to("log.json")
    Path("roster.json").write_text('[{"client": 0}, {"client": 1}]')
    mechanism = {"type": "gaussian", "clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}
    Path("privacy.yaml").write_text(yaml.safe_dump({"privacy": mechanism}))
    Path("run").mkdir()
    frame.with_columns(stage=pl.lit("used")).write_parquet("run/participation.parquet")
    Path("run/summary.json").write_text('{"rounds": 3}')
    Path("run/experiment.yaml").write_text("rounds: 3")
    before = {file: file.read_bytes() for file in Path().rglob("*.*")}
    refused = CliRunner().invoke(app, ["audit", log, *options, *output])
    assert isinstance(refused.exception, InvalidInputError)
    assert str(refused.exception).startswith(f"{output[0][2:]}: {Path(output[1])} ")
    assert {file: file.read_bytes() for file in Path().rglob("*.*")} == before


@pytest.mark.skipif(os.name != "posix", reason="no name on Windows has * or ?")
def test_home_folders_and_paths_with_brackets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(tmp_path))
    frame = pl.DataFrame({"round": [0, 0, 1], "client": [0, 1, 0], "stage": ["used"] * 3})
    run = tmp_path / "[a]*"
    run.mkdir()
    frame.write_parquet(run / "participation.parquet")
    clients = pl.DataFrame({"client": [0, 1, 2]})
    clients.write_parquet(run / "clients.parquet")
    clients.write_csv(tmp_path / "roster.csv")
    assert ft.audit("~/[a]*").log.size == 3
    assert ft.audit("~/[a]*/participation.parquet", roster="~/roster.csv").log.size == 3
    done = CliRunner().invoke(app, ["audit", "~/[a]*", "--json=~/a.json", "--html=~/a.html"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "a.json").is_file()
    assert (tmp_path / "a.html").is_file()


@pytest.mark.process
def test_command_starts_without_slow_imports() -> None:
    """Each of these takes longer to import than a log of a million rows to read."""
    code = "import sys, fedtide.cli.main, fedtide.cli.audit; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    slow = {"torch", "matplotlib", "sklearn", "datasets", "pandas", "scipy.stats", "sqlalchemy"}
    assert not slow & set(done.stdout.split())
