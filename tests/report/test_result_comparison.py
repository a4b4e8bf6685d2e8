"""`ft.compare` on results and folders, against the comparison of the folders."""

from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
from markdown_it import MarkdownIt
from matplotlib.figure import Figure

import fedtide as ft
from fedtide.report.comparison import compare_conditions
from fedtide.report.grouping import arrange
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
    wanted = compare_conditions(arrange(load_runs([folder]))).sort("method")
    for compared in (
        ft.compare(a, b),
        ft.compare(folder),
        ft.compare(str(folder / "a"), b),
        ft.compare(*a, *b),
    ):
        assert compared.frame.sort("method").equals(wanted)


def test_results_in_memory_are_named_by_their_method(fields):
    a = ft.simulate(**fields, algorithm="fedavg")
    b = ft.simulate(**fields, algorithm={"type": "fedau", "cutoff": 3})
    c = ft.simulate(**fields, algorithm={"type": "fedau", "cutoff": 9})
    compared = ft.compare(a, b, c)
    assert compared.frame["method"].to_list() == [
        "fedavg",
        "fedau, cutoff 3",
        "fedau, cutoff 9",
    ]
    assert isinstance(compared.plot(), Figure)


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


@pytest.fixture
def short(fields):
    """Return the fields of a short experiment, without its algorithm."""
    return fields | {"rounds": 4}


def _supervised(**changes):
    """Return a problem of 40 samples at 8 clients, with a linear network."""
    x = np.linspace(-1, 1, 40)
    train = pl.DataFrame({"x": x, "y": 2 * x, "client": np.arange(40) % 8})
    given = {"inputs": ["x"], "target": "y", "clients": "client", "loss": "mse"}
    return ft.problems.Supervised(**{"train": train, **given, **changes})


def _notebook_class(cls):
    """Return the class as if it had been defined in a notebook."""
    cls.__module__, cls.__qualname__ = "__main__", cls.__name__
    cls.__doc__ = "Not in any module."
    return cls


def test_repeated_runs_are_left_out_and_named(short, caplog):
    first = ft.simulate(**short, algorithm="fedavg", seeds=[1, 2])
    second = ft.simulate(**short, algorithm="fedavg", seeds=[2, 3])
    assert not caplog.records
    assert ft.compare(first, second).frame["seeds"].to_list() == [3]
    (record,) = caplog.records
    assert record.name == "fedtide"
    assert record.getMessage().endswith("the same experiment and seed: fedavg, seed 2")


def _mine():
    @dataclass(frozen=True)
    class Mine(ft.algorithms.FedAvg):
        pass

    return _notebook_class(Mine)


def test_seeds_with_equal_objects_of_a_class_of_a_notebook_are_one_method(short):
    mine, again = _mine(), _mine()

    def run(cls, seed, **values):
        return ft.simulate(**short, algorithm=cls(**values), seed=seed)

    by_hand = [run(mine, seed) for seed in (1, 2, 3)]
    compared = ft.compare(*by_hand)
    assert compared.frame.select("method", "seeds").rows() == [("Mine", 3)]
    others = [run(again, 1), run(again, 2), run(mine, 1, server_lr=0.5)]
    compared = ft.compare(*by_hand, *others)
    assert compared.frame["seeds"].to_list() == [3, 2, 1]
    assert compared.frame["method"].to_list() == [
        "Mine, server_lr 1 in argument 1",
        "Mine, server_lr 1 in argument 4",
        "Mine, server_lr 0.5",
    ]
