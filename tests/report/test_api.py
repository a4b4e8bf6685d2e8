"""Reports from Python, against the page of the command."""

import pytest
from typer.testing import CliRunner

import fedtide as ft
from fedtide.cli.main import app
from fedtide.report import write_report

RUN = {
    "problem": ft.problems.Quadratic(matrices=[[[1.0]]] * 3, centers=[[0.0], [1.0], [4.0]]),
    "participation": ft.participation.Bernoulli(0.5),
    "algorithm": "fedavg",
    "local": {"steps": 2, "lr": 0.1},
    "rounds": 6,
    "evaluation": {"every": 2},
    "trainer": "reference",
}


def test_a_report_of_results_is_the_page_of_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = ft.simulate(**RUN, seeds=[0, 1], out="runs")
    assert write_report("python.html", results) == tmp_path.joinpath("python.html").relative_to(
        tmp_path
    )
    done = CliRunner().invoke(app, ["report", "runs", "--html", "command.html"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "python.html").read_text() == (tmp_path / "command.html").read_text()


def test_a_page_of_results_in_memory_and_another_suffix(tmp_path):
    results = [ft.simulate(**RUN | {"algorithm": name}, seeds=[1, 2]) for name in ("mifa", "fedau")]
    page = write_report(tmp_path / "page.html", *results).read_text()
    assert "mifa" in page
    assert "fedau" in page
    with pytest.raises(ft.InvalidInputError, match=r"^html: "):
        write_report(tmp_path / "page.txt", *results)
