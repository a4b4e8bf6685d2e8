"""Data sets: what the files hold is what arrives, and what is wrong with them is said."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from fedtide.errors import InvalidInputError
from fedtide.problems.datasets import image_decoding as images
from fedtide.problems.datasets.catalogue import KNOWN, load

CPU, FLOAT = torch.device("cpu"), torch.float64


def write(folder, split, **columns):
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / f"{split}.parquet")
    return folder


def pixels_of(folder, split, index):
    row = pq.read_table(folder / f"{split}.parquet")["image"][index].as_py()
    return np.asarray(Image.open(io.BytesIO(row["bytes"])))


def test_digits_are_scikit_learns_divided_by_16():
    digits, bunch = load("digits"), load_digits()
    ours = np.concatenate([digits.train.features, digits.test.features]).reshape(-1, 64)
    labels = np.concatenate([digits.train.labels, digits.test.labels])
    rows = [(*row, label) for row, label in zip((ours * 16).tolist(), labels.tolist(), strict=True)]
    theirs = zip(bunch.data.tolist(), bunch.target.tolist(), strict=True)
    assert sorted(rows) == sorted((*row, label) for row, label in theirs)


def test_digits_test_set_is_a_stratified_fifth():
    digits = load("digits")
    whole = np.bincount(load_digits().target)
    assert np.abs(np.bincount(digits.test.labels) - whole / 5).max() <= 1
    assert torch.equal(
        digits.features(digits.test, CPU, torch.float32), torch.from_numpy(digits.test.features)
    )


def test_images_of_a_folder(folder):
    data = load(folder)
    table = pq.read_table(folder / "train.parquet")
    assert data.train.features.shape == (40, 3, 8, 8)
    assert data.train.labels.tolist() == table["label"].to_pylist()
    assert data.train.columns["writer"].tolist() == table["writer"].to_pylist()
    assert data.classes == 3
    for index in (0, 17, 39):
        expected = pixels_of(folder, "train", index).transpose(2, 0, 1)
        assert np.array_equal(data.train.features[index], expected)
    scaled = data.features(data.train, CPU, FLOAT)
    assert torch.allclose(scaled, torch.from_numpy(data.train.features / 127.5 - 1), atol=1e-12)


def test_a_folder_with_a_known_name_and_given_constants(folder):
    named = folder.rename(folder.parent / "cifar10")
    data = load(named)
    assert data.classes == 10
    scaled = data.features(data.test, CPU, FLOAT)[3].numpy()
    raw = pixels_of(named, "test", 3) / 255
    expected = (raw - [0.4914, 0.4822, 0.4465]) / [0.2023, 0.1994, 0.2010]
    assert np.allclose(scaled, expected.transpose(2, 0, 1))
    unit = load(named, normalise=(0, 1))
    assert np.allclose(unit.features(unit.test, CPU, FLOAT)[3].numpy(), raw.transpose(2, 0, 1))


def test_fedtide_data_names_the_folder_of_known_data_sets(folder, monkeypatch):
    folder.rename(folder.parent / "svhn")
    monkeypatch.setenv("FEDTIDE_DATA", str(folder.parent))
    assert load("svhn").train.features.shape == (40, 3, 8, 8)


def test_grey_images_bare_bytes_and_column_names_of_the_hub(tmp_path):
    grey = np.arange(25, dtype=np.uint8).reshape(5, 5)
    buffer = io.BytesIO()
    Image.fromarray(grey).save(buffer, "PNG")
    for split in ("train", "test"):
        write(tmp_path, split, img=[buffer.getvalue()] * 2, fine_label=[0, 1], coarse_label=[0, 0])
    data = load(tmp_path)
    assert np.array_equal(data.train.features, np.stack([grey[None]] * 2))
    assert data.train.labels.tolist() == [0, 1]


def test_numbers_are_taken_as_they_are(tmp_path):
    for split in ("train", "test"):
        write(tmp_path, split, image=[[[1.5, 2.0]], [[-3.0, 4.0]]], label=[1, 0])
    data = load(tmp_path)
    expected = torch.tensor([[[1.5, 2.0]], [[-3.0, 4.0]]], dtype=FLOAT)
    assert torch.equal(data.features(data.train, CPU, FLOAT), expected)


def test_decoded_images_are_remembered_until_the_file_changes(folder, cache, monkeypatch):
    file = folder / "train.parquet"
    decodings = []

    def decode():
        decodings.append(1)
        return np.full((1, 1, 2, 2), len(decodings), dtype=np.uint8)

    assert images.remembered(file, decode)[0, 0, 0, 0] == 1
    assert images.remembered(file, decode)[0, 0, 0, 0] == 1
    next(cache.glob("pixels-*.npy")).write_bytes(b"broken")
    assert images.remembered(file, decode)[0, 0, 0, 0] == 2
    file.write_bytes(file.read_bytes() + b" ")
    assert images.remembered(file, decode)[0, 0, 0, 0] == 3
    monkeypatch.setenv("FEDTIDE_CACHE", str(file))  # no folder: nothing is remembered
    assert [images.remembered(file, decode)[0, 0, 0, 0] for _ in range(2)] == [4, 5]


def test_the_cache_follows_the_xdg_convention(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("FEDTIDE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    load(folder)
    assert len(list((tmp_path / "xdg" / "fedtide").iterdir())) == 2


def test_the_hub_is_asked_when_there_is_no_folder(folder, monkeypatch, tmp_path):
    import datasets

    asked = []

    def load_dataset(*arguments):
        asked.append(arguments)
        files = {split: str(folder / f"{split}.parquet") for split in ("train", "test")}
        made = {
            split: datasets.Dataset.from_parquet(file, cache_dir=str(tmp_path / "hf"))
            for split, file in files.items()
        }
        return {s: d.cast_column("image", datasets.Image()) for s, d in made.items()}

    monkeypatch.delenv("FEDTIDE_DATA", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data, here = load("svhn"), load(folder)
    assert asked == [("ufldl-stanford/svhn", "cropped_digits")]
    assert np.array_equal(data.train.features, here.train.features)
    assert np.array_equal(data.test.labels, here.test.labels)


def test_no_hub_and_no_folder(monkeypatch):
    import datasets

    def load_dataset(*_):
        raise ConnectionError("no route")

    monkeypatch.delenv("FEDTIDE_DATA", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(
        InvalidInputError, match=r"'cinic10' cannot be had .*put cinic10/train.parquet"
    ):
        load("cinic10")


def png_bytes(size=4):
    buffer = io.BytesIO()
    Image.new("L", (size, size)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("train", "complaint"),
    [
        ({"image": [[1.0], [float("nan")]], "label": [0, 1]}, "image: sample 1 holds NaN"),
        ({"image": [[1.0], [float("inf")]], "label": [0, 1]}, "image: sample 1 holds NaN or inf"),
        ({"image": [[1.0], [1.0, 2.0]], "label": [0, 1]}, "nor a list of numbers of one shape"),
        ({"image": ["a", "b"], "label": [0, 1]}, "neither an encoded image nor"),
        ({"image": [[1.0], [2.0]], "label": [0, -1]}, "label: -1 in train.parquet is out of range"),
        ({"image": [[1.0], [2.0]], "label": [0, 99]}, "label: 99 is out of range for 2 training"),
        ({"image": [[1.0], [2.0]], "label": ["a", "b"]}, "label: .* give an integer"),
        ({"image": [[1.0], [2.0]], "label": [0, None]}, "label: .* give an integer"),
        ({"picture": [[1.0]], "label": [0]}, "has no column 'image' but .*rename"),
        ({"image": [[1.0]]}, "has no column 'label'"),
        ({"image": pa.array([], pa.list_(pa.float32())), "label": pa.array([], pa.int64())},
         "has no rows"),
        ({"image": [png_bytes(), b"junk"], "label": [0, 1]}, "image: sample 1 is not an encoded"),
        ({"image": [png_bytes(), None], "label": [0, 1]}, "image: sample 1 has no image"),
        ({"image": [png_bytes(), png_bytes(5)], "label": [0, 1]}, "sample 1 is 5×5 .*first 4×4"),
        ({"image": [png_bytes(), png_bytes(64)[:-30]], "label": [0, 1]}, "image: sample 1 is"),
        ({"image": [[1.0, 2.0]] * 2, "label": [0, 1]}, r"training samples have shape \(2,\)"),
    ],
)  # fmt: skip
def test_bad_files(tmp_path, train, complaint):
    write(tmp_path, "train", **train)
    write(tmp_path, "test", image=[[1.0]], label=[0])
    with pytest.raises(InvalidInputError, match=complaint):
        load(tmp_path)


def test_a_test_label_that_training_does_not_have(tmp_path):
    write(tmp_path, "train", image=[[1.0], [2.0]], label=[0, 1])
    write(tmp_path, "test", image=[[1.0]], label=[2])
    with pytest.raises(
        InvalidInputError, match=r"label: 2 in test\.parquet is out of range; .*0\.\.1"
    ):
        load(tmp_path)


def test_missing_and_broken_files_and_unknown_names(tmp_path):
    with pytest.raises(InvalidInputError, match=r"dataset: there is no .*train\.parquet"):
        load(tmp_path)
    (tmp_path / "train.parquet").write_bytes(b"no parquet")
    (tmp_path / "test.parquet").write_bytes(b"no parquet")
    with pytest.raises(InvalidInputError, match="is not readable as Parquet"):
        load(tmp_path)
    with pytest.raises(InvalidInputError, match="unknown 'mnits'; did you mean 'mnist'"):
        load("mnits")


@pytest.mark.parametrize(
    ("name", "shape", "train", "mean"),
    [
        ("mnist", (1, 28, 28), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949], 0.0),
        ("fashion_mnist", (1, 28, 28), [6000] * 10, (0.2860 - 0.1307) / 0.3081),
        ("cifar10", (3, 32, 32), [5000] * 10, 0.0),
    ],
)
def test_real_data(real_data, monkeypatch, name, shape, train, mean):
    monkeypatch.setenv("FEDTIDE_DATA", str(real_data))
    data = load(name)
    assert data.train.features.shape == (sum(train), *shape)
    assert data.test.features.shape == (10_000, *shape)
    assert np.bincount(data.train.labels).tolist() == train
    assert data.classes == len(np.bincount(data.test.labels)) == 10
    features = data.features(data.train, CPU, torch.float32)
    assert features.mean().item() == pytest.approx(mean, abs=0.01)
    index = 12_345
    raw = pixels_of(real_data / name, "train", index).reshape(*shape[1:], shape[0]) / 255
    expected = (raw - KNOWN[name].mean) / KNOWN[name].std
    assert np.allclose(features[index].numpy(), expected.transpose(2, 0, 1), atol=1e-5)
