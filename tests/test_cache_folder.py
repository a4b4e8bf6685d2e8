"""Where slow results are kept, also for users who have no home folder."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedtide.cache_folder import cache_folder
from fedtide.problems.datasets.image_decoding import decode_cached


@pytest.fixture
def no_variables(monkeypatch):
    for name in ("FEDTIDE_CACHE", "XDG_CACHE_HOME", "HOME", "USERPROFILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HOME": "h", "XDG_CACHE_HOME": "x", "FEDTIDE_CACHE": "f"}, "f"),
        ({"HOME": "h", "XDG_CACHE_HOME": "x"}, "x/fedtide"),
        ({"HOME": "h", "USERPROFILE": "h"}, "h/.cache/fedtide"),
    ],
)
@pytest.mark.usefixtures("no_variables")
def test_the_variables_in_their_order(variables, expected, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


@pytest.mark.usefixtures("no_variables")
def test_nothing_is_kept_for_a_user_of_a_container_without_a_home(tmp_path, monkeypatch):
    pwd = pytest.importorskip("pwd")
    known = {entry.pw_uid for entry in pwd.getpwall()}
    monkeypatch.setattr(os, "getuid", lambda: max(known) + 1)
    with pytest.raises(RuntimeError):
        Path.home()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.parquet").write_bytes(b"any")
    pixels = np.zeros((1, 1, 2, 2), dtype=np.uint8)
    assert decode_cached(tmp_path / "data.parquet", "image", lambda: pixels) is pixels
    with pytest.raises(OSError, match="irectory"):
        cache_folder().mkdir(parents=True)
    assert [file.name for file in tmp_path.iterdir()] == ["data.parquet"]
