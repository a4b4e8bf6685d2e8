"""The command line: what it makes, and how it refuses."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import polars as pl
import pytest
import typer
import yaml

from fedtide.cli.main import app, main
from fedtide.simulation.checkpoint import load_newest

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
    "trainer": "stacked",
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
    """Return the sentence of a refusal, of which nothing else must be seen."""
    status, out, err = answer
    assert status == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("fedtide: ")
    return err.removeprefix("fedtide: ").rstrip()


# What it makes


def test_a_run_makes_its_folder_and_says_where(fedtide):
    status, out, _ = fedtide("run", write(EXPERIMENT), "--out", "here")
    assert status == 0
    assert "here" in out
    names = {path.name for path in Path("here").iterdir()}
    assert names == {
        "experiment.yaml",
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


def test_without_out_runs_are_numbered(fedtide):
    for folder in ("runs/small", "runs/small-2", "runs/small-3"):
        assert fedtide("run", write(EXPERIMENT), "rounds=2")[0] == 0
        assert Path(folder, "summary.json").exists()
    assert fedtide("run", write(EXPERIMENT), "rounds=2", "--resume")[0] == 0
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
    "participation",
    [
        {"type": "bernoulli", "rates": 0.0},
        {"type": "table", "weights": [[0.0] * 5] * 6},
        {"type": "table", "weights": [[1.0, 0, 0, 0, 0]] * 6},
    ],
    ids=str,
)
def test_runs_with_nobody_or_one(participation, fedtide):
    status, _, err = fedtide("run", write(EXPERIMENT | {"participation": participation}))
    assert (status, "Warning" in err) == (0, False)
    assert Path("runs/small/comparison.png").exists()


def test_methods_and_seeds_are_compared(fedtide):
    methods = {"plain": {"algorithm": "fedavg"}, "weighted": {"algorithm": {"type": "fedau"}}}
    file = write(EXPERIMENT | {"seeds": [1, 2], "methods": methods})
    status, out, _ = fedtide("run", file, "--out", "both", "--workers", "1")
    assert status == 0
    assert "plain" in out
    assert "weighted" in out
    assert "±" in out
    assert len(everything("both/weighted/seed-2")) > 5
    status, again, _ = fedtide("compare", "both", "--figure", "figure.pdf")
    assert status == 0
    assert "weighted" in again
    assert Path("figure.pdf").stat().st_size > 0


def test_help_teaches(fedtide):
    status, out, _ = fedtide("--help")
    assert status == 0
    commands = [
        line.split()[1]
        for line in out.splitlines()
        if line.startswith("│ ") and "-" not in line[:4]
    ]
    assert {"run", "compare"} <= set(commands)
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


# How it refuses: one sentence that names the field and the mend, status 2, nothing written.

BAD = {
    "unknown type": (
        {"algorithm": "fedua"},
        "algorithm.type: unknown 'fedua'; did you mean 'fedau'?",
    ),
    "unknown problem": (
        {"problem": {"type": "regresion"}},
        "problem.type: unknown 'regresion'; did you mean 'regression'?",
    ),
    "unknown process": (
        {"participation": "bernouli"},
        "participation.type: unknown 'bernouli'; did you mean 'bernoulli'?",
    ),
    "a selection of too many": (
        {"selection": {"type": "uniform-of", "size": 1000}},
        "selection.size: 1000 of ",
    ),
    "unknown selection": (
        {"selection": "uniform"},
        "selection.type: unknown 'uniform'; did you mean 'uniform-of'?",
    ),
    "unknown model": (
        {"problem": DIGITS | {"model": "logistc"}},
        "problem.model: unknown 'logistc'; did you mean 'logistic'?",
    ),
    "unknown partition": (
        {"problem": DIGITS | {"partition": {"type": "dirchlet", "alpha": 1}}},
        "problem.partition.type: unknown 'dirchlet'; did you mean 'dirichlet'?",
    ),
    "unknown data set": (
        {"problem": DIGITS | {"dataset": "digts"}},
        "problem.dataset: unknown 'digts'; did you mean 'digits'?",
    ),
    "unknown choice": (
        {"on_nonfinite": "dorp"},
        "on_nonfinite: input should be 'stop' or 'drop' (got 'dorp')",
    ),
    "no type": (
        {"algorithm": {"server_lr": 1}},
        "algorithm.type: missing; choose one of 'amplified', ",
    ),
    "a list for a type": (
        {"algorithm": {"type": ["fedavg"]}},
        "algorithm.type: unknown ['fedavg']; did you mean 'fedavg'?",
    ),
    "misspelt key": (
        {"algorithm": {"type": "fedau", "cutof": 3}},
        "algorithm.cutof: unknown key; did you mean 'cutoff'?",
    ),
    "superfluous key": ({"round": 5}, "round: unknown key; did you mean 'rounds'?"),
    "superfluous key far inside": (
        {"participation": {"type": "bernoulli", "rates": {"type": "correlated", "beta": 1}}},
        "participation.rates.beta: unknown key; ",
    ),
    "missing key": (
        {"local": None, "rounds": None},
        "local: None is no mapping; give its keys (steps, ",
    ),
    "wrong type": ({"rounds": "ten"}, "rounds: input should be a valid integer"),
    "truth for a number": ({"rounds": True}, "rounds: input should be a number (got True)"),
    "a number for a mapping": (
        {"evaluation": 5},
        "evaluation: 5 is no mapping; give its keys (every",
    ),
    "a list for a problem": (
        {"problem": [1]},
        "problem: [1] is not a `type`; choose one of 'classification', ",
    ),
    "a word for a rate": (
        {"participation": {"type": "bernoulli", "rates": "often"}},
        "participation.rates.type: unknown 'often'",
    ),
    "rate above 1": (
        {"participation": {"type": "bernoulli", "rates": 1.5}},
        "participation.rates: 1.5 is not ",
    ),
    "one rate below 0": (
        {"participation": {"type": "bernoulli", "rates": [0.1, 0.2, 0.3, 0.4, -0.5]}},
        "participation.rates: -0.5 is not ",
    ),
    "too few rates": (
        {"participation": {"type": "bernoulli", "rates": [0.1, 0.2]}},
        "participation.rates: ",
    ),
    "rate not a number": (
        {"participation": {"type": "bernoulli", "rates": float("nan")}},
        "participation.rates: nan is not ",
    ),
    "correlated without classes": (
        {"participation": {"type": "bernoulli", "rates": {"type": "correlated"}}},
        "participation.rates: these clients hold no classes",
    ),
    "no clients": (
        {"problem": EXPERIMENT["problem"] | {"clients": 0}},
        "problem.clients: 0 is not a number of at least 1",
    ),
    "more clients than samples": (
        {"problem": EXPERIMENT["problem"] | {"clients": 51}},
        "problem.clients: 51 clients for 50 samples; use fewer",
    ),
    "more clients than images": (
        {"problem": DIGITS | {"clients": 5000}},
        "problem.clients: 5000 clients for 1437 training samples; give at most 1437",
    ),
    "table of other clients": (
        {"participation": {"type": "table", "weights": [[1, 1]] * 6}},
        "participation.weights: 2 columns for 5 clients; give one for each",
    ),
    "negative weight": (
        {"participation": {"type": "table", "weights": [[1, 1, 1, 1, -1]] * 6}},
        "participation.weights: -1 is negative; ",
    ),
    "weight not finite": (
        {"participation": {"type": "table", "weights": [[1, 1, 1, 1, float("inf")]] * 6}},
        "participation.weights: inf is not finite; ",
    ),
    "table too short": (
        {"participation": {"type": "table", "weights": [[1] * 5] * 5}},
        "rounds: 6 rounds, but the participation ends after 5; ask for at most 5",
    ),
    "no such table": (
        {"participation": {"type": "table", "weights": "none.parquet"}},
        "participation.weights: there is no file 'none.parquet'; give the path of one",
    ),
    "no such log": (
        {"participation": {"type": "replay", "log": "none.parquet"}},
        "participation.log: there is no file 'none.parquet'; ",
    ),
    "no such data": ({"problem": DIGITS | {"dataset": "./nowhere"}}, "problem.dataset: "),
    "no rounds": ({"rounds": 0}, "rounds: 0 is not a number of at least 1"),
    "negative seed": ({"seed": -1}, "seed: -1 is not a number of at least 0"),
    "no steps": ({"local": {"steps": 0}}, "local.steps: 0 is not at least 1"),
    "rate not positive": (
        {"local": {"steps": 1, "lr": -0.1}},
        "local.lr: -0.1 is not a positive number",
    ),
    "batches of functions": (
        {"problem": QUADRATIC},
        "local.batch_size: the clients of this problem hold no samples; leave it out",
    ),
    "shape": (
        {"problem": QUADRATIC | {"centers": [[0.0]]}},
        "problem.matrices: shape (2, 1, 1) is not (1, 1, 1)",
    ),
    "not symmetric": (
        {"problem": QUADRATIC | {"matrices": [[[1, 2], [3, 4]]], "centers": [[0, 0]]}},
        "problem.matrices: a matrix is not symmetric; use (A + Aᵀ) / 2",
    ),
    "centre of another size": (
        {"local": {"steps": 1, "projection": {"type": "ball", "radius": 1, "center": [0]}}},
        "local.projection.center: 1 numbers for a model of 4; give 4",
    ),
    "objective of another size": ({"objective": [1, 2]}, "objective: 2 weights for 5 clients"),
    "negative objective": (
        {"objective": [1, 2, 3, 4, -5]},
        "objective: weights must be finite, not negative, and not all 0",
    ),
    "no such device": ({"device": "cdua"}, "device: 'cdua' is not to be had here; try 'cpu'"),
    "groups of another size": (
        {"algorithm": {"type": "fedau", "groups": [0, 1]}},
        "algorithm.groups: 2 group ids for 5 clients",
    ),
    "inner method": (
        {"algorithm": {"type": "amplified", "period": 5, "factor": 2, "inner": "fedua"}},
        "algorithm.inner.type: unknown 'fedua'; did you mean 'fedau'?",
    ),
    "seeds": ({"seeds": [1, 1]}, "seeds: not a list of different numbers, such as [1, 2, 3]"),
    "one seed": ({"seeds": 3}, "seeds: not a list of different numbers, such as [1, 2, 3]"),
    "seed of a word": ({"seeds": [1, "x"]}, "seed: input should be a valid integer"),
    "methods": (
        {"methods": ["fedavg"]},
        "methods: not names with the keys that each changes, such as fedau: {...}",
    ),
    "name of a method": (
        {"methods": {"a/b": {}}},
        "methods: 'a/b' cannot be the name of a folder; choose another",
    ),
    "key of a method": (
        {"methods": {"a": {"algorithm": {"type": "fedau", "cutof": 1}}}},
        "methods.a.algorithm.cutof: unknown key; did you mean 'cutoff'?",
    ),
    "method that does not fit": (
        {"methods": {"a": {}, "b": {"algorithm": {"type": "fedau", "groups": [0]}}}},
        "b/seed-0.algorithm.groups: 1 group ids for 5 clients",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, fedtide):
    changes, sentence = BAD[case]
    file = write(EXPERIMENT | changes)
    said = refused(fedtide("run", file, "--out", "here"))
    assert said.startswith(sentence)
    assert everything() == [file]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rounds=ten"], "rounds: input should be a valid integer"),
        (["rounds"], "rounds: not KEY=VALUE, such as rounds=50"),
        (["=5"], "=5: not KEY=VALUE, such as rounds=50"),
        (["rounds="], "rounds: input should be a valid integer"),
        (["local.lr=[1"], "local.lr: the value '[1' is not YAML; quote it"),
        (["local.lrr=1"], "local.lrr: unknown key; did you mean 'lr'?"),
        (["algorithm.cutoff=5"], "algorithm.cutoff: unknown key; "),
    ],
)
def test_bad_overrides(arguments, sentence, fedtide):
    file = write(EXPERIMENT)
    assert refused(fedtide("run", file, *arguments, "--out", "here")).startswith(sentence)
    assert everything() == [file]


def test_no_such_file(fedtide):
    assert refused(fedtide("run", "none.yaml")).startswith("none.yaml: cannot be read (")
    assert everything() == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rounds: [1, 2", "bad.yaml: not YAML in line 1; mend the file"),
        ("a: 1\nb: {", "bad.yaml: not YAML in line 2; mend the file"),
        ("just words", "bad.yaml: holds no keys; an experiment begins with `problem:`"),
        ("", "bad.yaml: holds no keys; an experiment begins with `problem:`"),
        ("name: x", "problem: missing; give it a value"),
        ("? [1, 2]\n: 3\n", "bad.yaml: not YAML in line 1; mend the file"),
        ("!!python/object:os.system {}", "bad.yaml: not YAML in line 1; mend the file"),
    ],
)
def test_files_that_are_no_experiment(text, sentence, fedtide):
    file = write(text, "bad.yaml")
    assert refused(fedtide("run", file)) == sentence
    assert everything() == [file]


def test_a_file_that_is_no_text(fedtide):
    Path("bad.yaml").write_bytes(b"\xff\xfe\x00\x81")
    assert refused(fedtide("run", "bad.yaml")).startswith("bad.yaml: ")
    assert refused(fedtide("run", ".")).startswith(".: cannot be read (IsADirectoryError)")


def test_logs_and_data_that_are_broken(fedtide):
    pl.DataFrame({"round": [0, 0], "client": [1, 1]}).write_parquet("twice.parquet")
    Path("broken.parquet").write_bytes(b"PAR1 this is no Parquet file")
    Path("data").mkdir()
    for split in ("train", "test"):
        Path("data", f"{split}.parquet").write_bytes(b"PAR1 neither")
    before = everything()
    for changes, words in [
        (
            {"participation": {"type": "replay", "log": "twice.parquet"}},
            "is twice in round 0; keep one",
        ),
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


def test_data_that_do_not_fit(fedtide):
    rows = {"f": [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], "label": [0, 1, 1]}
    cases = [
        ({"f": [[0.0, 1.0], [float("nan"), 1.0], [0.0, 1.0]]}, "finite"),
        ({"label": [0, -1, 1]}, "label"),
        ({"label": [0.5, 1.0, 1.0]}, "label"),
        ({"label": ["a", None, "b"]}, "label"),
    ]
    for i, (changes, word) in enumerate(cases):
        folder = Path(f"data{i}")
        folder.mkdir()
        named = {("image" if k == "f" else k): v for k, v in (rows | changes).items()}
        for split in ("train", "test"):
            pl.DataFrame(named).write_parquet(folder / f"{split}.parquet")
        problem = DIGITS | {"dataset": str(folder), "clients": 2, "model": "logistic"}
        before = everything()
        file = write(EXPERIMENT | {"problem": problem}, f"case{i}.yaml")
        assert word in refused(fedtide("run", file, "--out", "here"))
        assert everything() == sorted([*before, file])


def test_a_model_whose_output_does_not_fit(fedtide):
    Path("mymodels.py").write_text(
        "from torch.nn import Flatten, Linear, Sequential\n"
        "def narrow():\n    return Sequential(Flatten(), Linear(64, 3))\n"
    )
    file = write(EXPERIMENT | {"problem": DIGITS | {"model": "mymodels:narrow"}})
    said = refused(fedtide("run", file, "--out", "here"))
    assert said.startswith("problem.model: ")
    assert "set the last layer's width to 10" in said
    assert not Path("here").exists()


def test_folders_that_cannot_be_used(fedtide):
    Path("full").mkdir()
    Path("full", "notes.txt").write_text("mine")
    file = write(EXPERIMENT)
    study = write(EXPERIMENT | {"seeds": [1, 2]}, "study.yaml")
    before = everything()
    for arguments, sentence in [
        ((file, "--out", "full"), "out: full is not empty; choose another, or go on with --resume"),
        ((file, "--out", "full", "--resume"), "out: full is not empty; it holds no run"),
        (
            (study, "--out", "full"),
            "out: full is not empty; choose another, or go on with --resume",
        ),
        ((file, "--out", "full/notes.txt"), "out: full/notes.txt is a file; give a folder"),
        ((study, "--out", "full/notes.txt"), "out: full/notes.txt is a file; give a folder"),
    ]:
        assert refused(fedtide("run", *arguments)) == sentence
        assert everything() == before


def test_to_resume_another_experiment_says_what_differs(fedtide):
    file = write(EXPERIMENT)
    fedtide("run", file, "--out", "here")
    before = {path: Path(path).read_bytes() for path in everything("here") if Path(path).is_file()}
    said = refused(fedtide("run", file, "rounds=9", "local.lr=0.5", "--out", "here", "--resume"))
    assert said == (
        "resume: here holds another experiment: local.lr (0.05 there, 0.5 here); rounds (6 there, "
        "9 here); give the same one, or another folder"
    )
    assert before == {
        path: Path(path).read_bytes() for path in everything("here") if Path(path).is_file()
    }


def test_a_run_that_diverges_says_so(fedtide):
    file = write(EXPERIMENT | {"local": {"steps": 50, "lr": 1e9}})
    said = refused(fedtide("run", file, "--out", "here"))
    assert "in round 0 is not finite (clients " in said
    assert said.endswith("; the checkpoint of round 0 is kept")


def test_places_that_cannot_be_written(fedtide):
    """A file stands where a folder is wanted."""
    several = EXPERIMENT | {"rounds": 1, "seeds": [1, 2], "evaluation": {"every": 0}}
    file, place = write(several), Path("file/folder")
    Path("file").write_text("")
    wanted = f"{place} cannot be written (Not a directory); choose another"
    assert refused(fedtide("sweep", file, "--out", place)) == f"out: {wanted}"
    assert refused(fedtide("run", file, "--out", place)) == f"out: {wanted}"
    fedtide("run", file, "--out", "runs")
    assert refused(fedtide("report", "runs", "--figures", place)) == f"out: {wanted}"
    status, table, err = fedtide("papers", "004/skew", "--out", place, "--show")
    assert (status, err) == (2, f"fedtide: out: {wanted.replace('folder', 'folder/004/skew')}\n")
    assert "L1 skew" in table  # only the figure is missing
    records = ["--records", "records", "--seeds", "0"]
    refusal = refused(fedtide("papers", "002/synthetic", "--out", place, *records))
    assert refusal.startswith("out: file/folder/002/synthetic")
    refusal = refused(fedtide("papers", "004/skew", "--records", place))
    assert refusal.startswith("records: file/folder/004/skew")


def test_comparing_what_is_no_run(fedtide):
    Path("empty").mkdir()
    mend = "holds no run; give the folder that `fedtide run` wrote"
    assert refused(fedtide("compare", "empty")) == f"empty: {mend}"
    assert refused(fedtide("compare", "nowhere")) == f"nowhere: {mend}"
    fedtide("run", write(EXPERIMENT), "--out", "here")
    Path("here/summary.json").unlink()
    assert refused(fedtide("compare", "here")) == (
        "here: the run has not ended; go on with --resume"
    )


@pytest.mark.parametrize("arguments", [["run"], ["rum"], ["run", "x.yaml", "--outt", "y"]])
def test_misspelt_commands_and_options(arguments, fedtide):
    status, _, err = fedtide(*arguments)
    assert status == 2
    assert "Error" in err
    assert "Traceback" not in err


# The real thing, ended by signals

LONG = EXPERIMENT | {"rounds": 4000, "checkpoint": {"every": 100}}
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


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=str)
def test_a_process_that_is_ended_goes_on(number, fedtide, results):
    file = write(LONG)
    assert fedtide("run", file, "--out", "whole")[0] == 0
    for t in (500, 1700):
        process = started("run", file, "--out", "ended", "--resume")
        reached(process, "ended", t)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        if number == signal.SIGKILL:
            assert process.returncode == -signal.SIGKILL
        else:
            assert process.returncode == 130
            last = err.splitlines()[-1]
            assert last.startswith("fedtide: interrupted after round ")
            assert last.endswith("saved in ended; the same command with --resume goes on")
            assert int(last.split()[4]) == load_newest(Path("ended/checkpoints")).round
    assert not Path("ended/summary.json").exists()
    assert fedtide("run", file, "--out", "ended", "--resume")[0] == 0
    assert results("ended") == results("whole")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=str)
def test_a_study_with_workers_that_is_ended_goes_on(number, fedtide, results):
    """More members than workers: one waits, and must not begin after the end was asked for."""
    file = write(LONG | {"rounds": 3000, "seeds": [1, 2, 3, 4, 5]})
    assert fedtide("run", file, "--out", "whole", "--workers", "2")[0] == 0
    process = started("run", file, "--out", "ended", "--workers", "2")
    reached(process, "ended/small/seed-1", 500)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    if number == signal.SIGTERM:
        assert process.returncode == 130
        assert err.splitlines()[-1] == (
            "fedtide: interrupted and saved; the same command with --resume goes on"
        )
    assert not Path("ended/small/seed-5").exists()
    status, _, err = fedtide("run", file, "--out", "ended", "--workers", "2", "--resume")
    assert status == 0, err
    for seed in range(1, 6):
        assert results(f"ended/small/seed-{seed}") == results(f"whole/small/seed-{seed}")


@pytest.mark.slow
def test_an_end_before_the_first_round_is_an_interruption_too(fedtide):
    """Ctrl-C while the data are prepared."""
    Path("slow.py").write_text("import signal, os\nos.kill(os.getpid(), signal.SIGINT)\n")
    file = write(EXPERIMENT | {"problem": DIGITS | {"model": "slow:model"}})
    process = started("run", file, "--out", "here")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "fedtide: interrupted; the same command with --resume goes on\n"
    assert not Path("here").exists()


@pytest.mark.slow
def test_the_process_refuses_without_a_traceback(fedtide):
    process = started("run", write(EXPERIMENT | {"algorithm": "fedua"}))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err == "fedtide: algorithm.type: unknown 'fedua'; did you mean 'fedau'?\n"
