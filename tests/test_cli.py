"""The command line: what it writes, how it refuses bad input, and how it is interrupted."""

import dataclasses
import io
import itertools
import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import click
import polars as pl
import pytest
import typer
import yaml

import fedtide as ft
import fedtide.simulation.loop as fedtide_loop
from fedtide.cli.main import COMMANDS, app, main
from fedtide.cli.options import Overrides
from fedtide.examples import find_example
from fedtide.participation import SELECTIONS
from fedtide.simulation.checkpoint import load_newest
from fedtide.sweep import Sweep

pytestmark = pytest.mark.usefixtures("undrawn")  # figures have tests of their own

EXPERIMENT = {
    "name": "small",
    "rounds": 6,
    "problem": {
        "type": "regression",
        "clients": 5,
        "samples": 50,
        "features": 4,
        "informative": 2,
    },
    "participation": {"type": "bernoulli", "rates": 0.5},
    "local": {"steps": 2, "lr": 0.05, "batch_size": 4},
    "algorithm": "fedavg",
    "evaluation": {"every": 2},
    "trainer": "reference",
}
QUADRATIC = {"type": "quadratic", "matrices": [[[1.0]], [[2.0]]], "centers": [[0.0], [1.0]]}
DIGITS = {"type": "classification", "dataset": "digits", "partition": "iid", "clients": 5}


