"""Data sets for the tests: small generated ones, and the real ones in FEDTIDE_DATA."""

import io
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image


def png(pixels):
    """Return an image file of (H, W) or (H, W, 3) pixels."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def write_split(file, pixels, labels, **columns):
    """Write a Parquet file as Hugging Face does."""
    images = [{"bytes": png(image), "path": None} for image in pixels]
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"image": images, "label": list(labels), **columns}), file)


def random_images(seed, count, size=8):
    """Return random colour images and labels of 3 classes."""
    draw = np.random.default_rng(seed)
    pixels = draw.integers(256, size=(count, size, size, 3), dtype=np.uint8)
    return pixels, draw.permutation(np.arange(count) % 3)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Use a cache of decoded images per test instead of the user's."""
    monkeypatch.setenv("FEDTIDE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path):
    """Return a folder with 40 training and 12 test images, 8×8 in colour, of 3 classes."""
    train, test = random_images(1, 40), random_images(2, 12)
    writers = [f"w{i % 4}" for i in range(40)]
    write_split(tmp_path / "tiny" / "train.parquet", *train, writer=writers)
    write_split(tmp_path / "tiny" / "test.parquet", *test)
    return tmp_path / "tiny"


@pytest.fixture(scope="session")
def real_data(tmp_path_factory):
    """Return the folder of the real data sets."""
    where = os.environ.get("FEDTIDE_DATA")
    if not where:
        pytest.skip("FEDTIDE_DATA does not name a folder with mnist, fashion_mnist and cifar10")
    return Path(where)
