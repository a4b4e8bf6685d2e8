"""Damaged experiment files: one sentence or a valid experiment; no traceback, no hang.

Every file starts as a valid one and is then damaged: values replaced by others of any type and
size, keys misspelt, moved, removed and added. Experiments that
are still valid are run if they are small.
"""

import io
import random
import re
import signal
from contextlib import contextmanager, suppress
from copy import deepcopy

import numpy as np
import polars as pl
import pytest
import yaml
from PIL import Image
from tests.reliability.valid_values import BASE, DIGITS, VALID

import fedtide as ft
from fedtide.algorithms import ALGORITHMS
from fedtide.participation import DROPOUTS, PROCESSES, SELECTIONS
from fedtide.problems import PARTITIONS, PROBLEMS
from fedtide.problems.models.network_building import MODEL_TYPES
from fedtide.simulation import execute
from fedtide.training import PROJECTIONS, SCHEDULES

JUNK = [
    None, True, False, -1, 0, 1, 2, 3, 7, 0.5, 1.5, -0.0, 1e-300, 1e308, 10**30, -(10**30), 2**63,
    2**31, float("nan"), float("inf"), -float("inf"), "", " ", "x", "nan", "inf", "1e-3", "0.5",
    "-1", "1_000", "0x10", "null", "true", "fedau", "full", "all", "regression", "iid", "ö", "日本",
    "\u202e", "😀", "a\nb", "../..", "/", ".", "~", "a:b", ":", "os:system", "torch.nn:ReLU",
    "logistic", "cnn-003-cifar10", "trace.csv", "log.csv", "none.csv", "x" * 1000, b"bytes", [],
    [[]], [[[]]], [0], [1, 2], [0.5, 0.5, 0.5], [1, "a"], [None], [True], [[1], [1, 2]], [{}], {},
    {"type": None}, {"type": 1}, {"type": "x"}, {"type": []}, {"type": "fedavg"}, {"a": 1},
    {1: 2}, {None: None}, {(1, 2): 3}, {"type": "full", 3: 4}, [float("nan")], [10**30],
    {"type": "amplified", "period": 2, "factor": 1},
]  # fmt: skip
"""Values of any type and size, to replace a valid one."""


def walk_paths(tree, prefix=()):
    """Yield the path of every value in nested mappings and lists."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield (*prefix, key)
        if isinstance(value, dict | list):
            yield from walk_paths(value, (*prefix, key))


def draw_valid(draw):
    """Return a valid experiment with three clients and some keys of `VALID`."""
    others = [key for key in VALID if draw.random() < 0.3]
    return deepcopy(BASE) | {key: deepcopy(draw.choice(VALID[key])) for key in others}


def damage(tree, draw):
    """Change one value or key of the tree."""
    path = draw.choice(list(walk_paths(tree)))
    parent, key, how = at(tree, path[:-1]), path[-1], draw.randrange(9)
    if how == 0:
        del parent[key]
    elif how == 1 and isinstance(parent, dict):
        parent[misspell(str(key), draw)] = parent.pop(key)
    elif how == 2 and isinstance(parent, dict):
        parent[draw.choice(["extra", "type", "lr", 3, None, ""])] = draw.choice(JUNK)
    elif how == 3:
        parent[key] = [parent[key]] * draw.choice([1, 2, 3])
    elif how == 4:
        parent[key] = deepcopy(draw.choice(draw.choice(list(VALID.values()))))
    elif how < 7 and isinstance(parent[key], int | float):
        parent[key] = draw.choice([value for value in JUNK if isinstance(value, int | float)])
    else:
        parent[key] = deepcopy(draw.choice(JUNK))
    return tree or {"x": 1}


def change_number(tree, draw):
    """Replace one number of the tree by another of its type."""
    numbers = [path for path in walk_paths(tree) if type(at(tree, path)) in (int, float)]
    path = draw.choice(numbers)
    kind = type(at(tree, path))
    at(tree, path[:-1])[path[-1]] = draw.choice([value for value in JUNK if type(value) is kind])
    return tree


def at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


def misspell(word, draw):
    place = draw.randrange(len(word) + 1)
    return word[:place] + draw.choice("aeö _-.:#{[") + word[place + draw.randrange(2) :]


class HangError(BaseException):
    pass


@contextmanager
def time_limit(seconds):
    if not hasattr(signal, "SIGALRM"):  # Windows: the limit of the whole job must do
        yield
        return

    def stop(number, frame):
        raise HangError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


NET = """
from torch import nn


