"""What people see: the command, the study file, the figure, and the committed document."""

from pathlib import Path

import pytest

import fedtide as ft
from fedtide.cli.main import main
from fedtide.papers import load, load_records, names, plan
from fedtide.papers.export import study_of
from fedtide.papers.results_page import document
from fedtide.sweep import Sweep

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results"


@pytest.fixture
def fedtide(monkeypatch, capsys):
    """Run the command line and return its exit status, output and complaints."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["fedtide", *arguments])
        monkeypatch.setenv("COLUMNS", "200")
        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code or 0
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def test_the_committed_document_is_what_the_records_give():
    written = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert written == document(load_records(RECORDS)), "fedtide papers --write docs/results.md"


def test_every_committed_record_is_of_the_present_settings():
    planned = {}
    for name in names():
        for scale in ("paper", "laptop"):
            for run in plan(load(name), scale):
                planned[run.paper, run.scale, run.case, run.method, run.seed] = run
    for record in load_records(RECORDS):
        assert record.key in planned, record.key
        assert record.fits(planned[record.key]), record.key


def test_the_document_says_what_was_not_run():
    text = document([])
    assert "not run" in text
    assert "0 reproduced, 0 not reproduced" in text
    for name in names():
        assert f"## {name}" in text


def test_the_list_names_every_experiment(fedtide, tmp_path):
    status, out, _ = fedtide("papers", "--records", str(tmp_path))
    assert status == 0
    assert all(name in out for name in names())


def test_one_experiment_from_the_command_line(fedtide, tmp_path):
    """FedAvg on two clients of Example 1 ends at 0.7685, off the optimum 0.5."""
    here = ["--out", str(tmp_path / "runs"), "--records", str(tmp_path / "records")]
    chosen = ["--cases", "two-clients", "--methods", "fedavg"]
    status, out, _ = fedtide("papers", "003/example-1", *chosen, *here)
    assert status == 0
    assert "0.7685" in out
    assert "not run" in out
    for suffix in ("png", "pdf"):
        figure = tmp_path / "runs" / "003" / "example-1" / f"paper.{suffix}"
        assert figure.stat().st_size > 1000
    assert len(load_records(tmp_path / "records")) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["002/syntetic"], "name: unknown '002/syntetic'; did you mean '002/synthetic'?"),
        (["002/synthetic", "--scale", "lap"], "scale: unknown 'lap'; did you mean 'laptop'?"),
        (["002/synthetic", "--methods", "fedav"], "methods: unknown 'fedav'; did you mean"),
        (["002/synthetic", "--cases", "nosy"], "cases: unknown 'nosy'; did you mean 'noisy'?"),
        (["002/synthetic", "--seeds", "1,x"], "seeds: '1,x' is not a list of numbers"),
        (["004/skew", "--study", "x.yaml"], "study: 004/skew is computed, not trained"),
        (
            ["001/cifar10", "--cases", "bernoulli,cyclic", "--study", "x.yaml"],
            "cases: a study has one case; choose one of bernoulli, cyclic",
        ),
    ],
)
def test_bad_input(fedtide, arguments, sentence):
    status, _, err = fedtide("papers", *arguments)
    assert status == 2
    assert err.startswith(f"fedtide: {sentence}")
    assert err.count("\n") == 1


def test_data_that_cannot_be_had(fedtide, tmp_path, monkeypatch):
    """It says which files to put where, and what needs none, before anything is written."""
    monkeypatch.setattr("fedtide.problems.datasets.catalogue._from_hub", _offline)
    monkeypatch.setenv("FEDTIDE_DATA", str(tmp_path))
    out = tmp_path / "out"
    status, _, err = fedtide("papers", "001/svhn", "--out", str(out), "--records", str(out))
    assert status == 2
    assert "svhn/train.parquet" in err
    assert "002/synthetic" in err
    assert not out.exists()


def _offline(name):
    raise ft.InvalidInputError(f"dataset: {name!r} cannot be had; put {name}/train.parquet there")


@pytest.mark.parametrize("name", ["002/fashion-mnist", "003/mnist-logistic", "002/groups"])
def test_a_study_file_asks_for_the_same_runs(fedtide, tmp_path, name):
    file = tmp_path / "study.yaml"
    case = next(iter(load(name).cases))
    status, _, _ = fedtide("papers", name, "--scale", "paper", "--study", str(file))
    assert status == 0
    theirs = [member.experiment.to_dict() for member in Sweep.load(file).members]
    ours = [run.resolved for run in plan(load(name), cases=[case])]
    assert theirs == ours


def test_what_methods_share_stands_at_the_top():
    study = study_of(load("002/fashion-mnist"), "paper")
    assert study["rounds"] == 2000
    assert set(study["methods"]["scaffold"]) == {"local", "algorithm"}
    some = study_of(load("001/cifar10"), "paper", [2], ["fedau-50", "mifa"], ["cyclic"])
    assert (some["seeds"], list(some["methods"])) == ([2], ["fedau-50", "mifa"])
    assert some["participation"]["type"] == "cyclic"
