"""A class of one's own has an identity: its import path, in files, resumes and comparisons."""

import json
import textwrap
from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from torch import nn
from typer.testing import CliRunner

import fedtide as ft
from fedtide.cli.main import app
from fedtide.problems import Problem
from fedtide.simulation.experiment import BUILDER
from fedtide.spec import describe, session, spec
from fedtide.training.lr_schedules import LearningRateSchedule

OWN = """
    from collections.abc import Sequence
    from dataclasses import dataclass, replace

    import fedtide as ft
    from fedtide.training.lr_schedules import LearningRateSchedule


    @dataclass(frozen=True)
    class Scaled(ft.algorithms.FedAvg):
        factors: Sequence[float] = (1.0,)

        def step(self, state, lr):
            before = state.model
            state, info = super().step(state, lr)
            info = replace(info, direction=self.factors[0] * info.direction)
            return replace(state, model=before + info.direction), info


    @dataclass(frozen=True)
    class Other(Scaled):
        pass


    class Undecorated(ft.algorithms.Algorithm):
        pass


    @dataclass(frozen=True)
    class Everyone(ft.participation.Full):
        pass


    @dataclass(frozen=True)
    class Halves(LearningRateSchedule):
        every: int = 1

        def factor(self, t):
            return 0.5 ** (t // self.every)


    number = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return the path of a module of one's own in the working directory."""
    name = f"own_{tmp_path.name.translate(str.maketrans('-[]', '___'))}"
    file = tmp_path / f"{name}.py"
    file.write_text(textwrap.dedent(OWN))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return file


@pytest.mark.parametrize(
    ("base", "name", "values"),
    [
        (ft.algorithms.Algorithm, "Scaled", {"server_lr": 0.5, "factors": [2.0]}),
        (ft.participation.Availability, "Everyone", {}),
        (LearningRateSchedule, "Halves", {"every": 3}),
    ],
)
def test_an_import_path_stands_wherever_a_type_does(base, name, values, own):
    """It is built, written, and built again; without values, the path alone is enough."""
    path = f"{own.stem}:{name}"
    thing = BUILDER.build(base, {"type": path, **values} if values else path)
    assert (type(thing).__name__, isinstance(thing, base)) == (name, True)
    plain = yaml.safe_load(yaml.safe_dump(BUILDER.to_plain(thing)))
    assert plain.items() >= {"type": path, **values}.items()
    assert BUILDER.build(base, plain) == thing


@pytest.mark.parametrize("name", ["Everyone", "Undecorated"])
def test_what_is_at_the_import_path_must_fit(name, own):
    with pytest.raises(ft.InvalidInputError, match=rf"^here\.type: '{own.stem}:{name}' "):
        BUILDER.build(ft.algorithms.Algorithm, f"{own.stem}:{name}", "here")


# A method of one's own in runs, sweeps and comparisons.


def test_a_method_of_ones_own_is_swept_from_a_file_and_resumed(own, regression):
    methods = {
        "plain": {"algorithm": "fedavg"},
        "half": {"algorithm": {"type": f"{own.stem}:Scaled", "factors": [0.5]}},
    }
    del regression["algorithm"]
    plain = regression | {"rounds": 4, "methods": methods, "seeds": [1, 2]}
    own.with_name("sweep.yaml").write_text(yaml.safe_dump(plain))
    out = own.parent / "runs" / "sweep"
    contents = []
    for _ in range(2):
        done = CliRunner().invoke(app, ["sweep", "sweep.yaml", "--workers", "1"])
        assert done.exit_code == 0, done.exception or done.output
        contents.append({p: p.read_bytes() for p in out.rglob("*") if p.is_file()})
    assert contents[0] == contents[1]
    frame = pl.read_parquet(out / "results.parquet")
    assert frame["status"].to_list() == ["done"] * 4
    loss = dict(frame.filter(seed=1).select("method", "loss").iter_rows())
    assert loss["half"] != loss["plain"]