@pytest.fixture
def fedtide(tmp_path, monkeypatch, capsys):
    """Return a function that runs a command in an empty folder: (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedtide", *map(str, arguments)])
        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code or 0
        return status, *capsys.readouterr()

    yield command
    for number, handler in before.items():
        signal.signal(number, handler)


def write(plain, name="experiment.yaml"):
    Path(name).write_text(plain if isinstance(plain, str) else yaml.safe_dump(plain))
    return name


def everything(folder="."):
    return sorted(str(path) for path in Path(folder).rglob("*"))


def refused(answer):
    """Return the message of a refusal: status 2, one line on stderr and nothing else."""
    status, out, err = answer
    assert status == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("fedtide: ")
    return err.removeprefix("fedtide: ").rstrip()


# What it writes


def test_a_run_makes_its_folder_and_says_where(fedtide):
    status, out, _ = fedtide("run", write(EXPERIMENT), "--out", "here")
    assert status == 0
    assert "here" in out
    names = {path.name for path in Path("here").iterdir()}
    assert names - {".lock"} == {
        "experiment.yaml",
        "fingerprints.json",
        "metrics.parquet",
        "participation.parquet",
        "clients.parquet",
        "model.safetensors",
        "summary.json",
        "timings.json",
        "checkpoints",
        "comparison.png",
    }
    summary = json.loads(Path("here/summary.json").read_text())
    assert summary["rounds"] == 6
    metrics = pl.read_parquet("here/metrics.parquet")
    assert metrics["round"].to_list() == [0, 2, 4, 6]
    assert summary["metrics"]["loss"] == metrics["loss"][-1]


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_names_that_no_folder_can_have(command, fedtide):
    """Linux allows 255 bytes."""
    plain = EXPERIMENT | {"rounds": 2, "seeds": [1, 2]}
    for options in ([], ["--resume"] if command == "run" else ["--force-resume"]):
        status, _, err = fedtide(command, write(plain), "--out", "x" * 300, *options)
        assert status == 2
        assert "fedtide: out: xxx" in err
        assert "choose another" in err


@pytest.mark.skipif(sys.platform == "win32", reason="no name there has * or ?")
def test_a_run_below_a_folder_with_brackets(fedtide):
    status, out, err = fedtide("run", write(EXPERIMENT), "--out", "runs/[a]*")
    assert status == 0, err
    assert Path("runs/[a]*/comparison.png").exists()
    assert "runs/[a]*" in out


def test_an_audit_of_several_runs_names_one(fedtide):
    plain = EXPERIMENT | {"rounds": 2, "seeds": [2, 1]}
    assert fedtide("run", write(plain), "--out", "runs/small", "--workers=1")[0] == 0
    status, _, err = fedtide("audit", "runs")
    assert status == 2
    (folder,) = re.findall("such as (.*)", err)
    assert (Path(folder) / "participation.parquet").is_file()
    assert fedtide("audit", folder)[0] == 0


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_folder_below_home(command, fedtide, tmp_path, monkeypatch):
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    plain = EXPERIMENT | {"rounds": 2, "seeds": [1, 2]}
    options = ("--out=~/here", "--workers=1")  # a shell expands ~ at the beginning of a word alone
    status, out, err = fedtide(command, write(plain), *options)
    assert status == 0, err
    assert not Path("~").exists()
    assert str(tmp_path / "home" / "here") in out
    assert (tmp_path / "home/here/results.parquet").exists()


def test_a_search_whose_runs_all_fail_offers_no_best(fedtide):
    rates = {"type": "two-stage", "lr": [1e30], "server_lr": [1.0]}
    status, out, err = fedtide(
        "sweep", write(EXPERIMENT | {"strategy": rates}), "--out=o", "--workers=1"
    )
    assert status == 0, err
    assert "best: none, as all runs failed" in out
    assert "fedtide run" not in out


@pytest.mark.parametrize("system", ["posix", "nt"])
def test_the_command_that_runs_the_best_can_be_pasted(system, fedtide, monkeypatch):
    """Single quotes mean nothing to the command line of Windows."""
    rates = {"type": "two-stage", "lr": [0.1], "server_lr": [1.0]}
    monkeypatch.setattr("fedtide.cli.sweep.os", SimpleNamespace(name=system))
    file = write(EXPERIMENT | {"strategy": rates})
    _, out, _ = fedtide("sweep", file, "--out", "my runs", "--workers=1")
    command = out.splitlines()[-1].partition("run it with: ")[2]
    assert "'" not in command or system == "posix"
    words = re.findall(r'"[^"]*"|\S+', command) if system == "nt" else shlex.split(command)
    best = str(Path("my runs/best.yaml"))
    assert [word.strip('"') for word in words] == ["fedtide", "run", best, "seeds=[1, 2, 3]"]


def test_without_out_runs_are_numbered(fedtide):
    file = write(EXPERIMENT | {"rounds": 2})
    assert fedtide("run", file)[0] == 0
    Path("runs/small-2").mkdir()
    assert fedtide("run", file)[0] == 0
    for folder in ("runs/small", "runs/small-3"):
        assert Path(folder, "summary.json").exists()
    assert fedtide("run", file, "--resume")[0] == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["small", "small-2", "small-3"]


def test_overrides_are_put_over_the_file(fedtide):
    answer = fedtide(
        "run",
        write(EXPERIMENT),
        "rounds=3",
        "algorithm.server_lr=1e-1",
        "local.batch_size=null",
        "participation.rates=[0.1, 0.2, 0.3, 0.4, 5e-1]",
        "--out",
        "here",
    )
    assert answer[0] == 0
    there = yaml.safe_load(Path("here/experiment.yaml").read_text())
    assert there["rounds"] == 3
    assert there["algorithm"] == {"type": "fedavg", "server_lr": 0.1, "weights": "mean"}
    assert there["local"]["batch_size"] is None
    assert there["participation"]["rates"] == [0.1, 0.2, 0.3, 0.4, 0.5]


@pytest.mark.parametrize(
    ("participation", "nobody"),
    [
        ({"type": "bernoulli", "rates": 1e-9}, True),
        ({"type": "table", "weights": [[1.0, 0, 0, 0, 0]] * 6}, False),
    ],
    ids=str,
)
def test_a_run_without_any_participant_says_so_wherever_it_is_shown(
    participation, nobody, fedtide, caplog
):
    file = write(EXPERIMENT | {"participation": participation})
    assert fedtide("run", file)[0] == 0
    assert ("participation: no client took part in any round" in caplog.text) == nobody
    assert Path("runs/small/comparison.png").exists()
    for command in ("compare", "report"):
        status, out, _ = fedtide(command, "runs")
        assert status == 0
        assert ("small, seed 0: participation: no client took part" in out) == nobody
    assert ("no client took part" in Path("runs/report.html").read_text()) == nobody


def test_participation_at_rate_0_is_refused(fedtide):
    file = write(EXPERIMENT | {"participation": {"type": "bernoulli", "rates": 0.0}})
    assert refused(fedtide("run", file)).startswith(
        "participation: the rates at which clients take part"
    )
    assert everything() == ["experiment.yaml"]


def test_keys_are_those_of_the_classes(fedtide):
    status, out, _ = fedtide("keys")
    assert status == 0
    assert all(f" {field.name} " in out for field in dataclasses.fields(ft.Experiment))
    for name in ("fedau", "algorithm.fedau"):
        _, out, _ = fedtide("keys", name)
        assert "ω_t^n is the mean length of the intervals" in " ".join(out.split())
        assert re.search(
            r"^ cutoff +a whole number or null +50 +K >= 1; None is ∞", out, re.MULTILINE
        )
    for key, registry in (("selection", SELECTIONS), ("algorithm", ft.algorithms.ALGORITHMS)):
        _, out, _ = fedtide("keys", key)
        assert all(f"\n {name} " in out for name in registry)
    assert "γ > 0" in fedtide("keys", "local.lr")[1]
    first = fedtide("keys", "amplified")[1].splitlines()[0]
    assert first == "algorithm: {type: amplified, period: ..., factor: ...}"
    found = re.findall(r"^ ([\w.-]+\.mu) ", fedtide("keys", "mu")[1], re.MULTILINE)
    assert found == ["algorithm.fedprox.mu"]
    for name in ("loss", "metrics", "dataset", "model", "sweep", "two-stage"):
        assert fedtide("keys", name)[0] == 0
    assert everything() == []


def test_keys_that_are_near_an_unknown_one_are_named(fedtide):
    message = refused(fedtide("keys", "fedua"))
    assert message.startswith("name: unknown 'fedua'; did you mean fedau, fedawe, ")
    assert " local.lr, " in refused(fedtide("keys", "locl.lr"))
    assert refused(fedtide("keys", "§")).endswith("; begin with those of: fedtide keys")


def test_methods_and_seeds_are_compared(fedtide):
    methods = {"weighted": {"algorithm": {"type": "fedau"}}, "plain": {"algorithm": "fedavg"}}
    plain = EXPERIMENT | {"seeds": [1, 2], "methods": methods}
    file = write(yaml.safe_dump(plain, sort_keys=False))
    status, out, _ = fedtide("run", file, "--out", "both", "--workers", "1")
    assert status == 0
    assert "plain" in out
    assert "weighted" in out
    assert "±" in out
    assert len(everything("both/weighted/seed-2")) > 5
    assert out.index("weighted ") < out.index("plain ")  # as in the file
    status, again, _ = fedtide("compare", "both", "--figure", "figure.pdf", "--table", "t.csv")
    assert status == 0
    assert again == out.partition("runs and figure: ")[0]
    assert Path("figure.pdf").stat().st_size > 0
    assert pl.read_csv("t.csv").equals(ft.compare("both").frame)


@pytest.mark.usefixtures("fedtide")
def test_the_package_can_be_run_where_the_command_is_not_on_the_path(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fedtide", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("fedtide", run_name="__main__")
    assert not ended.value.code
    assert capsys.readouterr().out == f"fedtide {version('fedtide')}\n"


def test_help_lists_every_command_with_an_example_of_an_override(fedtide):
    status, out, _ = fedtide("--help")
    assert status == 0
    commands = [
        line.split()[1]
        for line in out.splitlines()
        if line.startswith("│ ") and "-" not in line[:4]
    ]
    assert set(commands) == set(COMMANDS)
    for command in commands:
        status, out, _ = fedtide(command, "--help")
        assert status == 0
        assert "Usage:" in out
    assert "rounds=50" in fedtide("run", "--help")[1]


def test_the_list_of_commands_says_what_their_own_help_says():
    group = typer.main.get_command(app)
    context = click.Context(group)
    for name in group.list_commands(context):
        listed = group.get_command(context, name)
        _, command, _ = group.resolve_command(context, [name])
        assert listed.help == " ".join(command.help.split("\n\n")[0].split())


@pytest.mark.parametrize("columns", [60, 80])
def test_help_fills_the_lines_of_the_terminal(columns, fedtide, monkeypatch):
    """A line of prose is broken only where the next word does not fit."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", columns)
    parts = [(name,) for name in COMMANDS]
    parts += [("ledger", name) for name in ("check", "migrate", "prune", "export")]
    parts += [("flower", name) for name in ("demo", "register")]
    for part in parts:
        out = fedtide(*part, "--help")[1]
        prose = out[out.index("Usage:") : out.index("╭")].partition("\n methods:")[0]
        for paragraph in re.split(r"\n\s*\n", prose)[1:]:  # after the usage
            lines = [line.strip() for line in paragraph.strip().splitlines()]
            for line, following in itertools.pairwise(lines):
                assert len(f"{line} {following.split()[0]}") > columns - 2, (part, line)
        assert "\b" not in out
    example = fedtide("leaderboard", "--help")[1]
    lines = [line.rstrip() for line in example.splitlines()]
    assert lines[lines.index(" methods:") + 1] == "   mine:"


