"""A small experiment, and sweeps of it."""

import pytest
import yaml

from fedtide.sweep import Sweep


@pytest.fixture
def base():
    """Return a small experiment as plain data."""
    return {
        "name": "small",
        "rounds": 3,
        "problem": {
            "type": "regression",
            "clients": 5,
            "samples": 50,
            "features": 3,
            "informative": 2,
        },
        "participation": {"type": "bernoulli", "rates": 0.5},
        "local": {"steps": 2, "lr": 0.05, "batch_size": 4},
        "algorithm": {"type": "fedau", "cutoff": 7, "server_lr": 2.0},
        "trainer": "reference",
    }


@pytest.fixture
def sweep(base, tmp_path):
    """Return a function that loads the small experiment with changes from a file."""

    def load(overrides=(), **changes):
        file = tmp_path / "file.yaml"
        file.write_text(yaml.safe_dump(base | changes, sort_keys=False))
        return Sweep.load(file, overrides)

    return load