def test_what_has_no_name_runs_in_memory_only(regression, tmp_path):
    @dataclass(frozen=True)
    class Local(ft.algorithms.FedAvg):
        pass

    ft.simulate(**regression | {"algorithm": Local()})
    with pytest.raises(ft.InvalidInputError, match=r"^out: .*Local of .* no import"):
        ft.simulate(**regression | {"algorithm": Local()}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Data in memory.


LOG = pl.DataFrame({"round": [*range(12), 3], "client": [0] * 12 + [1]})


def test_data_in_memory_are_described_and_recognised(regression, tmp_path):
    def run(log, **how):
        fields = regression | {"participation": ft.participation.Replay(log=log)}
        return ft.simulate(**fields, out=tmp_path / "run", **how)

    first = run(LOG)
    written = yaml.safe_load((tmp_path / "run" / "experiment.yaml").read_text())
    about = written["participation"]["log"]
    assert {**about, "sha256": len(about["sha256"])} == {
        "in_memory": "polars.DataFrame",
        "rows": 13,
        "sha256": 64,
    }
    assert run(LOG.clone(), resume=True).model.tobytes() == first.model.tobytes()
    changed = LOG.with_columns(pl.Series("client", [0] * 11 + [2, 1]))
    with pytest.raises(ft.InvalidInputError, match=r"participation\.log \(other content"):
        run(changed, resume=True)
    with pytest.raises(ft.InvalidInputError, match=r"^participation\.log: given in memory \(po"):
        ft.run(tmp_path / "run" / "experiment.yaml")


def test_problems_with_data_in_memory_share_a_task_only_if_the_content_is_equal():
    """Long arrays have the same repr, and tables of pandas cannot be compared by ==."""
    import pandas as pd

    from fedtide.simulation.inputs import prepare_cached

    prepared = []

    @dataclass(frozen=True)
    class Given(Problem):
        data: object

        def prepare(self, seed, device, dtype):
            prepared.append(self)
            return ft.problems.Quadratic([[[1.0]]], [[0.0]]).prepare(seed, device, dtype)

    long = np.zeros(10_000)
    for make in (lambda x: pd.DataFrame({"x": x}), lambda x: {"x": x, "y": x}, torch.from_numpy):
        before = len(prepared)
        changed = long.copy()
        changed[5000] = 1.0
        with session():
            for x in (long, long, changed, changed):
                prepare_cached(Given(make(x.copy())), 0, "cpu", "float64")
        assert len(prepared) == before + 2


def test_problems_that_hold_data_are_compared_without_an_error():
    @spec
    class Given:
        data: object

    one, two = np.random.default_rng(0).normal(size=(2, 3))
    for make in (np.array, pl.Series, torch.tensor, lambda x: {"x": x, "y": x}):
        assert Given(make(one)) == Given(make(one))
        assert Given(make(one)) != Given(make(two))


def mae(outputs, target):
    return (outputs.squeeze(-1) - target).abs()


def test_a_table_a_network_and_a_loss_of_ones_own_resume_only_if_they_are_equal(
    regression, killed_at, results, tmp_path
):
    import pandas as pd

    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(60, 3)), columns=["x", "z", "y"])
    table["user"] = [f"user_{n % 6}" for n in range(60)]

    def fields(table=table, bias=0.5, loss=mae):
        net = nn.Linear(2, 1)
        nn.init.constant_(net.weight, 1.0)
        nn.init.constant_(net.bias, bias)
        problem = ft.problems.Supervised(
            table, inputs=["x", "z"], clients="user", model=net, loss=loss
        )
        return regression | {"problem": problem}

    ft.simulate(**fields(), out=tmp_path / "whole")
    killed_at(7, fields(), tmp_path / "run")
    written = yaml.safe_load((tmp_path / "run" / "experiment.yaml").read_text())["problem"]
    assert written["train"] == describe(table)
    assert written["model"]["in_memory"] == "torch.nn.modules.linear:Linear"
    assert written["loss"] == f"{__name__}:mae"
    code = json.loads((tmp_path / "run" / "fingerprints.json").read_text())["code"]
    assert list(code) == [__name__]
    changed = table.assign(x=table["x"].where(table.index != 30, 9.0))
    for other, what in (
        (fields(table=changed), r"problem\.train \(other content"),
        (fields(bias=0.25), r"problem\.model \(other content"),
        (fields(loss="mse"), r"problem\.loss \(was '.*:mae', is 'mse'\)"),
    ):
        with pytest.raises(ft.InvalidInputError, match=rf"^resume: .* experiment: {what}"):
            ft.simulate(**other, out=tmp_path / "run", resume=True)
    ft.simulate(**fields(table.copy()), out=tmp_path / "run", resume=True)
    assert results(tmp_path / "run") == results(tmp_path / "whole")
