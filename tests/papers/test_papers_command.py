"""The command `fedtide papers` and the sweep files it exports."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import fedtide as ft
from fedtide.cli.main import main
from fedtide.papers import load, load_records, names, plan
from fedtide.sweep import Sweep
from fedtide.theory import fedavg_two_clients

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fedtide(monkeypatch, capsys):
    """Return a function that runs the command line and returns its status, output and errors."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["fedtide", *arguments])
        monkeypatch.setenv("COLUMNS", "200")
        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code or 0
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_list_names_every_experiment(fedtide, tmp_path):
    status, out, _ = fedtide("papers", "--records", str(tmp_path))
    assert status == 0
    assert all(name in out for name in names())


def test_run_one_experiment(fedtide, monkeypatch, tmp_path):
    """FedAvg on the two clients of Example 1: x = X (1 − 0.99^200) after 200 rounds from 0."""
    paper = load("003/example-1")
    two_clients = {**paper.cases["two-clients"], "rounds": 200, "trainer": "reference"}
    shorter = replace(paper, cases={**paper.cases, "two-clients": two_clients})
    monkeypatch.setattr("fedtide.cli.papers.load", lambda name: shorter)
    folders = [
        "--workers",
        "1",
        "--out",
        str(tmp_path / "runs"),
        "--records",
        str(tmp_path / "records"),
    ]
    chosen = ["--cases", "two-clients", "--methods", "fedavg"]
    status, out, _ = fedtide("papers", "003/example-1", *chosen, *folders)
    assert status == 0
    limit, _ = fedavg_two_clients(0.0, 1.0, (5, 15), lr=0.005)
    assert f"{limit * (1 - 0.99**200):.4f}" in out
    assert "not run" in out
    for suffix in ("png", "pdf"):
        figure = tmp_path / "runs" / "003" / "example-1" / f"paper.{suffix}"
        assert figure.stat().st_size > 1000
    assert len(load_records(tmp_path / "records")) == 1


@pytest.mark.parametrize(
    ("arguments", "prefix"),
    [
        (["002/syntetic"], "name: unknown '002/syntetic';"),
        (["002/synthetic", "--methods", "fedav"], "methods: unknown 'fedav';"),
        (["002/synthetic", "--seeds", "1,x"], "seeds: '1,x' is not"),
        (["004/skew", "--export", "x.yaml"], "export: 004/skew"),
        (["001/weights", "--device", "cpu"], "device: 001/weights trains no models;"),
        (["--show"], "name: missing; say which experiment"),
        (["002/synthetic", "--device", "cuda:99"], "device: 'cuda:99' is not available ("),
        (["001/cifar10", "--cases", "bernoulli,cyclic", "--export", "x.yaml"], "cases: "),
        (["002/synthetic", "--record", "noisy/fedavg/7"], "record: 002/synthetic has none"),
    ],
)
def test_invalid_input_names_the_field(fedtide, arguments, prefix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = fedtide("papers", *arguments)
    assert not list(tmp_path.iterdir())
    assert status == 2
    assert err.startswith(f"fedtide: {prefix}")
    assert ";" in err
    assert err.count("\n") == 1


def test_missing_data_stops_before_anything_is_written(fedtide, tmp_path, monkeypatch):
    """The error names the missing files and the experiments that need none."""
    monkeypatch.setattr("fedtide.problems.datasets.catalogue._load_from_hub", _offline)
    monkeypatch.setenv("FEDTIDE_DATA", str(tmp_path))
    out = tmp_path / "out"
    status, _, err = fedtide("papers", "001/svhn", "--out", str(out), "--records", str(out))
    assert status == 2
    assert "svhn/train.parquet" in err
    assert "002/synthetic" in err
    assert not out.exists()


def _offline(name, split):
    raise ft.InvalidInputError(
        f"dataset: {name!r} is not available; put {name}/train.parquet there"
    )


def test_exported_sweep_has_the_same_runs(fedtide, tmp_path):
    name = "002/fashion-mnist"
    file = tmp_path / "sweep.yaml"
    case = next(iter(load(name).cases))
    status, _, _ = fedtide("papers", name, "--scale", "paper", "--export", str(file))
    assert status == 0
    exported = [run.experiment.to_dict() for run in Sweep.load(file).runs]
    planned = [run.resolved for run in plan(load(name), cases=[case])]
    assert exported == planned


def test_runs_on_a_gpu_are_the_same_runs_where_there_is_none():
    here, there = (plan(load("003/example-1"), device=device) for device in ("cpu", "cuda:99"))
    assert {run.settings["device"] for run in there} == {"cuda:99"}
    assert [run.fingerprint for run in here] == [run.fingerprint for run in there]


def test_one_record_is_printed_with_all_its_digits(fedtide):
    chosen = ("002/synthetic", "--record", "noisy/amplified-scaffold/1")
    status, out, _ = fedtide("papers", *chosen, "--records", str(ROOT / "results"))
    assert status == 0
    record = json.loads(out)
    assert record["measures"]["rounds"] == 800.0
    assert record["settings"]["algorithm"]["type"] == "amplified-scaffold"
    assert record["execution"]["threads"] == 1


def test_the_published_rounds_of_the_synthetic_problem_are_shown(fedtide, tmp_path):
    """Paper 002, section 5.1: 800, 1900 and 4800 rounds."""
    folders = ("--records", str(ROOT / "results"), "--out", str(tmp_path))
    status, out, _ = fedtide("papers", "002/synthetic", *folders)
    assert status == 0
    rounds = {line.split()[1]: line.split()[3] for line in out.splitlines() if " noisy: " in line}
    assert (rounds["amplified-scaffold"], rounds["scaffold"], rounds["fedavg"]) == (
        "800",
        "1900",
        "4800",
    )