# How it refuses: one line that names the field and suggests a fix, status 2, nothing written.

PARTITIONED = DIGITS | {"partition": {"type": "dirchlet", "alpha": 1}}
BALL = {"type": "ball", "radius": 1, "center": [0]}


def rates(value):
    return {"participation": {"type": "bernoulli", "rates": value}}


def table(weights):
    return {"participation": {"type": "table", "weights": weights}}


def regression(**changes):
    return {"problem": EXPERIMENT["problem"] | changes}


# what is changed, the field that is named, and a word of the hint or of the problem


@pytest.mark.parametrize(
    ("override", "field", "word"),
    [
        ("rounds=ten", "rounds", "whole number"),
        ("rounds", "rounds", "KEY=VALUE"),
        ("=5", "=5", "KEY=VALUE"),
        ("rounds=", "rounds", "whole number"),
        ("local.lr=[1", "local.lr", "quote"),
        ("local.lrr=1", "local.lrr", "'lr'"),
        ("algorithm.cutoff=5", "algorithm.cutoff", "unknown key"),
    ],
)
def test_a_bad_override_is_refused(override, field, word, fedtide):
    file = write(EXPERIMENT)
    message = refused(fedtide("run", file, override, "--out", "here"))
    assert message.startswith(f"{field}: ")
    assert word in message
    assert everything() == [file]


