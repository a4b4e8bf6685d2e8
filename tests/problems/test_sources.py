"""Tables from arrays, data frames, data sets and files, against the values they were made of."""

import gzip
import io
import os

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from datasets import Dataset
from datasets import Image as Picture
from PIL import Image
from torch.utils.data import IterableDataset, TensorDataset

from fedtide.errors import InvalidInputError
from fedtide.problems.datasets.sources import read_source
from fedtide.problems.datasets.table_columns import Ragged

NUMBERS = np.array([1.5, -2.0, 3.25])
WORDS = ["b", "a", "b"]
VECTORS = np.arange(6, dtype=np.float32).reshape(3, 2)
SEQUENCES = [[1, 2], [3], [4, 5, 6]]


def plain() -> dict:
    return {"n": NUMBERS, "w": WORDS, "v": VECTORS, "s": SEQUENCES}


def parquet(path, table):
    pl.DataFrame({**table, "v": table["v"].tolist()}).write_parquet(path / "t.parquet")
    return path / "t.parquet"


SOURCES = {
    "mapping": lambda path: plain(),
    "tensors": lambda path: {**plain(), "n": torch.tensor(NUMBERS), "v": torch.tensor(VECTORS)},
    "pandas": lambda path: pd.DataFrame({**plain(), "v": list(VECTORS)}),
    "polars": lambda path: pl.DataFrame(plain()),
    "arrow": lambda path: pa.table({**plain(), "v": VECTORS.tolist()}),
    "hugging-face": lambda path: Dataset.from_dict(plain()),
    "hugging-face-transformed": lambda path: Dataset.from_dict(
        {**plain(), "n": -NUMBERS}
    ).with_transform(lambda rows: {**rows, "n": [-n for n in rows["n"]]}),
    "parquet": lambda path: parquet(path, plain()),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_columns_that_it_was_made_of(kind, tmp_path):
    table = read_source("train", SOURCES[kind](tmp_path), order=())
    assert table.names == ["n", "w", "v", "s"]
    np.testing.assert_array_equal(table.column("inputs", "n"), NUMBERS)
    assert table.column("inputs", "w").tolist() == WORDS
    np.testing.assert_array_equal(table.column("inputs", "v"), VECTORS)
    sequences = table.column("inputs", "s")
    assert isinstance(sequences, Ragged)
    assert [
        row.tolist() for row in np.split(sequences.values, sequences.offsets[1:-1])
    ] == SEQUENCES
    assert sequences.values.dtype.kind == "i"


TEXT = "n,m,w,who\n1.5,1,b,007\n-2,2,NA,7\n3.25,3,b,1\n"
FORMATS = {
    "t.CSV": TEXT.encode(),
    "semicolons.csv": TEXT.replace(",", ";").encode(),
    "tabs.csv": TEXT.replace(",", "\t").encode(),
    "t.tsv": TEXT.replace(",", "\t").encode(),
    "t.csv.gz": gzip.compress(TEXT.encode()),
}


@pytest.mark.parametrize("name", FORMATS)
def test_delimited_text_is_read_whatever_separates_and_compresses_it(name, tmp_path):
    (tmp_path / name).write_bytes(FORMATS[name])
    table = read_source("train", str(tmp_path / name), order=(), names="who")
    assert table.names == ["n", "m", "w", "who"]
    np.testing.assert_array_equal(table.column("inputs", "n"), NUMBERS)
    assert table.column("inputs", "m").dtype == np.int64
    assert table.column("target", "w").tolist() == ["b", "NA", "b"]
    assert table.column("clients", "who").tolist() == ["007", "7", "1"]


REFUSED_FILES = {
    "latin-label.csv": ("x,y\n" + "1,a\n" * 5000 + "1,é\n", r"column 'y' .*; save it as UTF-8"),
    "nothing.csv": ("", r"no header.*; write it again"),
    "gzip.csv.gz": ("x,y\n1,2\n", r"not a readable \.csv file.*; write it again"),
}


@pytest.mark.parametrize("name", REFUSED_FILES)
def test_files_that_hold_no_table_say_why(name, tmp_path):
    text, reason = REFUSED_FILES[name]
    (tmp_path / name).write_text(text, encoding="latin-1")
    with pytest.raises(InvalidInputError, match=rf"^train: '.*{name}' .*{reason}"):
        read_source("train", tmp_path / name, order=(), names="u")


@pytest.mark.parametrize("text", ["x\n1\nNA\n", 'x\n1\n""\n', "x;y\n1.5;0\nNaN;0\n"])
def test_what_says_that_a_number_is_missing_does_not_make_the_column_text(text, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    table = read_source("train", tmp_path / "t.csv", order=())
    with pytest.raises(InvalidInputError, match=r"1 of 2 values is missing \(the first in row 1\)"):
        table.column("inputs", "x")


def test_items_of_a_torch_data_set_are_tuples_in_the_order_of_the_columns():
    data = TensorDataset(torch.tensor(VECTORS), torch.tensor([0, 1, 2]))
    table = read_source("train", data, order=["x", "y"])
    np.testing.assert_array_equal(table.column("inputs", "x"), VECTORS)
    assert table.column("target", "y").tolist() == [0, 1, 2]


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA"])
def test_images_of_pillow_and_in_files_are_those_that_are_encoded(mode, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (3, 5, 4, 3), dtype=np.uint8)
    images = [Image.fromarray(image).convert(mode) for image in noise]
    files = [str(tmp_path / f"{number}.png") for number in range(3)]
    for file, image in zip(files, images, strict=True):
        image.save(file)
    decoded = "L" if mode == "L" else "RGB"
    expected = np.stack([np.asarray(image.convert(decoded)) for image in images])
    expected = expected[:, None] if mode == "L" else expected.transpose(0, 3, 1, 2)
    paths = Dataset.from_dict({"i": files}).cast_column("i", Picture())
    for source in (
        {"i": images},
        pd.DataFrame({"i": images}),
        [(image,) for image in images],
        paths,
        list(paths.to_iterable_dataset()),
    ):
        column = read_source("train", source, order=["i"]).column("inputs", "i")
        np.testing.assert_array_equal(column, expected)
    os.unlink(files[1])
    with pytest.raises(InvalidInputError, match=r"^train: a file .* cannot be read .*1\.png"):
        read_source("train", paths, order=["i"])


def encode(image, form="PNG"):
    buffer = io.BytesIO()
    image.save(buffer, format=form)
    return buffer.getvalue()


def test_every_image_column_of_a_file_has_its_own_pixels(tmp_path):
    left, right = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 4), dtype=np.uint8)
    table = {
        name: [encode(Image.fromarray(image)) for image in images]
        for name, images in {"left": left, "right": right}.items()
    }
    pl.DataFrame(table).write_parquet(tmp_path / "t.parquet")
    for _ in range(2):  # decoded, and from the cache
        read = read_source("train", tmp_path / "t.parquet", order=())
        np.testing.assert_array_equal(read.column("inputs", "left")[:, 0], left)
        np.testing.assert_array_equal(read.column("inputs", "right")[:, 0], right)


