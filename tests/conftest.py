"""Fixtures of several packages: a small experiment, and the bytes of a run's results."""

import gc
import getpass
import os
import sqlite3
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# How long an example takes says nothing on a busy machine.
settings.register_profile("fedtide", deadline=None)
settings.load_profile("fedtide")

# What is compiled stays where PyTorch keeps it by default, however often a test changes folders.
os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}"
)

os.environ.pop("MLFLOW_TRACKING_URI", None)  # the developer's own store gets no runs of tests

# Waiting for the disk matters where the power may fail, which no test can see, and takes minutes.
# The processes that tests start do wait.
os.fsync = lambda _: None


def _leave_writing_to_the_system(connection, _):
    if isinstance(connection, sqlite3.Connection):
        with suppress(sqlite3.DatabaseError):  # not a database: the test of it goes on
            connection.execute("PRAGMA synchronous = OFF")


with suppress(ImportError):  # the library of an extra
    from sqlalchemy import Engine, event

    event.listen(Engine, "connect", _leave_writing_to_the_system)

RESULTS = (
    "model.safetensors",
    "metrics.parquet",
    "participation.parquet",
    "clients.parquet",
    "summary.json",
)


WAITING = ("flower", "process", "ray", "compile")


def pytest_collection_modifyitems(items):
    """Begin with the tests that take minutes, so that none of them is the last to run.

    First of all come the federations, minutes of waiting one after another in one process.
    """

    def rank(item):
        return next((i for i, name in enumerate(WAITING) if item.get_closest_marker(name)), 9)

    items.sort(key=rank)


def pytest_collection_finish():
    """Spare the garbage collector all that lives as long as the process: a tenth of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def set_threads():
    """Return what sets PyTorch's number of threads; afterwards it is that of before."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


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
        "trainer": "reference",
        "evaluation": {"every": 5},
        "checkpoint": {"every": 3},
    }


@pytest.fixture
def results():
    """Return a function that gives the bytes of all results in a run folder."""
    return lambda folder: {name: Path(folder, name).read_bytes() for name in RESULTS}


@pytest.fixture
def undrawn(monkeypatch):
    """Leave figures empty: drawing takes most of the time of a page or a comparison."""
    drawing = "fedtide.plotting.saving.figure_bytes"
    monkeypatch.setattr(drawing, lambda *_, **__: b"<svg></svg>")