def test_the_overrides_in_the_help_apply_to_an_example():
    (argument,) = (part for part in Overrides.__metadata__)
    overrides = shlex.split(argument.help.partition(":")[2])
    runs = Sweep.load(find_example(Path("digits")), overrides).runs
    assert {run.experiment.seed for run in runs} == {1, 2}
    assert {(run.experiment.rounds, run.experiment.local.lr) for run in runs} == {(50, 0.1)}


def test_a_missing_file_is_refused(fedtide):
    assert refused(fedtide("run", "none.yaml")).startswith("none.yaml: ")
    assert everything() == []


@pytest.mark.parametrize(
    ("text", "field", "word"),
    [
        ("rounds: [1, 2", "bad.yaml", "line 1"),
        ("a: 1\nb: {", "bad.yaml", "line 2"),
        ("just words", "bad.yaml", "`problem:`"),
        ("", "bad.yaml", "`problem:`"),
        ("name: x", "problem", "missing"),
        ("? [1, 2]\n: 3\n", "bad.yaml", "line 1"),
        ("!!python/object:os.system {}", "bad.yaml", "line 1"),
    ],
)
def test_a_file_that_is_no_experiment_is_refused(text, field, word, fedtide):
    file = write(text, "bad.yaml")
    message = refused(fedtide("run", file))
    assert message.startswith(f"{field}: ")
    assert word in message
    assert everything() == [file]


def test_damaged_logs_and_data_are_refused(fedtide):
    pl.DataFrame({"round": [0, 0], "client": [1, 1]}).write_parquet("twice.parquet")
    Path("broken.parquet").write_bytes(b"PAR1 this is no Parquet file")
    Path("data").mkdir()
    for split in ("train", "test"):
        Path("data", f"{split}.parquet").write_bytes(b"PAR1 neither")
    before = everything()
    for changes, words in [
        ({"participation": {"type": "replay", "log": "twice.parquet"}}, "twice"),
        ({"participation": {"type": "replay", "log": "broken.parquet"}}, "broken.parquet"),
        ({"participation": {"type": "table", "weights": "broken.parquet"}}, "broken.parquet"),
        (
            {"participation": {"type": "trace", "file": "broken.parquet", "round_seconds": 1}},
            "broken.parquet",
        ),
        ({"problem": DIGITS | {"dataset": "data"}}, "train.parquet"),
    ]:
        file = write(EXPERIMENT | changes)
        assert words in refused(fedtide("run", file, "--out", "here"))
        assert everything() == sorted([*before, file])


