"""The bundled examples: complete, loadable, and copied without replacing files."""

from pathlib import Path

import pytest

import fedtide as ft
from fedtide.examples import copy_example, find_example, list_examples
from fedtide.sweep import Sweep

EXPERIMENTS = [name for name in list_examples() if not name.startswith(("flower", "log"))]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_copied_experiment_is_complete(name, tmp_path, monkeypatch):
    copies = copy_example(name, tmp_path / "copies")
    monkeypatch.chdir(tmp_path / "copies")
    copied, bundled = Sweep.load(copies[0].name), Sweep.load(find_example(Path(name)))
    assert copies[0].name == f"{name}.yaml"
    assert not any("fedtide.examples" in file.read_text() for file in copies)
    assert len(copied.runs) == len(bundled.runs)
    for one, other in zip(copied.runs, bundled.runs, strict=True):
        named = str(other.experiment.to_dict()).replace("fedtide.examples.tasks.", "")
        assert str(one.experiment.to_dict()) == named


def test_modules_of_an_example_are_copied_with_the_texts_that_they_read(tmp_path):
    copies = copy_example("lora", tmp_path)
    assert {file.name for file in copies} == {
        "lora.yaml",
        "next-character.yaml",
        "lora.py",
        "plays.py",
        "macbeth.txt",
        "twelfth_night.txt",
    }


def test_a_copied_app_has_no_caches(tmp_path):
    (folder,) = copy_example("flower", tmp_path)
    assert {"pyproject.toml", "server_app.py", "client_app.py", "task.py"} == {
        file.name for file in folder.iterdir()
    }


def test_copies_never_replace_files_except_by_the_same(tmp_path):
    (first,) = copy_example("digits", tmp_path)
    assert first in copy_example("digits-sweep", tmp_path)
    first.write_text("mine")
    with pytest.raises(ft.InvalidInputError, match=r"^out: .*digits\.yaml exists; "):
        copy_example("digits-sweep", tmp_path)
    assert first.read_text() == "mine"


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: copy_example("digit", Path("out")), r"name: .*did you mean 'digits'"),
        (lambda: find_example(Path("digit")), r"digit: .*'digits'\?"),
        (lambda: find_example(Path("flower")), r"flower: is a Flower app"),
    ],
)
def test_what_is_no_example_is_refused(call, field):
    with pytest.raises(ft.InvalidInputError, match=f"^{field}"):
        call()


def test_a_file_of_the_user_comes_before_an_example_but_no_folder_does(tmp_path, monkeypatch):
    """As `fedtide run digits --out digits` leaves one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    assert Sweep.load(find_example(Path("digits"))).name == "digits"
    (tmp_path / "fashion").write_text("rounds: 1")
    for own in ("fashion", "elsewhere/digits", "digit.yaml"):
        assert find_example(Path(own)) == Path(own)


def test_rare_clients_are_left_behind_by_fedavg_alone():
    """SCAFFOLD's lead in the 20 recorded seeds is at least 38 points after 300 rounds."""
    worst = {}
    for run in Sweep.load(find_example(Path("rare-clients")), ["seeds=[1]", "rounds=150"]).runs:
        plain = run.experiment.to_dict() | {"trainer": "stacked", "evaluation": {"every": 0}}
        if (method := plain["algorithm"]["type"]) in ("fedavg", "scaffold"):
            metrics = ft.simulate(**plain).metrics
            worst[method] = metrics["client_class_weighted_test_accuracy_worst_tenth"][-1]
    assert worst["scaffold"] > worst["fedavg"] + 0.2
