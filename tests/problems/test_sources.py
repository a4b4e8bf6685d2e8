"""Tables from arrays, data frames, data sets and files, against the values they were made of."""

import gzip
import io
import os
from datetime import date
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from datasets import Dataset
from datasets import Image as Picture
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from fedtide.errors import InvalidInputError
from fedtide.problems.datasets.sources import read_source
from fedtide.problems.datasets.table_columns import Ragged, to_column

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
    "pandas-categories": lambda path: pd.DataFrame(
        {**plain(), "v": list(VECTORS), "w": pd.Categorical(WORDS)}
    ),
    "polars": lambda path: pl.DataFrame(plain()),
    "arrow": lambda path: pa.table({**plain(), "v": VECTORS.tolist()}),
    "record-batch": lambda path: pa.record_batch({**plain(), "v": VECTORS.tolist()}),
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


def test_csv_files_give_numbers_and_text(tmp_path):
    pl.DataFrame({"n": NUMBERS, "w": WORDS}).write_csv(tmp_path / "t.csv")
    table = read_source("train", str(tmp_path / "t.csv"), order=())
    np.testing.assert_array_equal(table.column("inputs", "n"), NUMBERS)
    assert table.column("inputs", "w").tolist() == WORDS


TEXT = "n,m,w,who\n1.5,1,b,007\n-2,2,NA,7\n3.25,3,b,1\n"
FORMATS = {
    "t.CSV": TEXT.encode(),
    "bom.csv": TEXT.encode("utf-8-sig"),
    "spaces.csv": TEXT.replace("n,m,w", "n, m, w").encode(),
    "semicolons.csv": TEXT.replace(",", ";").encode(),
    "tabs.csv": TEXT.replace(",", "\t").encode(),
    "bars.csv": TEXT.replace(",", "|").encode(),
    "t.tsv": TEXT.replace(",", "\t").encode(),
    "t.csv.gz": gzip.compress(TEXT.encode()),
    "T.TSV.GZ": gzip.compress(TEXT.replace(",", "\t").encode()),
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
    "latin-client.csv": ("x,u\n" + "1,a\n" * 5000 + "1,é\n", r"UTF8.*; save it as UTF-8"),
    "nothing.csv": ("", r"no header.*; write it again"),
    "cells.csv": ("x,y\n1,2,3\n", r"Expected 2 columns, got 3.*; write it again"),
    "twice.csv": ("x,y,x\n1,2,3\n", r"two columns called 'x'; rename or remove one"),
    "gzip.csv.gz": ("x,y\n1,2\n", r"not a readable \.csv file.*; write it again"),
    "rows.jsonl": ('{"x": 1}\n', r"neither a \.parquet nor a \.csv or \.tsv file; give"),
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


def test_items_of_a_torch_data_set_may_be_mappings():
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, row):
            return {"x": torch.tensor(VECTORS[row]), "who": WORDS[row]}

    table = read_source("train", Rows(), order=["other"])
    np.testing.assert_array_equal(table.column("inputs", "x"), VECTORS)
    assert table.column("clients", "who").tolist() == WORDS


def test_items_with_another_number_of_parts_are_refused():
    data = TensorDataset(torch.zeros(3, 2), torch.zeros(3), torch.zeros(3))
    with pytest.raises(InvalidInputError, match=r"^train: item 0 has 3 parts.*;"):
        read_source("train", data, order=["x", "y"])


def test_encoded_images_become_pixels_with_channels_first():
    pixels = np.random.default_rng(0).integers(0, 256, (3, 5, 4, 3), dtype=np.uint8)
    encoded = []
    for image in pixels:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, format="PNG")
        encoded.append(buffer.getvalue())
    for source in (
        pl.DataFrame({"i": encoded}),
        Dataset.from_dict({"i": [Image.open(io.BytesIO(b)) for b in encoded]}),
    ):
        column = read_source("train", source, order=()).column("inputs", "i")
        np.testing.assert_array_equal(column, pixels.transpose(0, 3, 1, 2))


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


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.float16, np.float64, np.bool_])
def test_types_of_numbers_are_kept(dtype):
    values = np.array([0, 1, 1], dtype=dtype)
    assert to_column(values).dtype == dtype
    assert (
        read_source("train", pd.DataFrame({"a": values}), ()).column("inputs", "a").dtype == dtype
    )


