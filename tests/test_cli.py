"""The command line: what it writes, how it refuses bad input, and how it is interrupted."""

import dataclasses
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

import polars as pl
import pytest
import yaml

import fedtide as ft
import fedtide.simulation.loop as fedtide_loop
from fedtide.cli.main import COMMANDS, main
from fedtide.participation import SELECTIONS
from fedtide.simulation.checkpoint import load_newest

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


@pytest.mark.skipif(sys.platform == "win32", reason="no name there has * or ?")
@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_folder_below_home_with_brackets(command, fedtide, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    plain = EXPERIMENT | {"rounds": 2, "seeds": [1, 2]}
    options = ("--out=~/[a]*", "--workers=1")  # a shell expands ~ at the beginning of a word alone
    status, out, err = fedtide(command, write(plain), *options)
    assert status == 0, err
    assert not Path("~").exists()
    assert str(tmp_path / "home" / "[a]*") in out
    assert (tmp_path / "home/[a]*/results.parquet").exists()


def test_every_command_has_help(fedtide):
    for command in COMMANDS:
        assert fedtide(command, "--help")[0] == 0


def test_a_search_offers_a_command_for_its_best_unless_all_runs_fail(fedtide):
    strategy = {"type": "two-stage", "lr": [0.1], "server_lr": [1.0]}
    file = write(EXPERIMENT | {"strategy": strategy})
    out = fedtide("sweep", file, "--out", "my runs", "--workers=1")[1]
    command = out.splitlines()[-1].partition("run it with: ")[2]
    best = str(Path("my runs/best.yaml"))
    assert shlex.split(command) == ["fedtide", "run", best, "seeds=[1, 2, 3]"]
    file = write(EXPERIMENT | {"strategy": strategy | {"lr": [1e30]}})
    assert fedtide("sweep", file, "--out", "failed", "--workers=1")[0] == 0


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


def test_a_run_without_any_participant_says_so_wherever_it_is_shown(fedtide):
    fedtide("run", write(EXPERIMENT | {"participation": {"type": "bernoulli", "rates": 1e-9}}))
    for command in ("compare", "report"):
        assert "seed 0: participation: no client took part" in fedtide(command, "runs")[1]
    assert "no client took part" in Path("runs/report.html").read_text()


def test_keys_are_those_of_the_classes(fedtide):
    status, out, _ = fedtide("keys")
    assert status == 0
    assert all(f" {field.name} " in out for field in dataclasses.fields(ft.Experiment))
    out = fedtide("keys", "fedau")[1]
    assert fedtide("keys", "algorithm.fedau")[1] == out
    assert re.search(r"^ cutoff +a whole number or null +50 +K >= 1; None is ∞", out, re.MULTILINE)
    for key, registry in (("selection", SELECTIONS), ("algorithm", ft.algorithms.ALGORITHMS)):
        out = fedtide("keys", key)[1]
        assert all(f"\n {name} " in out for name in registry)
    first = fedtide("keys", "amplified")[1].splitlines()[0]
    assert first == "algorithm: {type: amplified, period: ..., factor: ...}"
    found = re.findall(r"^ ([\w.-]+\.mu) ", fedtide("keys", "mu")[1], re.MULTILINE)
    assert found == ["algorithm.fedprox.mu"]
    for name in ("loss", "metrics", "dataset", "model", "sweep", "two-stage", "local.lr"):
        assert fedtide("keys", name)[0] == 0
    message = refused(fedtide("keys", "fedua"))
    assert message.startswith("name: unknown 'fedua'; did you mean fedau, fedawe, ")


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


# How it refuses: one line that names the field and suggests a fix, status 2, nothing written.


@pytest.mark.parametrize(
    ("text", "override", "field", "word"),
    [
        (None, "rounds=2", "none.yaml", "cannot"),
        ("a: 1\nb: {", "rounds=2", "none.yaml", "line 2"),
        ("just words", "rounds=2", "none.yaml", "`problem:`"),
        ("!!python/object:os.system {}", "rounds=2", "none.yaml", "line 1"),
        ("name: x", "rounds=2", "problem", "missing"),
        (EXPERIMENT, "rounds", "rounds", "KEY=VALUE"),
        (EXPERIMENT, "rounds=ten", "rounds", "whole number"),
        (EXPERIMENT, "local.lr=[1", "local.lr", "quote"),
        (EXPERIMENT, "algorithm.cutoff=5", "algorithm.cutoff", "unknown key"),
    ],
)
def test_what_is_no_experiment_is_refused(text, override, field, word, fedtide):
    if text is not None:
        write(text, "none.yaml")
    before = everything()
    message = refused(fedtide("run", "none.yaml", override, "--out", "here"))
    assert message.startswith(f"{field}: ")
    assert word in message
    assert everything() == before


def test_output_folders_with_other_contents_are_refused(fedtide):
    Path("full").mkdir()
    Path("full", "notes.txt").write_text("mine")
    file = write(EXPERIMENT)
    study = write(EXPERIMENT | {"seeds": [1, 2]}, "study.yaml")
    before = everything()
    for arguments, word in [
        ((file, "--out", "full"), "full is not empty"),
        ((file, "--out", "full", "--resume"), "full is not empty"),
        ((study, "--out", "full"), "full is not empty"),
        ((study, "--out", "full/notes.txt"), "is a file"),
        ((file, "--out", "x" * 300), "choose another"),
    ]:
        message = refused(fedtide("run", *arguments))
        assert message.startswith("out: ")
        assert word in message
        assert everything() == before


def test_a_run_is_resumed_for_more_rounds_but_not_with_other_settings(fedtide):
    file, options = write(EXPERIMENT), ("--out", "here", "--resume")
    status, _, err = fedtide("run", file, *options)  # a typing error would cost the whole run
    assert status == 0
    assert "fedtide: here does not exist, so the run starts from the beginning\n" in err
    assert fedtide("run", file, "rounds=9", *options)[0] == 0
    assert json.loads(Path("here", "summary.json").read_text())["rounds"] == 9
    message = refused(fedtide("run", file, "rounds=5", "local.lr=0.5", *options))
    assert message.startswith("resume: here ")
    assert "local.lr (was 0.05, is 0.5)" in message


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


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["compare", "here", "--figure", "x.xyz"], "figure"),
        (["report", "here", "--html", "x.pdf"], "html"),
        (["audit", "here/participation.parquet", "--json", "x.csv"], "json"),
        (["papers", "--write", "x.json"], "write"),
        (["leaderboard", "--write", "x.json"], "write"),
    ],
    ids=str,
)
def test_an_output_of_an_unknown_format_is_refused_before_anything_is_read(
    arguments, field, fedtide
):
    assert refused(fedtide(*arguments)).startswith(f"{field}: x")
    assert everything() == []


