"""The comparison table against the runs' own metrics, and the comparison figure."""

import shutil

import numpy as np
import polars as pl
import pytest
from torch import nn
from typer.testing import CliRunner

import fedtide as ft
from fedtide.cli.main import app
from fedtide.report.comparison import (
    Column,
    compare_conditions,
    comparison_table,
    format_cell,
)
from fedtide.report.figures.run_comparison import comparison_figure
from fedtide.report.grouping import arrange
from fedtide.report.loading import load_runs
from fedtide.report.page import make_report
from fedtide.sweep import Sweep, run_sweep

FIELDS = {
    "problem": {"type": "regression", "clients": 5, "samples": 50, "features": 3, "informative": 2},
    "participation": {"type": "bernoulli", "rates": 0.5},
    "local": {"steps": 2, "lr": 0.05, "batch_size": 4},
    "rounds": 4,
    "trainer": "reference",
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


def test_a_row_has_the_mean_and_standard_deviation_over_the_seeds(folder):
    table = compare_conditions(arrange(load_runs([folder])))
    assert table["method"].to_list() == ["a", "b", "c"]  # the names of the experiments
    assert table["seeds"].to_list() == [2, 2, 1]
    for name in "ab":
        losses = [last(folder, f"{name}-{seed}", "loss") for seed in (1, 2)]
        row = table.filter(pl.col("method") == name).row(0, named=True)
        assert row["loss"] == pytest.approx(np.mean(losses))
        assert row["loss_std"] == pytest.approx(np.std(losses, ddof=1))
    assert table["loss_std"][2] == 0


LRS = {"z": 1.0, "c": 2.0, "a": 3.0, "m": 4.0}


@pytest.fixture(scope="module")
def sweep_folder(tmp_path_factory):
    """Return the folder of a sweep whose methods are not in the order of the alphabet."""
    folder = tmp_path_factory.mktemp("sweep")
    methods = {name: {"algorithm": {"type": "fedavg", "server_lr": lr}} for name, lr in LRS.items()}
    fields = {"seeds": [1, 10, 2], "methods": methods, "grid": {"local.lr": [0.05, 0.01]}}
    run_sweep(Sweep.from_dict(FIELDS | fields), folder / "sweep", workers=1)
    shutil.rmtree(folder / "sweep" / "c" / "local.lr=0.01" / "seed-1")
    return folder


def methods_of(*folders):
    (groups,) = arrange(load_runs(folders)).values()
    return list(groups)


def test_methods_are_in_the_order_of_their_sweep(sweep_folder):
    both = [f"{name}, lr {lr}" for name in LRS for lr in (0.01, 0.05)]
    assert methods_of(sweep_folder / "sweep") == methods_of(sweep_folder) == both
    assert ft.compare(sweep_folder).frame["method"].to_list() == both
    runs = load_runs([sweep_folder])
    assert [run.experiment["seed"] for run in runs][:5] == [1, 2, 10, 1, 2]
    (section,) = make_report(runs).sections
    assert list(section.groups) == [row.method for row in section.target.rows] == both


@pytest.fixture
def two_problems(folder, tmp_path):
    """Return runs of the regression and of the same one under other weights of the clients."""
    weighted = FIELDS | {"objective": [5.0, 1.0, 1.0, 1.0, 1.0]}
    for name, method in (("a", "fedavg"), ("z", "fedau")):
        ft.simulate(**weighted, algorithm=method, name=name, seed=3, out=tmp_path / name)
    return [folder, tmp_path]


def test_problems_are_compared_in_tables_and_panels_of_their_own(two_problems):
    output = CliRunner().invoke(app, ["compare", *map(str, two_problems)]).output
    titles = ["regression, objective uniform", "regression, objective [5.0, 1.0, 1.0, 1.0, 1.0]"]
    assert [line for line in output.splitlines() if line in titles] == titles
    lines = [line for line in output.splitlines() if line.strip() and " ends with " not in line]
    rows = [word for word in (line.split()[0] for line in lines) if word in set("abcz")]
    assert output.count(" ends with the best loss") == 2
    assert rows == ["a", "b", "c", "a", "z"]
    comparison = ft.compare(*two_problems)
    assert comparison.frame["condition"].to_list() == [titles[0]] * 3 + [titles[1]] * 2
    assert comparison.frame["method"].to_list() == rows
    assert [line for line in repr(comparison).splitlines() if line in titles] == titles
    axes = comparison.plot().axes
    assert len(axes) == 6
    assert [axes[i].get_title().splitlines()[0] for i in (0, 3)] == titles
    drawn = [[line.get_label() for line in axes[i].get_lines()] for i in (0, 3)]
    assert drawn == [rows[:3], rows[3:]]


def absolute(outputs, targets):
    return (outputs.squeeze(-1) - targets).abs()


def test_the_test_loss_is_compared_if_there_is_no_other_test_metric(tested_runs):
    folder = tested_runs(loss="mse", model=nn.Linear(1, 1))
    conditions = arrange(load_runs([folder]))
    (groups,) = conditions.values()
    headings = [str(column.header) for column in comparison_table(groups).columns]
    assert headings[1:3] == ["test\nloss", "worst\ntenth"]
    rows = {row["method"]: row for row in compare_conditions(conditions).iter_rows(named=True)}
    for method in ("fedavg", "mifa"):
        clients = pl.read_parquet(folder / method / "clients.parquet")["test_loss"]
        assert rows[method]["test_loss"] == pytest.approx(last(folder, method, "test_loss"))
        assert rows[method]["client_test_loss_worst_tenth"] == pytest.approx(clients.max())
    assert (
        comparison_figure(conditions).axes[0].get_ylabel()
        == "test loss of the worst tenth of clients"
    )
    (section,) = make_report(load_runs([folder])).sections
    assert section.target.metric == "test_loss"
    drawn = [figure.name for figure in section.figures["learning"]]
    assert drawn == ["curves-test_loss", "curves-loss"]


def always(outputs, targets):
    return 0.0 * targets + 0.849


def test_own_metrics_that_are_shares_are_in_per_cent(tested_runs):
    metrics = {"balanced_accuracy": always}
    runs = load_runs([tested_runs(loss="mse", metrics=metrics)])
    table = comparison_table(*arrange(runs).values())
    cells = {str(column.header): next(iter(column.cells)) for column in table.columns}
    assert cells["test\nbalanced_accuracy %"] == cells["worst\ntenth %"] == "84.9"


@pytest.mark.parametrize(("loss", "text"), [(0.5, "not finite"), (np.nan, "diverged")])
def test_a_metric_may_be_infinite_in_runs_that_converge(loss, text):
    """As a relative error is where a target is 0."""
    column = Column("relative", "relative error")
    row = {"loss": loss, "relative": np.inf, "relative_std": np.nan, "seeds": 2}
    assert format_cell(row, column) == text