def test_output_folders_with_other_contents_are_refused(fedtide):
    Path("full").mkdir()
    Path("full", "notes.txt").write_text("mine")
    file = write(EXPERIMENT)
    study = write(EXPERIMENT | {"seeds": [1, 2]}, "study.yaml")
    before = everything()
    is_file = f"{Path('full/notes.txt')} is a file"
    for arguments, words in [
        ((file, "--out", "full"), ("full is not empty", "no run")),
        ((file, "--out", "full", "--resume"), ("full is not empty", "no run")),
        ((study, "--out", "full"), ("full is not empty", "no sweep")),
        ((file, "--out", "full/notes.txt"), (is_file, "folder")),
        ((study, "--out", "full/notes.txt"), (is_file, "folder")),
    ]:
        message = refused(fedtide("run", *arguments))
        assert message.startswith("out: ")
        assert all(word in message for word in words)
        assert everything() == before


def test_resuming_what_does_not_exist_says_that_it_starts_again(fedtide):
    """A typing error in the folder's name would cost the whole run."""
    file = write(EXPERIMENT)
    status, _, err = fedtide("run", file, "--out", "heer", "--resume")
    assert status == 0
    assert "fedtide: heer does not exist, so the run starts from the beginning\n" in err
    assert "starts from" not in fedtide("run", file, "--out", "heer", "--resume")[2]


OWN_PROCESS = """
from dataclasses import dataclass

import numpy as np
import fedtide as ft
from fedtide.participation import Availability, AvailabilityStream, AvailableClients


class Fails(AvailabilityStream):
    length = None

    def round(self, t):
        if t == 3:
            raise KeyError("boom")
        return AvailableClients(np.array([0]))


@dataclass(frozen=True)
class Boom(Availability):
    def begin(self, population, seed):
        return Fails()
"""


@pytest.mark.parametrize(
    ("changes", "run"),
    [({}, ""), ({"seeds": [1, 2]}, "small/seed-1: ")],
    ids=["one run", "two seeds"],
)
def test_an_exception_in_code_of_ones_own_comes_first_and_is_recorded(
    changes, run, fedtide, monkeypatch
):
    Path("own_boom.py").write_text(OWN_PROCESS)
    monkeypatch.syspath_prepend(Path.cwd())
    file = write(EXPERIMENT | {"participation": {"type": "own_boom:Boom"}} | changes)
    status, _, err = fedtide("run", file, "--out", "here", "--workers", "1")
    assert status == 1
    assert err.startswith(f"fedtide: the run failed: {run}KeyError: 'boom'\n")
    assert 'raise KeyError("boom")' in err
    assert "typer" not in err
    assert "KeyError: 'boom'" in refused(fedtide("compare", "here"))


def test_resuming_another_experiment_names_the_differences(fedtide):
    file = write(EXPERIMENT)
    fedtide("run", file, "--out", "here")
    before = {path: Path(path).read_bytes() for path in everything("here") if Path(path).is_file()}
    message = refused(fedtide("run", file, "rounds=5", "local.lr=0.5", "--out", "here", "--resume"))
    assert message.startswith("resume: here ")
    assert "local.lr (was 0.05, is 0.5)" in message
    assert "rounds (was 6, is 5)" in message
    assert before == {
        path: Path(path).read_bytes() for path in everything("here") if Path(path).is_file()
    }


def test_a_finished_run_continues_for_more_rounds(fedtide):
    file = write(EXPERIMENT)
    fedtide("run", file, "--out", "here")
    fedtide("run", file, "rounds=9", "--out", "here", "--resume")
    assert json.loads(Path("here", "summary.json").read_text())["rounds"] == 9


@pytest.mark.parametrize(
    ("arguments", "field", "suffixes"),
    [
        (["compare", "here", "--figure", "x.xyz"], "figure", ".png, .pdf or .svg"),
        (["compare", "here", "--figure", "x"], "figure", ".png, .pdf or .svg"),
        (["compare", "here", "--table", "x.xlsx"], "table", ".csv, .md or .tex"),
        (["report", "here", "--html", "x.pdf"], "html", ".html or .htm"),
        (["audit", "here/participation.parquet", "--html", "x.png"], "html", ".html or .htm"),
        (["audit", "here/participation.parquet", "--json", "x.csv"], "json", ".json"),
        (["papers", "--write", "x.json"], "write", ".md"),
        (["leaderboard", "--write", "x.json"], "write", ".md"),
    ],
    ids=str,
)
def test_an_output_of_an_unknown_format_is_refused_before_anything_is_read(
    arguments, field, suffixes, fedtide
):
    message = refused(fedtide(*arguments))
    assert message.startswith(f"{field}: x")
    assert message.endswith(f"; use {suffixes}")
    assert everything() == []


