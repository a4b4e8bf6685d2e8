"""Sweeps whose methods and problems are given as objects instead of plain data."""

import polars as pl
import pytest

import fedtide as ft
from fedtide.sweep import Sweep, run_sweep
from fedtide.sweep.result_table import RESULTS_FILE

PROBLEM = ft.problems.Quadratic(matrices=[[[1.0]], [[2.0]]], centers=[[0.0], [1.0]])
PLAIN = {
    "name": "objects",
    "problem": {"type": "quadratic", "matrices": [[[1.0]], [[2.0]]], "centers": [[0.0], [1.0]]},
    "participation": {"type": "bernoulli", "rates": 0.5},
    "local": {"steps": 1, "lr": 0.1},
    "rounds": 3,
    "seeds": [1, 2],
    "methods": {
        "plain": {"algorithm": {"type": "fedavg"}},
        "fedau": {"algorithm": {"type": "amplified", "period": 2, "factor": 1.5}},
    },
}
OBJECTS = PLAIN | {
    "problem": PROBLEM,
    "participation": ft.participation.Bernoulli(rates=0.5),
    "local": ft.LocalTraining(steps=1, lr=0.1),
    "seeds": (1, 2),
    "methods": {
        "plain": {"algorithm": ft.algorithms.FedAvg()},
        "fedau": {"algorithm": ft.algorithms.Amplified(period=2, factor=1.5)},
    },
}


class Partitioner:
    """An object that Classification accepts and that has no name in a file."""

    def load_partition(self, client):
        raise NotImplementedError


def test_objects_give_the_same_runs_as_plain_data(tmp_path):
    frames = []
    for name, given in (("plain", PLAIN), ("objects", OBJECTS)):
        sweep = Sweep.from_dict(given)
        frame = run_sweep(sweep, tmp_path / name, workers=1)
        assert frame["status"].to_list() == ["done"] * 4
        assert pl.read_parquet(tmp_path / name / RESULTS_FILE).equals(frame)
        frames.append(frame.drop("folder", "rounds_per_second"))
    assert frames[0].equals(frames[1])


def test_an_object_that_no_file_can_describe_is_refused_and_nothing_is_written(tmp_path):
    problem = ft.problems.Classification("digits", Partitioner(), clients=5)
    with pytest.raises(ft.InvalidInputError, match=r"^out: a Partitioner object cannot "):
        run_sweep(Sweep.from_dict(PLAIN | {"problem": problem}), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
