"""Executes the code blocks of docs/python.md, in order, in one folder and one namespace."""

import re
from pathlib import Path

import polars as pl
import pytest
from matplotlib.figure import Figure
from torch import nn

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_blocks_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if not text.startswith("# track.py"):  # needs the library of an extra
            exec(compile(text, str(PAGE), "exec"), names)
    assert isinstance(names["module"], nn.Module)
    assert isinstance(names["figure"], Figure)
    assert names["results"].seeds == [1, 2]
    assert names["table"]["method"].to_list() == ["fedau", "fedavg"]
    assert names["stopped"].stopped
    assert names["stopped"].metrics["round"][-1] < 40
    assert Path("runs/stopped/summary.json").exists()
    assert "fedau, seeds 1, 2" in capsys.readouterr().out


def test_the_tracked_run_of_the_page_runs(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("experiment.yaml").write_text(
        "problem: {type: regression, clients: 5, samples: 50, features: 3, informative: 2}\n"
        "participation: full\nalgorithm: fedavg\nlocal: {steps: 1, lr: 0.1}\nrounds: 2\n"
    )
    (text,) = [t for t in BLOCK.findall(PAGE.read_text()) if t.startswith("# track.py")]
    exec(compile(text, str(PAGE), "exec"), {})
    assert list(Path("runs/tensorboard").rglob("events*"))
    assert pl.read_parquet("runs/x/metrics.parquet")["round"][-1] == 2
