"""Shared fixtures; the apps in `app` are run by Flower's own processes and are no tests."""

import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .local_federation import LocalFederation
from .recipe import Recipe

collect_ignore = ["app"]


@pytest.fixture
def url(tmp_path) -> str:
    """Return the URL of a ledger."""
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def recipe(tmp_path) -> Iterator[Recipe]:
    with LocalFederation(tmp_path / "federation") as federation:
        yield Recipe(federation)


@pytest.fixture
def set_clock(tmp_path, monkeypatch) -> Callable[[int], None]:
    """Return a function that sets the clock of all processes that are started from now on.

    It is given the seconds by which their clocks are ahead of this process's; it may be called
    while they run. Without a C compiler, or elsewhere than on Linux, it does nothing.
    """
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        warnings.warn("clocks are not set: that needs Linux and a C compiler", stacklevel=1)
        return lambda seconds: None
    source, library = Path(__file__).parent / "clock.c", tmp_path / "clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    ahead = tmp_path / "clock"
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("FEDTIDE_TEST_CLOCK", str(ahead))

    def set_all(seconds: int) -> None:
        draft = ahead.with_suffix(".new")
        draft.write_text(f"{seconds}\n", encoding="ascii")
        draft.replace(ahead)

    set_all(0)
    return set_all
