"""`ft.compare` on results and folders, against the comparison of the folders."""

from xml.etree import ElementTree

import polars as pl
import pytest
from markdown_it import MarkdownIt
from matplotlib.figure import Figure

import fedtide as ft
from fedtide.report.comparison import compare_runs
from fedtide.report.loading import load_runs

SPEED = ["rounds_per_second", "rounds_per_second_std"]


@pytest.fixture(scope="module")
def pair(fields, tmp_path_factory):
    """Return the results of two methods under two seeds each, and their folder."""
    folder = tmp_path_factory.mktemp("runs")
    run = fields | {"seeds": [1, 2]}
    a = ft.simulate(**run, algorithm="fedavg", name="a", out=folder / "a")
    b = ft.simulate(**run, algorithm="fedau", name="b", out=folder / "b")
    return a, b, folder


def test_results_compare_as_their_folders_do(pair):
    a, b, folder = pair
    wanted = compare_runs(load_runs([folder]))
    for compared in (
        ft.compare(a, b),
        ft.compare(folder),
        ft.compare(str(folder / "a"), b),
        ft.compare(*a, *b),
    ):
        assert compared.frame.sort("method").equals(wanted)


def test_keywords_name_the_methods(pair):
    a, _, folder = pair
    compared = ft.compare(first=a, second=folder / "b")
    assert compared.frame["method"].to_list() == ["first", "second"]


def test_results_in_memory_are_named_by_their_method(fields):
    a = ft.simulate(**fields, algorithm="fedavg")
    b = ft.simulate(**fields, algorithm={"type": "fedau", "cutoff": 3})
    c = ft.simulate(**fields, algorithm={"type": "fedau", "cutoff": 9})
    compared = ft.compare(a, b, c)
    assert compared.frame["method"].to_list() == [
        "fedavg",
        "fedau (algorithm.cutoff=3)",
        "fedau (algorithm.cutoff=9)",
    ]
    assert isinstance(compared.plot(), Figure)


def test_the_representation_is_the_table(pair):
    a, b, _ = pair
    text = repr(ft.compare(a, b))
    rows = [line.split() for line in text.splitlines()]
    loss = ft.compare(a, b).frame["loss"][0]
    assert [row[0] for row in rows if row][-2:] == ["a", "b"]
    assert f"{loss:,.3f}" in text
    assert "±" in text


ODD = r"50 % of a_b & {c} | #1 ~^ $x$ <y> \ w/o *z*"
"""A name with all that means something to LaTeX or Markdown."""


def test_a_saved_table_holds_what_is_printed(pair, tmp_path):
    a, b, _ = pair
    compared = ft.compare(**{ODD: a, "b": b})
    compared.write_table(tmp_path / "t.csv")
    assert pl.read_csv(tmp_path / "t.csv").equals(compared.frame)
    loss = f"{compared.frame['loss'][1]:.3f} ± {compared.frame['loss_std'][1]:.3f}"
    assert loss in repr(compared)

    page = compared.write_table(tmp_path / "t.md").read_text("utf-8")
    heads, *rows = ElementTree.fromstring(
        MarkdownIt("commonmark").enable("table").render(page)
    ).iter("tr")
    assert [cell.text for cell in heads][:2] == ["method", "loss, client mean"]
    assert not any("rounds" in cell.text for cell in heads)  # the speed of this machine
    assert [row[0].text for row in rows] == [ODD, "b"]
    assert rows[1][1].text == loss

    lines = compared.write_table(str(tmp_path / "t.tex")).read_text("utf-8").splitlines()
    assert lines[2] == r"\toprule"
    assert lines[3].startswith("method & loss, client mean & ")
    assert lines[6].startswith(f"b & {loss} & ".replace("±", r"$\pm$"))
    assert lines[5].startswith(
        r"50 \% of a\_b \& \{c\} \textbar{} \#1 \textasciitilde{}\textasciicircum{} \$x\$ "
        r"\textless{}y\textgreater{} \textbackslash{} w/o *z* & "
    )


def test_a_saved_table_of_several_problems_names_them(pair, fields, tmp_path):
    a, _, _ = pair
    other = fields | {"problem": fields["problem"] | {"features": 4}}
    compared = ft.compare(a, other=ft.simulate(**other, algorithm="fedavg"))
    compared.write_table(tmp_path / "t.csv")
    assert pl.read_csv(tmp_path / "t.csv").equals(compared.frame)
    lines = compared.write_table(tmp_path / "t.md").read_text("utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:3]] for line in lines]
    assert [cells[0], *cells[2:]] == [
        ["problem", "method"],
        ["regression, features 3", "a"],
        ["regression, features 4", "other"],
    ]


def test_results_of_what_no_file_can_describe_are_told_apart(fields):
    logs = [pl.DataFrame({"round": list(range(40)), "client": [n] * 40}) for n in (0, 1)]
    results = [
        ft.simulate(
            **(fields | {"participation": ft.participation.Replay(log=log)}), algorithm="fedavg"
        )
        for log in logs
    ]
    assert ft.compare(*results).frame["seeds"].to_list() == [1, 1]
    assert ft.compare(x=results[0], y=results[1]).frame["method"].to_list() == ["x", "y"]


def test_what_cannot_be_compared_is_refused(tmp_path):
    with pytest.raises(ft.InvalidInputError, match=r"^runs: nothing to compare"):
        ft.compare()
    with pytest.raises(ft.InvalidInputError, match=r"^runs: 3 is not a result"):
        ft.compare(3)
    with pytest.raises(ft.InvalidInputError, match="holds no run"):
        ft.compare(tmp_path)