@pytest.mark.parametrize("command", [("sweep",), ("run", "--resume")])
def test_a_file_of_runs_beside_its_runs_is_kept_as_it_is_written(command, fedtide):
    """The folder has a record of the sweep, which is called sweep.yaml."""
    name, *options = command
    short = EXPERIMENT | {"rounds": 1, "evaluation": {"every": 0}}
    write(short, "base.yaml")
    text = "# mine\nbase: base.yaml\nseeds: [1, 2]\n"
    file = write(text, "sweep.yaml")
    for changed in ([], ["rounds=2"]):
        arguments = [name, file, *changed, "--out", ".", *options, "--workers", "1"]
        message = refused(fedtide(*arguments))
        assert message.startswith("out: sweep.yaml ")
        assert everything() == ["base.yaml", "sweep.yaml"]


def test_the_record_of_a_sweep_follows_what_is_run(fedtide):
    file = write(EXPERIMENT | {"rounds": 1, "evaluation": {"every": 0}, "seeds": [1]}, "mine.yaml")
    for seeds in ([1], [1, 2]):
        answer = fedtide("sweep", file, f"seeds={seeds}", "--out", "here", "--workers", "1")
        assert answer[0] == 0
        assert yaml.safe_load(Path("here/sweep.yaml").read_text())["seeds"] == seeds


def test_comparing_folders_without_finished_runs_is_refused(fedtide):
    Path("empty").mkdir()
    for folder in ("empty", "nowhere"):
        message = refused(fedtide("compare", folder))
        assert message.startswith(f"{folder}: ")
        assert "`fedtide run`" in message
    Path("here").mkdir()
    Path("here/experiment.yaml").write_text("{}")
    message = refused(fedtide("compare", "here"))
    assert message.startswith("here: ")
    assert "--resume" in message


@pytest.mark.parametrize("arguments", [["run"], ["rum"], ["run", "x.yaml", "--outt", "y"]])
def test_missing_arguments_and_misspelt_commands_or_options_are_refused(arguments, fedtide):
    status, _, err = fedtide(*arguments)
    assert status == 2
    assert "Error" in err
    assert "Traceback" not in err


# A real process, ended by signals

LONG = EXPERIMENT | {"rounds": 800, "checkpoint": {"every": 20}, "evaluation": {"every": 20}}
COMMAND = [sys.executable, "-c", "from fedtide.cli.main import main; main()"]


def started(*arguments):
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "200"},
    )


def reached(process, folder, t):
    """Wait until the run has saved round t or a later one."""
    while True:
        kept = load_newest(Path(folder) / "checkpoints")
        if kept is not None and kept.round >= t:
            return kept.round
        try:
            process.wait(timeout=0.02)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(process.stderr.read())


@pytest.mark.process
def test_a_run_that_is_killed_and_interrupted_again_and_again_gives_the_same_results(
    fedtide, results
):
    file = write(LONG)
    assert fedtide("run", file, "--out", "whole")[0] == 0
    for number, start in ((signal.SIGKILL, 150), (signal.SIGTERM, 350), (signal.SIGINT, 550)):
        process = started("run", file, "--out", "ended", "--resume")
        reached(process, "ended", start)
        process.send_signal(number)
        _, err = process.communicate(timeout=300)
        if number == signal.SIGKILL:
            assert process.returncode == -signal.SIGKILL
        else:
            assert process.returncode == 130
            last = err.splitlines()[-1]
            assert last.startswith("fedtide: interrupted after round ")
            assert "--resume" in last
            assert int(last.split()[4]) == load_newest(Path("ended/checkpoints")).round
        assert not Path("ended/summary.json").exists()
    assert fedtide("run", file, "--out", "ended", "--resume")[0] == 0
    assert results("ended") == results("whole")


