"""Classes and functions of a notebook, and networks that are given as objects."""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

import fedtide as ft
from fedtide.report import write_report
from fedtide.report.loading import load_runs

CELLS = [
    "import fedtide as ft\nfrom dataclasses import dataclass\nfrom torch import nn",
    "class Network(nn.Linear):\n    def __init__(self):\n        super().__init__(3, 1)",
    "def loss(outputs, y):\n    return (outputs.squeeze(-1) - y) ** 2",
    "%matplotlib inline",
    "@dataclass(frozen=True)\nclass Mine(ft.algorithms.FedAvg):\n    pass",
]


@pytest.fixture
def notebook(monkeypatch):
    """Return what runs a cell as IPython does; the cells above have been run."""
    main = ModuleType("__main__")
    main.In = []
    monkeypatch.setitem(sys.modules, "__main__", main)

    def execute(cell):
        main.In.append(cell)
        if not cell.startswith("%"):
            exec(cell, vars(main))
        return main

    for cell in CELLS:
        execute(cell)
    return execute


def train(main, **changes):
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    data = {"x": x, "y": x.sum(1)}
    problem = {"inputs": ["x"], "clients": 4, "partition": ft.problems.Iid()}
    changed = changes.pop("problem", {})
    if isinstance(changed, dict):
        problem |= {"model": main.Network, "loss": main.loss} | changed
        changed = ft.problems.Supervised(data, **problem)
    given = {
        "problem": changed,
        "participation": "full",
        "algorithm": main.Mine(),
        "local": ft.LocalTraining(steps=1, lr=0.1, batch_size=4),
        "rounds": 3,
        "trainer": "reference",
    }
    return ft.simulate(**given | changes)


def test_a_folder_has_the_source_of_what_the_notebook_defines(notebook, tmp_path):
    first = train(notebook(""), out=tmp_path / "run")
    source = (tmp_path / "run" / "source.py").read_text()
    assert all(cell in source for cell in (CELLS[1], CELLS[2], CELLS[4]))
    main = notebook(CELLS[1])  # as after a restart of the kernel
    main = notebook(CELLS[2])
    longer = train(main, rounds=6, out=tmp_path / "run", resume=True)
    assert longer.metrics["round"][-1] == 6
    assert np.array_equal(train(main, rounds=6).model, longer.model)
    assert first.plain["algorithm"]["type"] == "__main__:Mine"
    assert isinstance(load_runs([tmp_path])[0].algorithm, main.Mine)
    main = notebook(CELLS[2].replace("** 2", "** 4"))
    with pytest.raises(ft.InvalidInputError, match="another version of the code of __main__"):
        train(main, rounds=9, out=tmp_path / "run", resume=True)


def test_networks_of_equal_layers_are_one_problem(notebook, tmp_path):
    main = notebook("")
    runs = [
        train(main, algorithm=method, problem={"model": main.Network()})
        for method in ("fedavg", "fedau")
    ]
    assert ft.compare(*runs).frame["method"].to_list() == ["fedavg", "fedau"]
    assert "condition" not in ft.compare(*runs).frame.columns
    page = write_report(tmp_path / "page.html", *runs).read_text()
    assert "fedau" in page
    assert "conditions" not in page


def test_equal_initial_weights_of_all_seeds_are_said(notebook, caplog):
    main = notebook("")
    several = train(main, seeds=[1, 2])
    assert not caplog.records
    assert not np.array_equal(*(run.model for run in several))
    train(main, seeds=[1, 2], problem={"model": nn.Linear(3, 1)})
    (record,) = caplog.records
    assert record.getMessage().startswith("model: a network given as an object")


def test_a_list_of_samples_may_have_tensors_or_arrays(notebook):
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=3).astype(np.float32), 1.0) for _ in range(40)]
    arrays = [{"x": x, "y": y, "client": n % 4} for n, (x, y) in enumerate(rows)]
    tensors = [row | {"x": torch.from_numpy(row["x"])} for row in arrays]
    network = nn.Linear(3, 1)
    shared = {"inputs": ["x"], "target": "y", "clients": "client", "model": network, "loss": "mse"}
    first, second = (
        train(notebook(""), problem=data, algorithm="fedavg")
        for data in (
            ft.problems.Supervised(arrays, **shared),
            ft.problems.Supervised(tensors, **shared),
        )
    )
    assert np.array_equal(first.model, second.model)
