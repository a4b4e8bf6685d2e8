"""Run folders with damaged or missing files: a sentence that names the file, never a traceback."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedtide as ft
from fedtide.cli.main import app
from fedtide.report.loading import LoadedRun, find_runs, load_runs
from fedtide.simulation.early_end import Failure
from fedtide.simulation.run_folder import RunFolder


def truncate(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


DAMAGES = {
    "truncated": truncate,
    "emptied": lambda file: file.write_bytes(b""),
    "deleted": lambda file: file.unlink(),
    "garbage": lambda file: file.write_bytes(np.random.default_rng(0).bytes(500)),
    "replaced": lambda file: file.write_bytes(b'{"a": [1]}'),
}


@pytest.fixture
def runs(runs_folder, tmp_path, monkeypatch):
    """Return a folder with copies of two runs."""
    monkeypatch.chdir(tmp_path)
    for name in ("fedavg", "fedau"):
        shutil.copytree(runs_folder / name / "seed-1", tmp_path / "runs" / name)
    return tmp_path / "runs"


def command(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("experiment.yaml", "garbage"),
        ("metrics.parquet", "truncated"),
        ("participation.parquet", "deleted"),
        ("clients.parquet", "replaced"),
        ("summary.json", "emptied"),
        ("summary.json", "deleted"),
        ("timings.json", "replaced"),
        ("fingerprints.json", "truncated"),
    ],
)
def test_a_damaged_file_is_named_and_the_other_runs_are_kept(name, damage, runs):
    DAMAGES[damage](runs / "fedavg" / name)
    finished, (damaged,) = find_runs([runs])
    assert [run.fields["algorithm"] for run in finished] == ["fedau"]
    assert damaged.folder.path.name == "fedavg"
    if (name, damage) == ("summary.json", "deleted"):
        assert damaged.state == "unfinished"
        return
    assert damaged.state == "damaged"
    assert damaged.message.startswith(f"{name} is {'missing' if damage == 'deleted' else 'damag'}")
    assert "; restore it, or " in damaged.message


@pytest.mark.parametrize("damage", ["emptied", "garbage", "replaced"])
def test_whoever_reads_a_damaged_note_of_a_failure_says_so(damage, runs):
    """The table of a sweep, trackers and papers read it through the folder."""
    (runs / "fedavg" / "summary.json").unlink()
    (runs / "fedavg" / "failure.json").write_text('{"sentence": "local.lr: too high"}')
    assert RunFolder(runs / "fedavg").read_failure() == Failure("local.lr: too high")
    DAMAGES[damage](runs / "fedavg" / "failure.json")
    with pytest.raises(ft.InvalidInputError, match=r"^out: .*fedavg has a failure.json .*; start"):
        RunFolder(runs / "fedavg").read_failure()


def test_a_log_with_damaged_content_is_named_when_it_is_read(runs):
    """Its end, which describes the columns, is intact."""
    file = runs / "fedavg" / "participation.parquet"
    content = bytearray(file.read_bytes())
    content[4 : len(content) // 2] = bytes(len(content) // 2 - 4)
    file.write_bytes(content)
    finished, incomplete = find_runs([runs / "fedavg"])
    assert incomplete == [] or incomplete[0].message.startswith("participation.parquet ")
    for run in finished:
        with pytest.raises(ft.InvalidInputError, match=r"^participation.parquet is damaged .*; "):
            run.used_rows()


def test_a_comparison_does_not_leave_out_a_damaged_run(runs):
    (runs / "fedavg" / "metrics.parquet").write_bytes(b"")
    error = command("compare", runs).exception
    assert isinstance(error, ft.InvalidInputError)
    assert f"{Path('runs/fedavg')}: metrics.parquet is damaged" in str(error)


def test_results_of_before_directions_were_recorded_can_be_read(runs):
    (runs / "fedavg" / "summary.json").write_text('{"rounds": 40, "metrics": {}}')
    (run,) = (r for r in load_runs([runs]) if r.fields["algorithm"] == "fedavg")
    assert isinstance(run, LoadedRun)
    assert run.lower_is_better("mse")
