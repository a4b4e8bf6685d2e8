"""No file can make fedtide run code, except the user's own modules by import path."""

import ast
import os
import pickle
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import safetensors.torch
import torch
import yaml
from sklearn.metrics import log_loss

import fedtide as ft
from fedtide.import_paths import import_object, import_path_of
from fedtide.participation import read_log

ROOT = Path(ft.__file__).parent
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
PROCESSES = "joblib.externals.loky"  # worker processes, which read from their parent's pipes only
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
            module = (node.module or "").removeprefix(PROCESSES)
            assert module.split(".")[0] not in FORBIDDEN_MODULES, file
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


OWN = """
import os
from functools import lru_cache, partial
from os import mkdir
from pathlib import Path

from torch import load, nn, save

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))

class Nets:
    class Inner(Net):
        pass

    @staticmethod
    def make():
        return Net()

@lru_cache
def cached():
    return Net()

def make():
    return Net()

from sklearn.datasets import load_iris
from torch.fx.graph_module import reduce_graph_module

def wrong(path):
    return path

class Mapping(dict):
    pass

net, part = Net(), partial(Net)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_for_import_test.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield "own_for_import_test"
    assert not (tmp_path / "pwned").exists()
    assert not list(tmp_path.glob("tmp*"))


def digits(path, **problem):
    """Return an experiment file whose problem has these values."""
    given = {"type": "classification", "dataset": "digits", "clients": 2, "partition": "iid"}
    given |= problem
    plain = {"problem": given, "participation": "full", "algorithm": "fedavg", "rounds": 1}
    Path(path).write_text(yaml.safe_dump(plain | {"local": {"steps": 1}}))
    return path


GRAPH_MODULE = {
    "type": "torch.fx.graph_module:reduce_graph_module",
    "body": {"_code": "def forward(self, x):\n    return x\n"},
    "import_block": "import os; os.mkdir('pwned')\n",
}


@pytest.mark.parametrize(
    "model",
    [
        {"type": "imported", "path": "os:mkdir", "arguments": {"path": "pwned"}},
        {"type": "os:mkdir", "path": "pwned"},
        {"type": "posix:mkdir", "path": "pwned"},
        {"type": "pathlib:Path.mkdir", "self": "pwned"},
        {"type": "subprocess:run", "args": ["mkdir", "pwned"]},
        {"type": "subprocess:Popen", "args": ["mkdir", "pwned"]},
        {"type": "builtins:open", "file": "pwned", "mode": "w"},
        {"type": "own_for_import_test:os.mkdir", "path": "pwned"},
        {"type": "own_for_import_test:mkdir", "path": "pwned"},
        {"type": "own_for_import_test:Path.mkdir", "self": "pwned"},
        {"type": "own_for_import_test:save", "obj": 1, "f": "pwned"},
        {"type": "fedtide.import_paths:importlib.import_module", "name": "antigravity"},
        {"type": "fedtide.atomic_io:os.mkdir", "path": "pwned"},
        {"type": "fedtide.validation:require_all_positive", "pwned": 0},
        GRAPH_MODULE,
        GRAPH_MODULE | {"type": "own_for_import_test:reduce_graph_module"},
        {"type": "own_for_import_test:Net.load_state_dict", "state_dict": {}},
        {"type": "torch.nn:Module.load_state_dict", "state_dict": {}},
        {"type": "test.support.script_helper:spawn_python", "executable": "mkdir"},
        {"type": "pip:main", "args": ["download", "pwned"]},
        {"type": "torch:save", "obj": 1, "f": "pwned"},
        {"type": "torch:load", "f": "pwned"},
        {"type": "torch.hub:download_url_to_file", "url": "file:///dev/null", "dst": "pwned"},
        {"type": "own_for_import_test:Net.__init__.__globals__", "path": "pwned"},
        {"type": "own_for_import_test:Mapping", "path": "pwned"},
        {"type": "own_for_import_test:net", "input": "pwned"},
    ],
    ids=lambda model: str(model.get("path") if model["type"] == "imported" else model["type"]),
)
def test_a_model_by_import_path_is_a_network_and_nothing_else(model, own):
    problem = ft.Experiment.load(digits("e.yaml", model=model)).problem
    with pytest.raises(ft.InvalidInputError, match=r"^model: .*; give"):
        problem.prepare(0, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("name", ["Net", "Nets.Inner", "Nets.make", "cached", "make"])
def test_networks_of_the_users_own_modules_are_made(name, own):
    problem = ft.Experiment.load(digits("e.yaml", model=f"{own}:{name}")).problem
    task = problem.prepare(0, torch.device("cpu"), torch.float32)
    assert task.layout.size == 650


@pytest.mark.parametrize(
    "path",
    [
        "tempfile:mkdtemp",
        "own_for_import_test:os.getcwd",
        "sklearn.datasets:load_iris",
        "own_for_import_test:load_iris",
        "fedtide.cli.main:app",
    ],
)
def test_data_come_from_no_function_of_others(path, own):
    problem = ft.problems.Supervised(path, inputs="x", target="y", clients="c")
    with pytest.raises(
        ft.InvalidInputError,
        match=r"^train: .*( is part of|os is not).*; give",
    ):
        problem.prepare(0, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("key", ["loss", "metrics"])
@pytest.mark.parametrize("path", ["os:abort", "own_for_import_test:mkdir", "torch:save"])
def test_losses_and_metrics_are_no_functions_of_others(key, path, own):
    data = {"x": np.zeros((4, 1)), "y": np.zeros(4), "c": np.zeros(4)}
    given = path if key == "loss" else [path]
    with pytest.raises(ft.InvalidInputError, match=rf"^{key}: .* is part of .*; give"):
        ft.problems.Supervised(data, inputs="x", target="y", clients="c", **{key: given})


@pytest.mark.parametrize(
    "key", ["algorithm", "participation", "selection", "dropout", "problem", "local.schedule"]
)
@pytest.mark.parametrize("path", ["os:mkdir", "sklearn.linear_model:Lasso"])
def test_a_type_by_import_path_is_a_class_of_its_kind(key, path, own):
    plain = yaml.safe_load(Path(digits("e.yaml")).read_text())
    part, _, inner = key.partition(".")
    value = {"type": path, "path": "pwned"}
    plain[part] = plain[part] | {inner: value} if inner else value
    Path("e.yaml").write_text(yaml.safe_dump(plain))
    with pytest.raises(ft.InvalidInputError, match=rf"^{key}.*: .* is part of .*; give"):
        ft.Experiment.load("e.yaml")


def test_modules_of_the_standard_library_are_not_even_imported(own):
    for path in ("antigravity:webbrowser.open", "this:s", "idlelib.idle:main"):
        with pytest.raises(ft.InvalidInputError, match=r"^type: .*standard library.*; give"):
            import_object(path, "type")


@pytest.mark.parametrize("place", ["site-packages", "."])
def test_an_installed_package_is_not_even_imported(place, tmp_path, monkeypatch):
    """What pip has installed into a folder is not the user's own, whatever the folder."""
    package = tmp_path / place / "installed_for_import_test"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'pwned')!r})\n")
    record = tmp_path / place / "installed_for_import_test-1.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("installed_for_import_test/__init__.py,,\n")
    monkeypatch.syspath_prepend(tmp_path / place)
    with pytest.raises(ft.InvalidInputError, match=r"^type: .*an installed package; give"):
        import_object("installed_for_import_test:Net", "type")
    assert not (tmp_path / "pwned").exists()
    assert "installed_for_import_test" not in sys.modules