def test_nested_lists_of_one_shape_become_one_array():
    cube = np.arange(24).reshape(2, 3, 4)
    np.testing.assert_array_equal(to_column(pl.Series(cube.tolist())), cube)
    np.testing.assert_array_equal(to_column(pl.Series(cube)), cube)
    np.testing.assert_array_equal(to_column(pd.Series(list(cube))), cube)


def test_dates_become_text():
    """They may name clients."""
    assert to_column([date(2026, 1, 2)]).tolist() == ["2026-01-02"]


def test_decimals_become_numbers():
    assert to_column(pl.Series([Decimal("1.5"), Decimal("2.25")])).tolist() == [1.5, 2.25]


REFUSED = {
    "missing": ({"a": pl.Series([1, None, 3])}, "1 of 3 values is missing .* row 1"),
    "missing-in-pandas": (pd.DataFrame({"a": ["x", float("nan")]}), "missing"),
    "rows": ({"a": [{"b": 1}]}, "not numeric"),
    "mixed": ({"a": [7, "7"]}, "Could not convert '7' .*; give one value per row"),
    "one-number": ({"a": 7}, "has no len.*; give one value per row"),
    "empty-list": ({"a": [[1], []]}, "the list in row 1 is empty"),
    "ragged-twice": ({"a": [[[1], [2, 3]], [[4]]]}, "two levels"),
    "bytes": ({"a": [b"ab"]}, r"sample 0 .*; give PNG or JPEG bytes of one size, and text as str"),
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
    "loader": (DataLoader(TensorDataset(torch.ones(3))), "a mapping of arrays"),
    "number": (5, "a mapping of arrays"),
    "nothing": (None, "a mapping of arrays"),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_what_is_no_table_is_refused_with_what_to_give(kind):
    source, hint = STREAMS[kind]
    with pytest.raises(InvalidInputError, match=f"^train: .* is not a table; give .*{hint}"):
        read_source("train", source, order=["n"])


class Samples(TensorDataset):
    """Five samples of a client."""

    def __init__(self):
        super().__init__(torch.ones(5, 2), torch.ones(5))


FRAME = pd.DataFrame({"a": [1.0, 2.0], "b": [3, 4], "c": [True, False]})


def test_the_rows_of_joined_data_sets_are_a_table():
    """As the message about a list of data sets says."""
    parts = [Samples(), Samples()]
    rows = [{"x": x, "y": y, "client": n} for n, part in enumerate(parts) for x, y in part]
    table = read_source("train", rows, order=["x", "y"], names="client")
    assert table.column("inputs", "x").shape == (10, 2)
    assert table.column("clients", "client").tolist() == [0] * 5 + [1] * 5


def test_columns_without_names_are_refused_with_how_to_name_them():
    message = r"^train: item 0 has 1 part for the columns x, y; .* by name, as {'x': ...}"
    with pytest.raises(InvalidInputError, match=message):
        read_source("train", (np.ones((5, 2)), np.ones(5)), order=["x", "y"])


@pytest.mark.parametrize("frame", [FRAME[["a", "b"]], pl.from_pandas(FRAME[["a", "b"]])])
def test_a_table_of_numbers_is_a_column_of_vectors(frame):
    table = read_source("train", {"x": frame, "y": [0, 1]}, order=["x", "y"])
    assert table.column("inputs", "x").tolist() == [[1, 3], [2, 4]]


def test_an_unknown_column_names_the_nearest():
    with pytest.raises(InvalidInputError, match=r"^target: .*'lable'.*did you mean 'label'"):
        read_source("train", {"label": [1]}, order=()).column("target", "lable")


@pytest.mark.parametrize("source", ["missing.parquet", "notes.txt"])
def test_what_is_not_a_file_is_refused_with_what_is(source):
    with pytest.raises(InvalidInputError, match=r"^train: .*; give a mapping of arrays"):
        read_source("train", source, order=())


def test_damaged_files_are_refused(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(InvalidInputError, match=r"^train: .*not a readable .parquet"):
        read_source("train", tmp_path / "t.parquet", order=())
