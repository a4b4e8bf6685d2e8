"""No file can make fedtide run code, but for import paths that the user's own experiment names."""

import ast
import os
import pickle
from pathlib import Path

import pytest
import safetensors.torch

import fedtide as ft
from fedtide.participation import read_log

ROOT = Path(ft.__file__).parent
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_ATTRIBUTES = {
    ("torch", "load"),
    ("yaml", "load"),
    ("yaml", "unsafe_load"),
    ("yaml", "full_load"),
    ("os", "system"),
    ("pl", "deserialize"),
}


def nodes():
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            yield file.relative_to(ROOT), node


def test_the_code_has_no_reader_that_executes():
    for file, node in nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in FORBIDDEN_CALLS, f"{file}: {node.func.id}"
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & FORBIDDEN_MODULES, file
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in FORBIDDEN_MODULES, file
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in FORBIDDEN_ATTRIBUTES, f"{file}: {node.attr}"


def test_arrays_are_read_without_objects():
    for file, node in nodes():
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.load", "numpy.load"):
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            assert given.get("allow_pickle") == "False", file


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.fixture
def bomb(tmp_path):
    content = pickle.dumps(Bomb(tmp_path / "pwned"))
    yield content
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("place", ["checkpoints/000000009.safetensors", "log/000000009.parquet"])
def test_a_crafted_run_folder(place, bomb, fields, tmp_path, results):
    ft.simulate(**fields, out=tmp_path / "whole")
    ft.simulate(**fields, out=tmp_path / "run")
    for name in results(tmp_path / "run"):
        (tmp_path / "run" / name).unlink()
    file = tmp_path / "run" / place
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(bomb)
    (tmp_path / "run" / "checkpoints" / "000000012.safetensors").unlink()
    ft.simulate(**fields, out=tmp_path / "run", resume=True)
    assert results(tmp_path / "run") == results(tmp_path / "whole")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_crafted_log(suffix, bomb, tmp_path):
    (tmp_path / f"log.{suffix}").write_bytes(bomb)
    with pytest.raises(ft.InvalidInputError, match=r"^log: "):
        read_log(tmp_path / f"log.{suffix}")


def test_a_crafted_experiment(tmp_path):
    text = f"name: !!python/object/apply:os.mkdir ['{tmp_path / 'pwned'}']\n"
    (tmp_path / "e.yaml").write_text(text)
    with pytest.raises(ft.InvalidInputError, match="not YAML in line 1"):
        ft.Experiment.load(tmp_path / "e.yaml")
    assert not (tmp_path / "pwned").exists()


def test_checkpoints_are_tensors_and_json(fields, tmp_path):
    ft.simulate(**fields, out=tmp_path)
    for file in tmp_path.rglob("*.safetensors"):
        assert safetensors.torch.load_file(file)
    assert not [file for file in tmp_path.rglob("*") if file.suffix in (".pkl", ".pt", ".npy")]
