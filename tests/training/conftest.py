"""A small image data set with clients of very different sizes."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fedtide.problems import Classification
from fedtide.problems.partitions.partitioners import Dirichlet


def _write(file, seed, count):
    draw = np.random.default_rng(seed)
    images = []
    for pixels in draw.integers(256, size=(count, 16, 16, 3), dtype=np.uint8):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        images.append({"bytes": buffer.getvalue(), "path": None})
    table = pa.table({"image": images, "label": draw.permutation(np.arange(count) % 3)})
    pq.write_table(table, file)


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """Return a folder with 80 training and 6 test images, 16×16 in colour, of 3 classes."""
    folder = tmp_path_factory.mktemp("images")
    _write(folder / "train.parquet", 1, 80)
    _write(folder / "test.parquet", 2, 6)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDTIDE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def image_task(images):
    """Return a function that prepares the images with a model, for 6 uneven clients."""

    def prepare(model, dtype=torch.float64, **fields):
        problem = Classification(images, Dirichlet(alpha=0.1), clients=6, model=model, **fields)
        task = problem.prepare(3, torch.device("cpu"), dtype)
        assert task.population.samples.min() < 8 < task.population.samples.max()
        return task

    return prepare


@pytest.fixture(scope="session")
def digits_task():
    """Return the digits with a small network in float64, for 40 uneven clients."""
    problem = Classification(
        "digits", Dirichlet(alpha=0.5), clients=40, model={"type": "mlp", "hidden": [8]}
    )
    return problem.prepare(1, torch.device("cpu"), torch.float64)


@pytest.fixture(autouse=True)
def _two_threads(request, set_threads):
    """Let the threaded trainer have two threads, whatever the test run was given.

    Other trainers would only have theirs wait for one another on a busy machine.
    """
    set_threads(2 if "threaded" in request.node.name.lower() else 1)
