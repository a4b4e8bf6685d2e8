"""Data sets: samples equal the contents of the files, and invalid files are refused."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fedtide.errors import InvalidInputError
from fedtide.problems.datasets.catalogue import KNOWN, load, standardisation
from fedtide.problems.datasets.image_decoding import decode_cached
from fedtide.problems.supervised_data import Samples, to_device

CPU, FLOAT = torch.device("cpu"), torch.float64


def write(folder, split, **columns):
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / f"{split}.parquet")
    return folder


def pixels_of(folder, split, index):
    row = pq.read_table(folder / f"{split}.parquet")["image"][index].as_py()
    return np.asarray(Image.open(io.BytesIO(row["bytes"])))


def features_of(data, rows, dtype):
    """Return what a network gets."""
    pixels = standardisation(data.mean, data.std, CPU, dtype)
    return to_device(Samples((rows.features,), rows.labels), CPU, dtype, pixels).inputs[0]


def test_digits_are_split_by_scikit_learn():
    digits, (features, labels) = load("digits"), load_digits(return_X_y=True)
    parts = train_test_split(features, labels, test_size=0.2, stratify=labels, random_state=0)
    for rows, x, y in zip((digits.train, digits.test), parts[:2], parts[2:], strict=True):
        assert np.array_equal(rows.features.reshape(-1, 64) * 16, x)
        assert np.array_equal(rows.labels, y)


def test_images_from_a_folder(folder):
    data = load(folder)
    table = pq.read_table(folder / "train.parquet")
    assert data.train.features.shape == (40, 3, 8, 8)
    assert data.train.labels.tolist() == table["label"].to_pylist()
    assert data.train.columns["writer"].tolist() == table["writer"].to_pylist()
    assert data.classes == 3
    for index in (0, 17, 39):
        expected = pixels_of(folder, "train", index).transpose(2, 0, 1)
        assert np.array_equal(data.train.features[index], expected)
    scaled = features_of(data, data.train, FLOAT)
    assert torch.allclose(scaled, torch.from_numpy(data.train.features / 127.5 - 1), atol=1e-12)


def test_grey_images_as_bare_bytes_and_the_hubs_column_names(tmp_path):
    grey = np.arange(25, dtype=np.uint8).reshape(5, 5)
    buffer = io.BytesIO()
    Image.fromarray(grey).save(buffer, "PNG")
    for split in ("train", "test"):
        write(tmp_path, split, img=[buffer.getvalue()] * 2, fine_label=[0, 1], coarse_label=[0, 0])
    data = load(tmp_path)
    assert np.array_equal(data.train.features, np.stack([grey[None]] * 2))
    assert data.train.labels.tolist() == [0, 1]


def test_decoded_images_are_cached_until_the_file_changes(folder, cache, monkeypatch):
    file = folder / "train.parquet"
    decodings = []

    def decode():
        decodings.append(1)
        return np.full((1, 1, 2, 2), len(decodings), dtype=np.uint8)

    assert decode_cached(file, "image", decode)[0, 0, 0, 0] == 1
    assert decode_cached(file, "image", decode)[0, 0, 0, 0] == 1
    next(cache.glob("pixels-*.npy")).write_bytes(b"broken")
    assert decode_cached(file, "image", decode)[0, 0, 0, 0] == 2
    file.write_bytes(file.read_bytes() + b" ")
    assert decode_cached(file, "image", decode)[0, 0, 0, 0] == 3
    monkeypatch.setenv("FEDTIDE_CACHE", str(file))  # not a folder: nothing is cached
    assert [decode_cached(file, "image", decode)[0, 0, 0, 0] for _ in range(2)] == [4, 5]


def test_without_a_folder_the_hub_is_used(folder, monkeypatch, tmp_path):
    import datasets

    requests = []

    def load_dataset(*arguments, split):
        requests.append((*arguments, split))
        file = str(folder / f"{split}.parquet")
        data = datasets.Dataset.from_parquet(file, cache_dir=str(tmp_path / "hf"))
        return data.cast_column("image", datasets.Image())

    monkeypatch.delenv("FEDTIDE_DATA", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data, expected = load("svhn"), load(folder)
    assert requests == [("ufldl-stanford/svhn", "cropped_digits", s) for s in ("train", "test")]
    assert np.array_equal(data.train.features, expected.train.features)
    assert np.array_equal(data.test.labels, expected.test.labels)


def png_bytes(size=4):
    buffer = io.BytesIO()
    Image.new("L", (size, size)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("train", "complaint"),
    [
        ({"image": [[1.0], [float("inf")]], "label": [0, 1]}, "^dataset: .* row 1.; fill"),
        ({"image": [[1.0], [1.0, 2.0]], "label": [0, 1]}, "^dataset: .*; write .*one shape"),
        ({"image": [[1.0], [2.0]], "label": [0, -1]}, "^label: -1 to 0, .*; number"),
        ({"image": [[1.0], [2.0]], "label": ["a", "b"]}, "^dataset: .*'label' .*; number"),
        ({"image": [[1.0], [2.0]], "label": [0, None]}, "^dataset: .*'label' .* missing"),
        ({"image": [png_bytes(), b"junk"], "label": [0, 1]}, "^dataset: .* sample 1 .*; give PNG"),
        ({"image": [png_bytes(), png_bytes(5)], "label": [0, 1]}, "^dataset: .* sample 1 .* size"),
        ({"image": [png_bytes(), png_bytes(64)[:-30]], "label": [0, 1]}, "^dataset: .* sample 1 "),
    ],
)  # fmt: skip
def test_invalid_files_are_refused(tmp_path, train, complaint):
    write(tmp_path, "train", **train)
    write(tmp_path, "test", image=[[1.0]], label=[0])
    with pytest.raises(InvalidInputError, match=complaint):
        load(tmp_path)


def test_missing_and_broken_files_and_unknown_names_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=r"^dataset: no file .*train\.parquet"):
        load(tmp_path)
    (tmp_path / "train.parquet").write_bytes(b"no parquet")
    (tmp_path / "test.parquet").write_bytes(b"no parquet")
    with pytest.raises(InvalidInputError, match=r"^dataset: .*not a readable .parquet.*; write"):
        load(tmp_path)
    with pytest.raises(InvalidInputError, match=r"^dataset: .*'mnits'; did you mean 'mnist'"):
        load("mnits")


@pytest.mark.parametrize(
    ("name", "shape", "train", "mean"),
    [
        ("mnist", (1, 28, 28), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949], 0.0),
        ("fashion_mnist", (1, 28, 28), [6000] * 10, (0.2860 - 0.1307) / 0.3081),
        ("cifar10", (3, 32, 32), [5000] * 10, 0.0),
    ],
)
def test_published_data_have_the_known_shapes_and_constants(
    real_data, monkeypatch, tmp_path, name, shape, train, mean
):
    """Every label counts; decoding all images takes half a minute, so every 9th is decoded."""
    monkeypatch.setenv("FEDTIDE_DATA", str(tmp_path))
    for split, count in (("train", sum(train)), ("test", 10_000)):
        table = pq.read_table(real_data / name / f"{split}.parquet")
        assert table.num_rows == count
        if split == "train":
            assert np.bincount(table["label"]).tolist() == train
        (tmp_path / name).mkdir(exist_ok=True)
        pq.write_table(table.take(np.arange(0, count, 9)), tmp_path / name / f"{split}.parquet")
    data = load(name)
    assert data.train.features.shape[1:] == data.test.features.shape[1:] == shape
    assert data.classes == len(np.bincount(data.test.labels)) == 10
    features = features_of(data, data.train, torch.float32)
    assert features.mean().item() == pytest.approx(mean, abs=0.01)
    index = 1234
    raw = pixels_of(tmp_path / name, "train", index).reshape(*shape[1:], shape[0]) / 255
    expected = (raw - KNOWN[name].mean) / KNOWN[name].std
    assert np.allclose(features[index].numpy(), expected.transpose(2, 0, 1), atol=1e-5)
