"""A resumed run notices that its data, the files it reads or the code it imports have changed."""

import json
import logging
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from torch import nn
from typer.testing import CliRunner

import fedtide as ft
from fedtide.cli.main import app
from fedtide.errors import InvalidInputError

DIGITS = {"type": "classification", "clients": 4, "partition": "iid", "model": "logistic"}


def write_data(folder, values, width=6):
    """Write a data set of 40 samples; return its folder."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    images = (rng.normal(size=(40, width)) * values).tolist()
    for split in ("train", "test"):
        table = pl.DataFrame({"image": images, "label": [0, 1] * 20})
        table.write_parquet(folder / f"{split}.parquet")
    return str(folder)


def test_changed_data_are_refused(regression, killed_at, results, tmp_path, caplog):
    data = tmp_path / "data"
    fields = regression | {"problem": DIGITS | {"dataset": write_data(data, 1.0)}}
    killed_at(7, fields, tmp_path / "run")
    write_data(data, 2.0)
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(
        ft.InvalidInputError,
        match=r"^resume: .* of the data of the problem;.* resume=.force. \(--force",
    ):
        ft.simulate(**fields, out=tmp_path / "run", resume=True)
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before
    with caplog.at_level(logging.WARNING, "fedtide"):
        ft.simulate(**fields, out=tmp_path / "run", resume="force")
    assert "version of the data of the problem; continuing nevertheless" in caplog.text
    ft.simulate(**fields, out=tmp_path / "run", resume=True)


def test_the_path_and_the_time_of_data_do_not_matter(regression, killed_at, tmp_path):
    fields = regression | {"problem": DIGITS | {"dataset": write_data(tmp_path / "data", 1.0)}}
    killed_at(7, fields, tmp_path / "run")
    for name in ("train", "test"):  # the same rows in a file written differently
        file = tmp_path / "data" / f"{name}.parquet"
        pl.read_parquet(file).write_parquet(file, compression="uncompressed")
    starts = []

    class Note(ft.callbacks.Callback):
        def on_start(self, run):
            starts.append(run.round)

    ft.simulate(**fields, out=tmp_path / "run", resume=True, callbacks=[Note()])
    (began,) = starts
    assert 0 < began <= 7, "it resumed from a checkpoint"


def test_changed_files_of_the_participation_are_refused(
    regression, killed_at, tmp_path, monkeypatch
):
    """Also those named below the home folder."""
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(tmp_path))
    log = tmp_path / "log.csv"
    log.write_text("round,client\n" + "".join(f"{t},{t % 3}\n" for t in range(12)))
    fields = regression | {"participation": {"type": "replay", "log": "~/log.csv"}}
    killed_at(7, fields, tmp_path / "run")
    log.write_text("round,client\n" + "".join(f"{t},{t % 2}\n" for t in range(12)))
    with pytest.raises(ft.InvalidInputError, match=r"version of the file of participation\.log; "):
        ft.simulate(**fields, out=tmp_path / "run", resume=True)


# Code.

METHOD = """
from dataclasses import dataclass
from pathlib import Path

import fedtide as ft


@dataclass(frozen=True)
class Own(ft.algorithms.FedAvg):
    pass


def net():
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(6, 2))
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return the file of a module of one's own in the working directory."""
    file = tmp_path / f"code_{tmp_path.name}.py"
    file.write_text(METHOD)
    monkeypatch.chdir(tmp_path)
    return file


@pytest.mark.parametrize("what", ["method", "model"])
def test_changed_code_is_refused(what, own, regression, killed_at, tmp_path):
    data = write_data(tmp_path / "data", 1.0)
    changes = {
        "method": {"algorithm": f"{own.stem}:Own"},
        "model": {"problem": DIGITS | {"dataset": data, "model": f"{own.stem}:net"}},
    }
    fields = regression | changes[what]
    killed_at(7, fields, tmp_path / "run")
    written = json.loads((tmp_path / "run" / "fingerprints.json").read_text())
    assert list(written["code"]) == [own.stem]
    own.write_text(METHOD + "# changed\n")
    with pytest.raises(ft.InvalidInputError, match=rf"version of the code of {own.stem}; restore"):
        ft.simulate(**fields, out=tmp_path / "run", resume=True)
    own.write_text(METHOD)
    ft.simulate(**fields, out=tmp_path / "run", resume=True)


# Samples of one's own.


def rows(**columns):
    x = torch.arange(12.0).reshape(6, 2).numpy()
    return {"x": x, "y": x.sum(1), "client": np.repeat([0, 1, 2], 2)} | columns


def own_problem(train, **changed):
    given = {"model": nn.Linear(2, 1), "loss": "mse"} | changed
    return ft.problems.Supervised(train, **given)


LOADER = """
import numpy as np

calls = []


def load():
    calls.append(len(calls))
    x = np.full((6, 2), float(len(calls)), dtype="float32")
    return {"x": x, "y": x.sum(1), "client": np.repeat([0, 1, 2], 2)}
"""


def test_the_samples_that_are_recorded_are_those_that_were_used(regression, tmp_path, monkeypatch):
    """The loader returns other samples at each call."""
    monkeypatch.chdir(tmp_path)
    name = f"loader_{tmp_path.name}"
    Path(f"{name}.py").write_text(LOADER)
    fields = regression | {"problem": own_problem(f"{name}:load"), "rounds": 1}
    for run in (1, 2):
        ft.simulate(**fields, out=f"runs/{run}")
        assert len(__import__(name).calls) == run
        samples = rows(x=np.full((6, 2), run, "float32"), y=np.full(6, 2.0 * run, "float32"))
        written = json.loads(Path(f"runs/{run}/fingerprints.json").read_text())
        assert written["data"] == own_problem(samples).fingerprint()
    del fields["seed"]
    ft.simulate(**fields, seeds=[1, 2], out="runs/seeds")
    assert len(__import__(name).calls) == 3


WIDTH = 2


def make_network():
    return nn.Sequential(nn.Linear(2, WIDTH), nn.Linear(WIDTH, 1))


@pytest.mark.parametrize("model", [make_network, f"{__name__}:make_network"])
def test_a_changed_global_of_a_function_is_noticed_by_the_next_call(model, regression, monkeypatch):
    fields = regression | {"problem": own_problem(rows(), model=model), "rounds": 1}
    sizes = []
    for width in (2, 3):
        monkeypatch.setitem(globals(), "WIDTH", width)
        result = ft.simulate(**fields)
        sizes.append(len(result.model))
        assert result.module()[0].out_features == width
    assert sizes == [9, 13]


# Damaged summaries, and names that would leave the folder.


@pytest.mark.parametrize("name", ["../../evil", "", "/a"])
def test_names_do_not_lead_out_of_the_folder(name, regression, tmp_path, monkeypatch):
    (tmp_path / "below" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "below" / "here")
    Path("e.yaml").write_text(yaml.safe_dump(regression | {"name": name, "seeds": [1]}))
    for command in (["run", "e.yaml"], ["sweep", "e.yaml"], ["sweep", "e.yaml", "--out", "here"]):
        done = CliRunner().invoke(app, command)
        assert isinstance(done.exception, InvalidInputError)
        assert str(done.exception).startswith(f"name: {name!r} cannot be a folder name; ")
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["e.yaml"]