@pytest.mark.parametrize("path", ["own_for_import_test:Net", "own_for_import_test:Nets.Inner"])
def test_modules_on_the_python_path_are_the_users_own(path, own, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert issubclass(import_object(path, "type"), torch.nn.Module)


def test_a_run_folder_names_nothing_that_cannot_be_read_again():
    """A loss of an installed package is refused when the folder is made, not when it is resumed."""
    with pytest.raises(ft.InvalidInputError, match=r"^out: 'sklearn.*an installed package; give"):
        import_path_of(log_loss)
    assert import_path_of(torch.nn.functional.l1_loss) == "torch.nn.functional:l1_loss"


def test_a_notebook_gives_what_it_defines_and_nothing_that_it_imports(monkeypatch):
    main = ModuleType("__main__")
    exec("from os import system\nimport os\ndef loss(o, y): return o", vars(main))
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert import_object("__main__:loss", "loss") is main.loss
    for path in ("__main__:system", "__main__:os.system", "__main__:os", "__main__:missing"):
        with pytest.raises(ft.InvalidInputError, match=r"^loss: .* run its definition"):
            import_object(path, "loss")


def test_run_folders_hold_no_pickles(whole):
    for file in whole.rglob("*.safetensors"):
        assert safetensors.torch.load_file(file)
    assert not [file for file in whole.rglob("*") if file.suffix in (".pkl", ".pt", ".npy")]