def test_a_file_of_runs_beside_its_runs_is_kept_as_it_is_written(fedtide):
    """The folder has a record of the sweep, which is called sweep.yaml."""
    write(EXPERIMENT, "base.yaml")
    file = write("# mine\nbase: base.yaml\nseeds: [1, 2]\n", "sweep.yaml")
    for command in ("sweep", "run"):
        message = refused(fedtide(command, file, "rounds=1", "--out", ".", "--workers=1"))
        assert message.startswith("out: ")
        assert everything() == ["base.yaml", "sweep.yaml"]
    for seeds in ([1], [1, 2]):
        changes = ("rounds=1", f"seeds={seeds}")
        assert fedtide("sweep", file, *changes, "--out", "here", "--workers=1")[0] == 0
        assert yaml.safe_load(Path("here/sweep.yaml").read_text())["seeds"] == seeds


def test_comparing_folders_without_finished_runs_is_refused(fedtide):
    Path("here").mkdir()
    for word in ("`fedtide run`", "--resume"):
        message = refused(fedtide("compare", "here"))
        assert message.startswith("here: ")
        assert word in message
        Path("here/experiment.yaml").write_text("{}")


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


@pytest.mark.parametrize(
    ("command", "hint"), [("run", "with --resume to continue"), ("sweep", "to continue")]
)
def test_an_interrupted_run_says_where_it_is_and_how_this_command_continues(
    command, hint, fedtide, monkeypatch
):
    """The signal comes with the first progress of a run of one experiment."""
    before = fedtide_loop.Run.round

    def interrupt_after(run):
        before(run)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(fedtide_loop.Run, "round", interrupt_after)
    status, _, err = fedtide(command, write(EXPERIMENT), "--out", "here")
    assert status == 130
    where = "fedtide: interrupted after round 1 of 6, saved in here"
    assert err.splitlines()[-1] == f"{where}; repeat the command {hint}"


@pytest.mark.process
@pytest.mark.parametrize(("workers", "seconds"), [(1, 0.3), (1, 4), (2, 2), (2, 6)])
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
