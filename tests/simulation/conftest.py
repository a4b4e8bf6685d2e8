"""What the tests of runs share: a small experiment, and how two run folders are compared."""

import pytest

import fedtide as ft
from fedtide.simulation.run import Run

RESULTS = (
    "model.safetensors",
    "metrics.parquet",
    "participation.parquet",
    "clients.parquet",
    "summary.json",
)


@pytest.fixture
def regression():
    """Return the fields of a small experiment with minibatches, as plain data."""
    return {
        "problem": {
            "type": "regression",
            "clients": 6,
            "samples": 62,
            "features": 4,
            "informative": 2,
        },
        "participation": {"type": "bernoulli", "rates": 0.5},
        "algorithm": "fedavg",
        "local": {"steps": 2, "lr": 0.05, "batch_size": 4},
        "rounds": 12,
        "seed": 3,
        "trainer": "stacked",
        "evaluation": {"every": 5},
        "checkpoint": {"every": 3},
    }


@pytest.fixture
def results():
    """Return a function that gives the bytes of all results in a run folder."""
    return lambda folder: {name: (folder / name).read_bytes() for name in RESULTS}


class Killed(BaseException):
    """What a test raises to end a run without any warning."""


@pytest.fixture
def killed_at(monkeypatch):
    """Return a function that runs an experiment and kills it before round t."""

    def kill(t, fields, out, **how):
        def round(run):
            if run.ended == t:
                raise Killed
            original(run)

        original = Run.round
        with monkeypatch.context() as patch:
            patch.setattr(Run, "round", round)
            with pytest.raises(Killed):
                ft.simulate(**fields, out=out, **how)

    return kill
