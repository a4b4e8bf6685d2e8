"""No file can make fedtide run code, except import paths named in the user's experiment."""

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


@pytest.fixture(scope="module")
def nodes():
    """Return every node of the source code, with its file."""
    return [
        (file.relative_to(ROOT), node)
        for file in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call | ast.Import | ast.ImportFrom | ast.Attribute)
    ]


def test_the_code_calls_no_reader_that_executes(nodes):
    for file, node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in FORBIDDEN_CALLS, f"{file}: {node.func.id}"
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & FORBIDDEN_MODULES, file
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in FORBIDDEN_MODULES, file
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in FORBIDDEN_ATTRIBUTES, f"{file}: {node.attr}"


def test_arrays_are_loaded_without_pickle(nodes):
    for file, node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.load", "numpy.load"):
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            assert given.get("allow_pickle") == "False", file


class Bomb:
    """Creates a folder when it is unpickled."""

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
def test_a_crafted_run_folder_is_harmless(place, bomb, fields, whole, finished, results):
    for name in results(finished):
        (finished / name).unlink()
    (finished / "checkpoints" / "000000012.safetensors").unlink()
    (finished / place).parent.mkdir(exist_ok=True)
    (finished / place).write_bytes(bomb)
    ft.simulate(**fields, out=finished, resume=True)
    assert results(finished) == results(whole)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_crafted_log_is_harmless(suffix, bomb, tmp_path):
    (tmp_path / f"log.{suffix}").write_bytes(bomb)
    with pytest.raises(ft.InvalidInputError, match=r"^log: "):
        read_log(tmp_path / f"log.{suffix}")


def test_a_crafted_experiment_is_harmless(tmp_path):
    text = f"name: !!python/object/apply:os.mkdir ['{tmp_path / 'pwned'}']\n"
    (tmp_path / "e.yaml").write_text(text)
    with pytest.raises(ft.InvalidInputError, match=r"YAML.* line 1"):
        ft.Experiment.load(tmp_path / "e.yaml")
    assert not (tmp_path / "pwned").exists()


def test_run_folders_hold_no_pickles(whole):
    for file in whole.rglob("*.safetensors"):
        assert safetensors.torch.load_file(file)
    assert not [file for file in whole.rglob("*") if file.suffix in (".pkl", ".pt", ".npy")]
