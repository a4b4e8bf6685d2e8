"""Comparisons of finished runs against their own tables."""

import numpy as np
import polars as pl
import pytest

import fedtide as ft
from fedtide.report.comparison import comparison, comparison_table
from fedtide.report.figures.run_comparison import draw_comparison
from fedtide.report.loading import load_runs

FIELDS = {
    "problem": {"type": "regression", "clients": 5, "samples": 50, "features": 3, "informative": 2},
    "participation": {"type": "bernoulli", "rates": 0.5},
    "local": {"steps": 2, "lr": 0.05, "batch_size": 4},
    "rounds": 4,
    "trainer": "stacked",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with two methods under two seeds and one under one."""
    folder = tmp_path_factory.mktemp("runs")
    for method, algorithm, seeds in (
        ("a", "fedavg", [2, 1]),
        ("b", "fedau", [1, 2]),
        ("c", "mifa", [1]),
    ):
        for seed in seeds:
            ft.simulate(
                **FIELDS,
                algorithm=algorithm,
                name=method,
                seed=seed,
                out=folder / f"{method}-{seed}",
            )
    return folder


def last(folder, run, figure):
    return pl.read_parquet(folder / run / "metrics.parquet")[figure][-1]


def test_one_row_for_each_method(folder):
    table = comparison(load_runs([folder]))
    assert table["method"].to_list() == ["a", "b", "c"]
    assert table["seeds"].to_list() == [2, 2, 1]
    for method in "ab":
        losses = [last(folder, f"{method}-{seed}", "loss") for seed in (1, 2)]
        row = table.filter(pl.col("method") == method).row(0, named=True)
        assert row["loss"] == pytest.approx(np.mean(losses))
        assert row["loss_std"] == pytest.approx(np.std(losses, ddof=1))
    assert table["loss_std"][2] == 0


def test_folders_can_be_named_one_by_one(folder):
    table = comparison(load_runs([folder / "a-1", folder / "b-2"]))
    assert table["method"].to_list() == ["a", "b"]
    assert table["loss"].to_list() == [last(folder, "a-1", "loss"), last(folder, "b-2", "loss")]


def test_the_table_for_people_shows_every_method(folder):
    table = comparison_table(comparison(load_runs([folder])))
    assert table.row_count == 3
    assert list(table.columns[0].cells) == ["a", "b", "c"]


def test_methods_of_different_problems_stand_side_by_side(folder, tmp_path):
    """What one of them does not have stays empty."""
    digits = FIELDS | {
        "problem": {"type": "classification", "dataset": "digits", "partition": "iid", "clients": 5}
    }
    ft.simulate(**digits, algorithm="fedavg", name="digits", out=tmp_path / "digits")
    for order in ([folder, tmp_path], [tmp_path, folder]):
        table = comparison(load_runs(order))
        rows = {row["method"]: row for row in table.iter_rows(named=True)}
        assert rows["a"]["test_accuracy"] is None
        assert rows["digits"]["test_accuracy"] == last(tmp_path, "digits", "test_accuracy")
        comparison_table(table)


@pytest.mark.parametrize("suffix", [".png", ".pdf"])
def test_a_figure_is_drawn(folder, tmp_path, suffix):
    draw_comparison(load_runs([folder]), tmp_path / f"figure{suffix}")
    head = (tmp_path / f"figure{suffix}").read_bytes()[:8]
    assert head.startswith(b"\x89PNG" if suffix == ".png" else b"%PDF")


def test_the_order_of_folders_does_not_matter_to_a_row(folder):
    one = comparison(load_runs([folder / "a-1", folder / "a-2"]))
    other = comparison(load_runs([folder / "a-2", folder / "a-1"]))
    assert one.equals(other)
