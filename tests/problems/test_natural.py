"""Sources by name: the field's natural data sets, the Hugging Face hub, and import paths."""

import io

import datasets
import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image
from torch import nn

from fedtide.errors import InvalidInputError
from fedtide.problems import Supervised
from fedtide.problems.datasets import natural
from fedtide.problems.datasets.sources import read_source

PLAY = ["To be, or not to be", "that is the question"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder FEDTIDE_DATA; the hub cannot be reached."""

    def unreachable(*args, **kwargs):
        raise ConnectionError("no route")

    monkeypatch.setenv("FEDTIDE_DATA", str(tmp_path))
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    return tmp_path


def write(folder, name, file, **columns):
    (folder / name).mkdir(exist_ok=True)
    frame = pl.DataFrame(columns)
    path = folder / name / file
    frame.write_csv(path) if path.suffix == ".csv" else frame.write_parquet(path)


def prepare(problem):
    return problem.prepare(seed=0, device=torch.device("cpu"), dtype=torch.float32)


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


class LastPosition(nn.Module):
    """Logits from an embedding, at every position or at the last one."""

    def __init__(self, tokens, every):
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(tokens + 1, 4), nn.Linear(4, tokens))
        self.every = every

    def forward(self, x):
        return self.layers(x) if self.every else self.layers(x[:, -1])


def test_femnist_is_images_and_characters_by_writer(folder):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
    write(
        folder,
        "femnist",
        "train-00000-of-00001.parquet",
        image=[png(image) for image in pixels],
        writer_id=["f01", "f01", "f00", "f02", "f00", "f00"],
        hsf_id=[0] * 6,
        character=[0, 61, 5, 7, 7, 7],
    )
    task = prepare(Supervised(train="femnist", model="logistic"))
    assert list(task.population.names) == ["f00", "f01", "f02"]
    assert task.population.samples.tolist() == [3, 2, 1]
    assert task.layout.size == 62 * (28 * 28 + 1)
    table = read_source("train", "femnist", ())
    assert (table.column("inputs", "x")[:, 0] == pixels).all()


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_shakespeare_is_character_ids_by_role(folder, suffix):
    rows = [(text[i : i + 5], text[i + 5], "ABC"[i % 3]) for text in PLAY for i in range(9)]
    rows.append(("o é", "\n", "C"))
    x, y, roles = zip(*rows, strict=True)
    write(folder, "shakespeare", f"part.{suffix}", character_id=roles, x=x, y=y)
    table = read_source("train", "shakespeare", ())
    expected = [[natural.ALPHABET.find(c) % 81 for c in text] for text in x[:-1]]
    got, mask = table.column("inputs", "x").pad()
    assert got[:-1].tolist() == expected
    assert got[-1].tolist() == [natural.ALPHABET.find(c) for c in "o "] + [80, 0, 0]
    assert mask.sum(1).tolist() == [5] * 18 + [3]
    assert table.column("target", "y").tolist() == [natural.ALPHABET.find(c) for c in y]
    classes = max(natural.ALPHABET.find(c) for c in y) + 1
    task = prepare(Supervised(train="shakespeare", model=lambda: LastPosition(classes, False)))
    assert list(task.population.names) == ["A", "B", "C"]


def test_a_split_on_the_hub_is_a_table(monkeypatch):
    asked = []

    def load(name, split):
        asked.append((name, split))
        return datasets.Dataset.from_dict({"x": [1.0, 2.0], "y": ["a", "b"]})

    monkeypatch.setattr(datasets, "load_dataset", load)
    for name in ("hub:owner/tiny", "hub:owner/tiny:validation"):
        assert read_source("train", name, ()).column("inputs", "x").tolist() == [1.0, 2.0]
    assert asked == [("owner/tiny", "train"), ("owner/tiny", "validation")]


def test_a_function_at_an_import_path_returns_the_source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ours_to_import.py").write_text(
        "def table():\n    return {'x': [1.0, 2.0]}\n"
        "def other():\n    return 'ours_to_import:table'\n"
        "def broken():\n    return 1 / 0\n"
        "def nothing():\n    return None\n"
    )
    for name in ("table", "other"):
        table = read_source("train", f"ours_to_import:{name}", ())
        assert table.column("inputs", "x").tolist() == [1.0, 2.0]
    with pytest.raises(ZeroDivisionError):
        read_source("train", "ours_to_import:broken", ())
    with pytest.raises(InvalidInputError, match=r"^train: a NoneType is not a table"):
        read_source("train", "ours_to_import:nothing", ())
