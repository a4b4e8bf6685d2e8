"""Shared by the reliability tests: a small experiment, its finished run, and a killed one."""

import shutil
from pathlib import Path

import pytest

import fedtide as ft
from fedtide.simulation.loop import Run


class Killed(BaseException):
    pass


def run_until_killed(t, fields, out):
    """Run an experiment and end it without warning before round t."""
    original = Run.round

    def round(run):
        if run.ended == t:
            raise Killed
        original(run)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "round", round)
        with pytest.raises(Killed):
            ft.simulate(**fields, out=out)


@pytest.fixture
def fields(regression):
    """Return the fields of a small experiment whose algorithm keeps a state per client."""
    return regression | {"algorithm": "fedau", "trainer": "reference"}


@pytest.fixture
def whole(fields, tmp_path_factory):
    """Return the folder of a finished run, which all tests share: it must not be changed."""
    folder = tmp_path_factory.getbasetemp() / "whole"
    if not folder.exists():
        ft.simulate(**fields, out=folder)
    return folder


@pytest.fixture
def finished(whole, tmp_path):
    """Return a copy of the finished run."""
    return Path(shutil.copytree(whole, tmp_path / "finished"))


@pytest.fixture
def killed(fields, tmp_path, tmp_path_factory):
    """Return the folder of a run killed before round 8, after the checkpoint of round 6."""
    folder = tmp_path_factory.getbasetemp() / "killed"
    if not folder.exists():
        run_until_killed(8, fields, folder)
    return Path(shutil.copytree(folder, tmp_path / "killed"))