def Net(width):
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 10))
"""

SENTENCE = re.compile(r"^.+: .+$")


def load(file):
    """Return the experiment in a file, or the error message."""
    try:
        with time_limit(60):
            return ft.Experiment.load(file)
    except ft.InvalidInputError as error:
        message = str(error)
        assert SENTENCE.match(message), message
        assert message.isprintable(), message
        assert len(message) < 600, message
        return message


def is_small(experiment):
    """Return whether a run takes less than a second."""
    problem, local = experiment.problem, experiment.local
    sizes = [*map(int, re.findall(r"\d+", repr(problem)))]
    return experiment.rounds < 100 and max(*sizes, local.steps or 1, local.epochs or 1) < 2000


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "trace.csv").write_text("client,start,end\n0,0,5\n1,2,4\n2,1,9\n")
    (tmp_path / "log.csv").write_text("round,client\n0,0\n0,1\n1,2\n")
    (tmp_path / "table.csv").write_text("who,a,b,y\nann,1,2,0.5\nbob,0,1,1.5\ncat,2,2,0.1\n")
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "images").mkdir()
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "teal").save(file, "png")
    images = pl.DataFrame({"image": [file.getvalue()] * 30, "label": [0, 1, 2] * 10})
    for split in ("train", "test"):
        images.write_parquet(tmp_path / "images" / f"{split}.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("key", VALID)
def test_valid_values_run(key, folder):
    for value in VALID[key]:
        fields = BASE | {"local": {"steps": 1, "lr": 0.1}, key: value}
        if isinstance(value, dict) and isinstance(value.get("rates"), dict):
            fields["problem"] = DIGITS
        ft.Experiment.from_dict(fields)
        ft.simulate(**fields)


def test_valid_values_name_every_registered_class():
    named = set(re.findall(r"'type': '([a-z0-9-]+)'", repr(VALID)))
    registries = (ALGORITHMS, PROCESSES, SELECTIONS, DROPOUTS, PROBLEMS, SCHEDULES, PROJECTIONS)
    others = set(PARTITIONS) - {"flwr"} | set(MODEL_TYPES) - {"imported"}
    assert named >= others.union(*registries)


@pytest.mark.fuzz
@pytest.mark.parametrize("part", range(3))
def test_damaged_values_and_keys_are_refused_or_valid(part, folder):
    refused = 0
    for number in range(part * 500, (part + 1) * 500):
        draw = random.Random(number)
        tree = draw_valid(draw)
        for _ in range(draw.choice([1, 1, 2, 3])):
            tree = damage(tree, draw)
        try:
            text = yaml.safe_dump(tree, allow_unicode=True)
        except yaml.YAMLError:  # YAML cannot express it
            continue
        (folder / "e.yaml").write_text(text, encoding="utf-8")
        refused += isinstance(load(folder / "e.yaml"), str)
    assert refused > 200


def files(folder):
    """Return the files of a folder, without those of Python."""
    return sorted(file for file in folder.iterdir() if file.name != "__pycache__")


@pytest.mark.fuzz
@pytest.mark.parametrize("part", range(3))
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_other_numbers_run_or_are_refused(part, folder):
    """When loaded or when a run starts; and no file is left behind."""
    before = files(folder)
    ran = 0
    for number in range(part * 250, (part + 1) * 250):
        draw = random.Random(number)
        tree = draw_valid(draw)
        for _ in range(draw.choice([0, 1, 1, 2])):
            tree = change_number(tree, draw)
        with suppress(ft.InvalidInputError):
            experiment = ft.Experiment.from_dict(tree)
            if is_small(experiment):
                with time_limit(60):
                    execute(experiment)
                ran += 1
    assert ran > 50
    assert files(folder) == before


NESTED = "[" * 700 + "]" * 700
BOMB = "\n".join(f"    - &a{i} [{','.join([f'*a{i - 1}'] * 10) if i else '1,1'}]" for i in range(9))
MERGES = "".join(f"a{i}: &a{i} {{<<: [{','.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 9))

HOSTILE = {
    "nested": ("problem: " + NESTED, "nested"),
    "alias bomb": ("problem:\n  matrices:\n" + BOMB, "aliases"),
    "merge bomb": ("a0: &a0 {x: 1}\n" + MERGES, "aliases"),
    "contains itself": ("problem: &a [*a]", "alias"),
    "duplicate key": ("rounds: 1\nrounds: 2", "YAML.* line 2.* 'rounds'"),
    "long number": ("rounds: " + "9" * 5000, r"YAML.*\(Exceeds the limit"),
    "int": ("rounds: !!int x", "YAML.*invalid literal for int"),
    "two documents": ("a: 1\n---\nb: 2", "YAML.* line 2"),
    "code": ("rounds: !!python/object/apply:os.system ['touch pwned']", "YAML.* line 1"),
    "empty": ("", "not a mapping; .*`problem:`"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(name, folder):
    text, reason = HOSTILE[name]
    (folder / "e.yaml").write_text(text)
    message = load(folder / "e.yaml")
    assert message.startswith(f"{folder / 'e.yaml'}: ")
    assert re.search(reason, message), message
    assert not (folder / "pwned").exists()


def test_aliases_are_allowed(folder):
    (folder / "e.yaml").write_text(
        "problem: {type: quadratic, matrices: [&a [[1]], *a, *a], centers: [&b [0], *b, *b]}\n"
        "participation: full\nalgorithm: fedavg\nlocal: {steps: 1, lr: 0.1}\nrounds: 2\n"
    )
    assert np.shape(load(folder / "e.yaml").problem.matrices) == (3, 1, 1)