def test_files_and_folders_may_be_in_the_home_folder(tmp_path, monkeypatch):
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(tmp_path))
    (tmp_path / "data").mkdir()
    pl.DataFrame({"x": [1.0]}).write_csv(tmp_path / "data" / "train.csv")
    assert read_source("train", "~/data/train.csv", order=()).names == ["x"]
    if os.name == "posix":  # on Windows a folder beside the user's own
        with pytest.raises(InvalidInputError, match=r"^train: no file '~nobody-at-all/train.csv'"):
            read_source("train", "~nobody-at-all/train.csv", order=())


REFUSED = {
    "missing": ({"a": pl.Series([1, None, 3])}, "1 of 3 values is missing .* row 1"),
    "mixed": ({"a": [7, "7"]}, "Could not convert '7' .*; give one value per row"),
    "ragged-twice": ({"a": [[[1], [2, 3]], [[4]]]}, "two levels"),
    "deep": ({"a": [encode(Image.fromarray(np.ones((5, 4), np.uint16)))]}, "mode I;16; convert it"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_columns_that_no_network_can_use_are_refused_with_their_name(case):
    source, reason = REFUSED[case]
    table = read_source("train", source, order=())
    with pytest.raises(InvalidInputError, match=rf"inputs: column 'a' of train: .*({reason})"):
        table.column("inputs", "a")


@pytest.mark.parametrize("kind", ["arrays", "tensors", "objects", "pandas", "rows"])
def test_sequences_of_vectors_may_differ_in_length(kind):
    arrays = [np.arange(6.0).reshape(3, 2), np.arange(2.0).reshape(1, 2)]
    tensors = [torch.from_numpy(array) for array in arrays]
    source = {
        "arrays": {"s": arrays},
        "tensors": {"s": tensors},
        "objects": {"s": np.array(arrays, dtype=object)},
        "pandas": pd.DataFrame({"s": arrays}),
        "rows": [(tensor,) for tensor in tensors],
    }[kind]
    column = read_source("train", source, order=["s"]).column("inputs", "s")
    assert isinstance(column, Ragged)
    padded, mask = column.pad()
    assert padded.tolist() == [arrays[0].tolist(), [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]]
    assert mask.tolist() == [[True, True, True], [True, False, False]]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([1.0, 2.0])


STREAMS = {
    "torch": (Stream(), r"list\(\.\.\.\) reads an iterator"),
    "generator": ((row for row in ([1.0], [2.0])), r"list\(\.\.\.\) reads"),
    "number": (5, "a mapping of arrays"),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_what_is_no_table_is_refused_with_what_to_give(kind):
    source, hint = STREAMS[kind]
    with pytest.raises(InvalidInputError, match=f"^train: .* is not a table; give .*{hint}"):
        read_source("train", source, order=["n"])