@pytest.mark.process
def test_runs_of_several_workers_that_are_interrupted_and_killed_give_the_same_results(
    fedtide, results
):
    """With more runs than workers, a waiting run must not start after the interruption."""
    file = write(LONG | {"rounds": 300, "seeds": [1, 2, 3, 4]})
    assert fedtide("run", file, "--out", "whole", "--workers", "1")[0] == 0
    for number, start in ((signal.SIGTERM, 40), (signal.SIGKILL, 140)):
        process = started("run", file, "--out", "ended", "--workers", "2", "--resume")
        reached(process, "ended/small/seed-1", start)
        process.send_signal(number)
        _, err = process.communicate(timeout=300)
        if number == signal.SIGTERM:
            assert process.returncode == 130
            last = err.splitlines()[-1]
            assert last.startswith("fedtide: interrupted and saved; ")
            assert "--resume" in last
        assert not Path("ended/small/seed-4").exists()
    status, _, err = fedtide("run", file, "--out", "ended", "--workers", "2", "--resume")
    assert status == 0, err
    for seed in range(1, 5):
        assert results(f"ended/small/seed-{seed}") == results(f"whole/small/seed-{seed}")


@pytest.mark.process
def test_an_interruption_before_the_first_round_is_reported(fedtide):
    """Ctrl-C while the data are prepared."""
    Path("slow.py").write_text("import signal, os\nos.kill(os.getpid(), signal.SIGINT)\n")
    file = write(EXPERIMENT | {"problem": DIGITS | {"model": "slow:model"}})
    process = started("run", file, "--out", "here")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert err.startswith("fedtide: interrupted; ")
    assert err.count("\n") == 1
    assert not Path("here").exists()


HINTS = {
    "run": "repeat the command with --resume to continue",
    "sweep": "repeat the command to continue",
    "papers": "repeat the command to continue",
    "leaderboard": "repeat the command to continue",
    "compare": "repeat the command",
    "report": "repeat the command",
    "audit": "repeat the command",
}


@pytest.mark.parametrize("command", HINTS)
def test_an_interruption_offers_only_what_the_command_has(command, fedtide, monkeypatch):
    """A signal while its arguments are read; --resume is offered by the command that takes it."""

    def interrupted():
        signal.raise_signal(signal.SIGINT)

    _, help_text, _ = fedtide(command, "--help")
    monkeypatch.setattr(f"fedtide.cli.{command}.{command}_command", interrupted)
    status, out, err = fedtide(command)
    assert (status, out) == (130, "")
    assert err == f"fedtide: interrupted; {HINTS[command]}\n"
    assert ("--resume" in err) == ("--resume" in help_text)


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_an_interrupted_run_says_where_it_is_and_how_this_command_continues(
    command, fedtide, monkeypatch
):
    """The signal comes with the first progress of a run of one experiment."""
    before = fedtide_loop.Run.round

    def interrupt_after(run):
        before(run)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(fedtide_loop.Run, "round", interrupt_after)
    status, _, err = fedtide(command, write(EXPERIMENT), "--out", "here")
    assert status == 130
    wanted = f"fedtide: interrupted after round 1 of 6, saved in here; {HINTS[command]}"
    assert err.splitlines()[-1] == wanted


@pytest.mark.process
@pytest.mark.parametrize(
    ("workers", "seconds"), [(1, 0.3), (1, 1), (1, 4), (2, 0.3), (2, 2), (2, 4), (2, 8)]
)
def test_ctrl_c_ends_with_a_sentence_at_any_time(workers, seconds, fedtide):
    """Also during imports, and in processes that are still starting; Ctrl-C reaches all of them."""
    file = write(LONG | {"rounds": 10**6})
    several = ["seeds=[1, 2]", "--workers", "2"] if workers == 2 else []
    process = subprocess.Popen(
        [sys.executable, "-c", "from fedtide.cli.entry import main; main()", "run", file, *several],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith("fedtide: interrupted")
    assert "Traceback" not in err


@pytest.mark.process
def test_the_process_refuses_without_a_traceback(fedtide):
    process = started("run", write(EXPERIMENT | {"algorithm": "fedua"}))
    _, err = process.communicate(timeout=300)
    assert process.returncode == 2
    assert err.startswith("fedtide: algorithm.type: ")
    assert err.count("\n") == 1


# Where the output goes.


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_an_output_in_another_encoding_has_marks_for_what_it_lacks(encoding, fedtide, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    status, _, err = fedtide("audit", "--help")
    assert (status, err) == (0, "")
    assert ("δ: gradient divergence" in raw.getvalue().decode(encoding)) is (encoding == "utf-8")
    assert "?: gradient divergence" in raw.getvalue().decode(encoding).replace("δ", "?")
