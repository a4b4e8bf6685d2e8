"""Executes every code block of the pages docs/your-*.md, in order and in one folder."""

import re
import runpy
import shlex
import sys
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from fedtide.cli.main import app

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("your-data.md", "your-network.md", "your-method.md", "your-clients.md")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"# (\S+\.(?:py|yaml))\n")
METHODS = ("FedAvg(", "Bounded(", "average ", "local ", "bce ")
MODULES = ("adagrad", "bounded", "layers", "phrases", "roots", "sensornet", "uneven")


@pytest.fixture
def blocks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield [block for page in PAGES for block in BLOCK.findall((DOCS / page).read_text("utf-8"))]
    for module in MODULES:
        sys.modules.pop(module, None)


def execute(number, language, text):
    """Write a block that names its file; execute any other."""
    if named := NAME.match(text):
        Path(named[1]).write_text(text, encoding="utf-8")
    elif language == "python":
        script = Path(f"block_{number}.py")
        script.write_text(text, encoding="utf-8")
        runpy.run_path(str(script), run_name="__main__")
    else:
        for command in text.splitlines():
            done = CliRunner().invoke(app, shlex.split(command)[1:], catch_exceptions=False)
            assert done.exit_code == 0, done.output


@pytest.mark.compile
def test_the_blocks_of_the_page_run_and_learn(blocks, capsys):
    printed = []
    for number, (language, text) in enumerate(blocks):
        execute(number, language, text)
        printed.append(capsys.readouterr().out)
    accuracies = [
        float(line.split()[-1])
        for line in "".join(printed).splitlines()
        if line.startswith(METHODS)
    ]
    assert len(accuracies) == 5
    assert min(accuracies) > 0.7
    for name, metric, least in (
        ("users", "test_accuracy", 0.9),
        ("phrases", "test_accuracy", 0.9),
        ("sensors", "test_accuracy", 0.9),
        ("adagrad", "test_accuracy", 0.9),
        ("nightly", "test_accuracy", 0.8),
    ):
        learnt = pl.read_parquet(f"runs/{name}/metrics.parquet").row(-1, named=True)
        assert learnt[metric] > least, name
    for page in ("users.html", "runs/sensors/report.html"):
        assert Path(page).stat().st_size > 10_000


@pytest.mark.compile
def test_the_adapters_of_a_hugging_face_network_learn(tmp_path, monkeypatch):
    pytest.importorskip("transformers", reason="pip install transformers")
    pytest.importorskip("peft", reason="pip install peft")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    page = (DOCS / "hugging-face.md").read_text("utf-8")
    module, run = (text for language, text in BLOCK.findall(page) if language == "python")
    Path("reviews.py").write_text(module, encoding="utf-8")
    names = {}
    exec(compile(run, "hugging-face.md", "exec"), names)
    sys.modules.pop("reviews", None)
    assert names["result"].metrics["test_accuracy"][-1] > 0.9
    assert len(names["result"].model) < names["every"] / 20
