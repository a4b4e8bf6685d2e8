"""Runs to report on: three methods under two seeds, with known participation rates."""

import numpy as np
import polars as pl
import pytest

import fedtide as ft

FIELDS = {
    "problem": {"type": "regression", "clients": 8, "samples": 80, "features": 3, "informative": 2},
    "participation": {"type": "bernoulli", "rates": [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]},
    "local": {"steps": 2, "lr": 0.05, "batch_size": 4},
    "rounds": 40,
    "evaluation": {"every": 4},
    "trainer": "reference",
}
METHODS = {
    "fedavg": {"type": "fedavg"},
    "fedau": {"type": "fedau", "cutoff": 9},
    "known-rates": {"type": "known-rates"},
}


@pytest.fixture(scope="session")
def fields():
    """Return the fields of the experiment, without its algorithm."""
    return FIELDS


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory):
    """Return a folder with three methods under two seeds."""
    folder = tmp_path_factory.mktemp("runs")
    for method, algorithm in METHODS.items():
        for seed in (1, 2):
            out = folder / method / f"seed-{seed}"
            ft.simulate(**FIELDS, algorithm=algorithm, name=method, seed=seed, out=out)
    return folder


@pytest.fixture
def tested_runs(tmp_path):
    """Return a function that runs two methods with test samples and gives their folder."""
    rng = np.random.default_rng(0)
    data = pl.DataFrame({"x": rng.normal(size=200), "client": np.arange(200) % 5})
    data = data.with_columns(y=2 * pl.col("x") + pl.Series(rng.normal(size=200)))

    def run(**problem):
        fields = {"train": data, "inputs": ["x"], "target": "y", "clients": "client", "test": 0.25}
        for method in ("fedavg", "mifa"):
            ft.simulate(
                **FIELDS
                | {"problem": ft.problems.Supervised(**fields | problem), "rounds": 8}
                | {"participation": {"type": "bernoulli", "rates": 0.5}},
                algorithm=method,
                name=method,
                out=tmp_path / "runs" / method,
            )
        return tmp_path / "runs"

    return run
