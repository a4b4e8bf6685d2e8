"""What comes out: the object, JSON, the screen and the page."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

import fedtide as ft
from fedtide.auditing import Audit
from fedtide.auditing.output.html_page import render
from fedtide.auditing.output.terminal import show
from fedtide.cli.main import app
from fedtide.participation import Bernoulli, GroupCycle, Schedule, UniformOf


@pytest.fixture(scope="module")
def found(draw: Any, table: Any) -> Audit:
    """The audit of a log in which the night shift counts three times its share."""
    rates = [0.6 if n % 4 == 0 else 0.1 for n in range(40)]
    log = draw(Schedule(Bernoulli(rates)), 40, 400, 0)
    shifts = ["night" if n % 4 == 0 else "day" for n in range(40)]
    roster = pl.DataFrame({"client": np.arange(40), "shift": shifts})
    return ft.audit(table(log), roster=roster, simulate=True, training=None)


def test_groups_that_count_too_much(found: Any) -> None:
    """Expected: night comes with 0.6, a quarter of the clients: 0.6 / (0.6 + 0.3) = 2/3."""
    shares = found.groups[0]
    night = shares.names.index("night")
    assert shares.low[night] <= 0.667 + 0.01 <= shares.high[night] + 0.03
    assert shares.ratios[night] == pytest.approx(8 / 3, rel=0.05)
    assert shares.weights.sum() == pytest.approx(1)


def test_json_has_the_promised_keys(found: Any) -> None:
    plain = json.loads(json.dumps(found.plain()))
    assert (plain["clients"], plain["rounds"], plain["never_seen"]) == (40, 400, 0)
    assert set(plain["coverage"]) >= {"longest_absence", "empty_rounds"}
    low, estimate, high = plain["rates"]["0"]
    assert low < estimate == found.log.counts[0] / 400 < high
    objective = plain["objective"]
    assert sum(objective["weights"].values()) == pytest.approx(1)
    assert objective["l1_skew"] == pytest.approx(2 * objective["total_variation"])
    assert objective["l1_skew_interval"][0] < objective["l1_skew"]
    assert set(plain["pattern"]) >= {"family", "confidence", "period", "parameters"}
    assert set(plain["regularity"][0]) == {"period", "value"}
    assert set(plain["settings"]) >= {"cutoff", "period"}
    keys = {"algorithm", "parameters", "reasons", "memory_floats"}
    assert all(set(one) >= keys for one in plain["advice"])


def test_the_screen(found: Any) -> None:
    text = io.StringIO()
    show(found, Console(file=text, width=80))
    said = text.getvalue()
    assert "shift night counts 2." in " ".join(said.split())
    assert "times its share" in said
    assert len(said.splitlines()) <= 40


def test_the_page_stands_alone(found: Any) -> None:
    page = render(found)
    for outside in ("<script", "<link", 'src="http', "@import", "url(http"):
        assert outside not in page
    assert page.count("<svg") == 5
    assert "width=device-width" in page


def test_names_are_escaped() -> None:
    log = pl.DataFrame({"round": [0, 1, 2, 3], "client": ["<b>", "<b>", "[red]", "<b>"]})
    page = render(ft.audit(log))
    assert "<b></td>" not in page
    assert "&lt;b&gt;" in page
    show(ft.audit(log), Console(file=io.StringIO()))


def test_the_command(tmp_path: Path, draw: Any, table: Any) -> None:
    log = draw(Schedule(GroupCycle(4, 10), UniformOf(3)), 20, 400, 0)
    table(log).rename({"round": "rnd"}).write_csv(tmp_path / "log.csv")
    arguments = ["audit", str(tmp_path / "log.csv"), "--columns", "round=rnd", "--clients", "25"]
    arguments += ["--json", str(tmp_path / "a.json"), "--html", str(tmp_path / "a.html")]
    done = CliRunner().invoke(app, [*arguments, "-L", "1.0"])
    assert done.exit_code == 0, done.output
    plain = json.loads((tmp_path / "a.json").read_text())
    assert plain["never_seen"] == 5
    assert plain["pattern"]["family"] == "cyclic"
    assert plain["pattern"]["period"] == 40
    assert plain["settings"]["learning_rates"]["fedau"]["lr"] > 0
    assert "never came" in (tmp_path / "a.html").read_text()


def test_a_run_folder(tmp_path: Path) -> None:
    """The run knows its clients and rounds, also those without anybody."""
    ft.simulate(
        problem=ft.problems.Quadratic(np.ones((6, 1, 1)), np.zeros((6, 1))),
        participation=ft.participation.Bernoulli([0.0, 0.1, 0.1, 0.1, 0.1, 0.1]),
        algorithm=ft.algorithms.FedAvg(),
        local=ft.LocalTraining(steps=1, lr=0.1),
        rounds=30,
        out=tmp_path / "run",
        trainer="reference",
    )
    found = ft.audit(tmp_path / "run")
    assert (found.log.size, found.log.length) == (6, 30)
    assert 0 in found.coverage.never


def test_the_function_and_the_room() -> None:
    """`ft.audit(...)` is a function, and the room of the same name can be imported from."""
    from fedtide.auditing import Audit

    log = pl.DataFrame({"round": [0, 1], "client": [0, 1]})
    assert isinstance(ft.audit(log), Audit)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), min_size=1, max_size=60, unique=True)
)
def test_every_small_log_has_an_audit(rows: list[tuple[int, int]]) -> None:
    log = pl.DataFrame(rows, schema=["round", "client"], orient="row")
    audited = ft.audit(log, clients=6, simulate=True)
    plain = json.dumps(audited.plain(), allow_nan=False)
    assert json.loads(plain)["never_seen"] == 6 - log["client"].n_unique()
    assert "Whose model" in render(audited)
    show(audited, Console(file=io.StringIO()))


def test_an_audit_starts_without_what_only_training_needs() -> None:
    """Each of these takes longer to import than a log of a million rows to read."""
    code = "import sys, fedtide.cli.main, fedtide.cli.audit; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "matplotlib", "sklearn", "datasets", "pandas", "scipy.stats", "sqlalchemy"}
    assert not heavy & set(done.stdout.split())
