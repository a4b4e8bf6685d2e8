"""The configuration reference says what the code says."""

import importlib.util
from pathlib import Path

import pytest

from fedtide.algorithms import ALGORITHMS

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("write_reference", DOCS / "write_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(script):
    current = script.page() == script.PAGE.read_text(encoding="utf-8")
    assert current, "the reference is out of date; run: python docs/write_reference.py"


def test_every_link_within_the_page_has_its_heading(script):
    text = script.page()
    anchors = {script._anchor(line.lstrip("# ")) for line in text.splitlines() if line[:1] == "#"}
    links = {part.partition(")")[0] for part in text.split("](#")[1:]}
    assert len(links) > 50
    assert links <= anchors


def test_every_key_is_explained(script):
    text = script.page()
    for key in ("momentum", "weight_decay", "normalise", "on_nonfinite", "buffers", "period"):
        assert f"| `{key}` |" in text
    assert all(f"### `algorithm: {name}`" in text for name in ALGORITHMS)
