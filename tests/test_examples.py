"""The bundled examples: complete, loadable, and copied without replacing files."""

import sys
from pathlib import Path

import pytest

import fedtide as ft
from fedtide.examples import copy_example, find_example, list_examples
from fedtide.import_paths import import_object
from fedtide.simulation.experiment_files import read_yaml
from fedtide.sweep import Sweep

EXPERIMENTS = [name for name in list_examples() if not name.startswith(("flower", "log"))]


def test_every_example_says_what_it_shows():
    assert {"digits", "digits-sweep", "fashion", "flower", "log"} <= set(list_examples())
    assert all(len(text) > 20 and text[-1] in ".?" for text in list_examples().values())


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


def test_copied_modules_are_those_that_a_copied_experiment_uses(tmp_path, monkeypatch):
    copy_example("lora", tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plays.py").write_text((tmp_path / "plays.py").read_text() + "\nMINE = True\n")
    try:
        factory = import_object(read_yaml("lora.yaml")["problem"]["model"], "model")
        assert sys.modules["plays"].MINE
        assert factory.__globals__["next_characters"].__module__ == "plays"
    finally:
        for module in ("lora", "plays"):
            sys.modules.pop(module, None)


def test_a_copied_app_has_no_caches(tmp_path):
    (folder,) = copy_example("flower", tmp_path)
    assert {"pyproject.toml", "server_app.py", "client_app.py", "task.py"} == {
        file.name for file in folder.iterdir()
    }


def test_copies_never_replace_files(tmp_path):
    (tmp_path / "digits.yaml").write_text("mine")
    with pytest.raises(ft.InvalidInputError, match=r"^out: .*digits\.yaml exists; "):
        copy_example("digits-sweep", tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["digits.yaml"]
    assert (tmp_path / "digits.yaml").read_text() == "mine"


def test_files_that_examples_share_may_be_there_already(tmp_path):
    first = copy_example("digits", tmp_path)
    copies = copy_example("digits-sweep", tmp_path)
    assert {*first} < {*copies}
    text = copies[1].read_text()
    copies[1].write_text(text + "# mine\n")
    with pytest.raises(ft.InvalidInputError, match=r"^out: .*digits\.yaml exists; "):
        copy_example("digits-sweep", tmp_path)
    assert copies[1].read_text() == text + "# mine\n"


@pytest.mark.parametrize("name", ["flower", "flower_secure"])
def test_a_flower_app_is_no_experiment(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ft.InvalidInputError, match=f"^{name}: is a Flower app.* examples {name}"):
        find_example(Path(name))
    assert "Flower app" in list_examples()[name]


def test_an_unknown_example_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(ft.InvalidInputError, match=r"^name: .*did you mean 'digits'"):
        copy_example("digit", tmp_path)


def test_a_file_of_the_user_comes_before_an_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").write_text("rounds: 1")
    assert find_example(Path("digits")) == Path("digits")
    assert find_example(Path("elsewhere/digits")) == Path("elsewhere/digits")


def test_a_name_that_is_neither_a_file_nor_an_example_is_refused_with_the_nearest(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ft.InvalidInputError, match=r"^digit: no file and no example .*'digits'\?"):
        find_example(Path("digit"))
    assert find_example(Path("digit.yaml")) == Path("digit.yaml"), "its error names the file"


def test_a_folder_does_not_hide_an_example(tmp_path, monkeypatch):
    """As `fedtide run digits --out digits` leaves one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    assert Sweep.load(find_example(Path("digits"))).name == "digits"
