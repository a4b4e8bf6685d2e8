"""What is released: one version, and a wheel that needs nothing of the repository."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_is_that_of_pyproject_everywhere():
    assert version("fedtide") == PROJECT["version"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(\d+\.\d+\.\d+)\]", changes, re.MULTILINE)[0] == PROJECT["version"]
    images = [
        tag
        for file in (ROOT / "deploy").rglob("*.yaml")
        for tag in re.findall(r"image: fedtide:(\S+)", file.read_text(encoding="utf-8"))
    ]
    assert len(images) >= 6
    assert set(images) == {PROJECT["version"]}


@pytest.mark.process
def test_the_wheel_works_in_an_empty_folder(tmp_path):
    wheels, installed, empty = (tmp_path / name for name in ("wheels", "installed", "empty"))
    empty.mkdir()
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    quick = {"check": True, "capture_output": True, "text": True, "timeout": 300}
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", wheels, ROOT], **quick)
    (wheel,) = wheels.iterdir()
    target = ["--no-deps", "--no-compile", "--target", installed, wheel]
    subprocess.run([*pip, "install", *target], **quick)

    def fedtide(*arguments):
        environment = os.environ | {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, installed / "bin" / "fedtide", *arguments]
        return subprocess.run(command, cwd=empty, env=environment, **quick).stdout

    assert fedtide("--version") == f"fedtide {PROJECT['version']}\n"
    assert "digits" in fedtide("examples")
    fedtide("run", "digits", "rounds=2", "seeds=[1]", "trainer=reference", "--out", "run")
    assert (empty / "run" / "comparison.png").exists()
    located = "import fedtide; print(fedtide.__file__)"
    environment = os.environ | {"PYTHONPATH": str(installed)}
    used = subprocess.run([sys.executable, "-c", located], cwd=empty, env=environment, **quick)
    assert used.stdout.startswith(str(installed))
    assert (installed / "fedtide" / "py.typed").exists()
