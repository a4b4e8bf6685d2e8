"""Results: several seeds, their tables, summaries and figures."""

import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import safetensors.torch
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from torch import nn

import fedtide as ft
from fedtide.callbacks import Callback
from fedtide.simulation.api import simulate

SEEDS = [4, 2, 7]


@pytest.fixture
def fields(regression):
    return {key: value for key, value in regression.items() if key != "seed"}


def test_several_seeds_are_the_runs_of_each(fields):
    results = ft.simulate(**fields, seeds=SEEDS)
    assert isinstance(results, ft.Results)
    assert results.seeds == SEEDS
    assert len(results) == 3
    for seed, result in zip(SEEDS, results, strict=True):
        alone = ft.simulate(**fields, seed=seed)
        assert result.model.tobytes() == alone.model.tobytes()
        rows = results.metrics.filter(pl.col("seed") == seed)
        assert rows.drop("seed").equals(alone.metrics)


def test_seeds_in_a_folder_have_a_run_folder_each_and_resume(fields, tmp_path, killed_at):
    out = tmp_path / "runs"
    killed_at(7, fields, out, seeds=SEEDS)
    with pytest.raises(ft.InvalidInputError, match=r"^out: .*seed-4 is not empty; "):
        ft.simulate(**fields, seeds=SEEDS, out=out)
    assert sorted(path.name for path in out.iterdir()) == ["seed-4"]
    resumed = ft.simulate(**fields, seeds=SEEDS, out=out, resume=True)
    assert sorted(path.name for path in out.iterdir()) == ["seed-2", "seed-4", "seed-7"]
    assert resumed.metrics.equals(ft.simulate(**fields, seeds=SEEDS).metrics)
    assert [result.out for result in resumed] == [out / f"seed-{seed}" for seed in SEEDS]


@pytest.mark.parametrize("seeds", ["123", [], [1, 1], [0.5], [-1], [True], [[1]]])
def test_seeds_that_are_not_different_numbers_are_refused(seeds, fields):
    with pytest.raises(ft.InvalidInputError, match=r"^seeds: "):
        ft.simulate(**fields, seeds=seeds)


def test_seed_and_seeds_exclude_each_other(fields):
    with pytest.raises(ft.InvalidInputError, match=r"^seed: .*seeds"):
        ft.simulate(**fields, seed=3, seeds=[1, 2])


def test_the_summary_of_seeds_has_means_and_standard_deviations(fields):
    results = ft.simulate(**fields, name="mine", seeds=SEEDS)
    losses = np.array([result.metrics["loss"][-1] for result in results])
    lines = results.summary().splitlines()
    assert lines[0] == "mine: FedAvg, seeds 4, 2, 7"
    (line,) = [line for line in lines if line.split()[0] == "loss"]
    assert line.split()[1:] == [f"{losses.mean():.4g}", "±", f"{losses.std(ddof=1):.2g}"]


@pytest.mark.filterwarnings("error")
def test_the_summary_of_seeds_that_diverged_has_no_spread():
    results = ft.simulate(
        problem={"type": "quadratic", "matrices": [[[1.0]]], "centers": [[0.0]], "start": [5.0]},
        participation="full",
        algorithm="fedavg",
        local={"steps": 2, "lr": 1e12},
        rounds=2,
        on_nonfinite="drop",
        seeds=[1, 2],
    )
    assert re.search(r"^  loss +inf$", results.summary(), re.MULTILINE)


UNEVEN = ["round", "test_accuracy", "test_balanced_accuracy"]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_metrics_of_some_seeds_are_means_over_these(order, fields):
    """As the balanced accuracy, which only uneven test sets have."""
    values = [[[1, 0.5, 0.25], [2, 0.75, 0.5]], [[1, 0.5], [2, 0.25]], [[1, 0.5, 0.5], [2, 0.5, 1]]]
    tables = [pl.DataFrame(rows, UNEVEN[: len(rows[0])], orient="row") for rows in values]
    runs = ft.simulate(**fields, seeds=[1, 2, 3])
    results = ft.Results([replace(runs[i], metrics=tables[i]) for i in order])
    lines = {line.split()[0]: line.split()[1:] for line in results.summary().splitlines()[1:]}
    assert lines["test_accuracy"] == ["0.5", "±", "0.25"]
    assert lines["test_balanced_accuracy"] == ["0.75", "±", "0.35", "(2", "of", "3", "seeds)"]
    panel = results.plot("test_balanced_accuracy").axes[0]
    np.testing.assert_allclose(panel.lines[0].get_ydata(), [0.375, 0.75])
    assert panel.get_title().endswith("over 2 seeds")
    np.testing.assert_allclose(results.plot().axes[0].lines[0].get_ydata(), [0.5, 0.5])
    with pytest.raises(ft.InvalidInputError, match=r"^metric: .*'losss'"):
        results.plot("losss")


def test_the_summary_of_a_run_names_its_method_metrics_speed_and_trainer(regression):
    result = ft.simulate(**regression)
    text = result.summary()
    assert repr(text) == text
    assert text.splitlines()[0] == "FedAvg, seed 3, 12 rounds"
    assert f"loss                     {result.metrics['loss'][-1]:.4g}" in text
    assert "rounds/s, trainer reference, as requested" in text


def test_the_representation_of_a_result_is_one_line_without_arrays(fields):
    results = ft.simulate(**fields, seeds=[1])
    loss = results[0].metrics["loss"][-1]
    assert repr(results[0]) == f"Result(FedAvg, 12 rounds: loss {loss:.4g})"
    assert repr(results) == "Results(FedAvg, seeds 1)"


def test_a_stopped_run_says_so(regression):
    class Stop(Callback):
        def on_evaluation(self, run):
            if run.round == 5:
                run.stop("enough")

    result = ft.simulate(**regression, callbacks=[Stop()])
    assert repr(result).startswith("Result(FedAvg, 5 of 12 rounds: ")
    assert "stopped early: enough" in result.summary()


def test_a_figure_shows_the_values_of_a_metric(fields):
    results = ft.simulate(**fields, seeds=SEEDS)
    single, several = results[0].plot(), results.plot("participation_loss")
    assert isinstance(single, Figure)
    (line,) = single.axes[0].lines
    assert line.get_ydata() == pytest.approx(results[0].metrics["loss"].to_numpy())
    (line,) = several.axes[0].lines
    means = results.metrics.group_by("round").agg(pl.col("participation_loss").mean()).sort("round")
    np.testing.assert_allclose(line.get_ydata(), means["participation_loss"].to_numpy())
    with pytest.raises(ft.InvalidInputError, match=r"^metric: .*'losss'; did you mean 'loss'"):
        results.plot("losss")


@pytest.mark.parametrize(
    ("metric", "values", "percent"),
    [
        ("test_accuracy", [0.2, 0.9], True),
        ("client_test_recall_p10", [0.2, 0.9], True),
        ("test_accuracy_in_points", [20.0, 90.0], False),
        ("loss", [0.9, 0.2], False),
    ],
)
def test_a_figure_shows_shares_in_per_cent(metric, values, percent, regression):
    result = ft.simulate(**regression)
    metrics = pl.DataFrame({"round": [1, 2], metric: values})
    axis = replace(result, metrics=metrics).plot(metric).axes[0].yaxis
    assert isinstance(axis.get_major_formatter(), PercentFormatter) == percent


def test_an_audit_of_a_result_says_where_its_log_is(fields):
    result = ft.simulate(**fields)
    with pytest.raises(ft.InvalidInputError, match=r"^log: .*audit\(result\.participation, cl"):
        ft.audit(result)
    assert ft.audit(result.participation, clients=len(result.clients)).log.length == 12


def test_a_problem_without_a_network_has_no_module(regression):
    with pytest.raises(ft.InvalidInputError, match=r"^problem: it has no network"):
        ft.simulate(**regression).module()


def test_the_signatures_of_simulate_agree():
    """Those for type checkers have the arguments of the function itself."""
    import inspect
    from typing import get_overloads

    from fedtide.simulation.api import _Arguments

    own = set(inspect.signature(simulate).parameters) - {"seeds"}
    assert own == set(_Arguments.__annotations__)
    assert len(get_overloads(simulate)) == 2


@pytest.fixture
def network():
    """Return the fields of a run of a network with tied, frozen and running values."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
    table = {"x": x, "y": y}
    problem = ft.problems.Supervised(
        train=table,
        test=table,
        inputs="x",
        target="y",
        clients=6,
        partition=ft.problems.Iid(),
        model=make,
    )
    return {
        "problem": problem,
        "participation": "full",
        "algorithm": "fedavg",
        "local": {"steps": 3, "lr": 0.1, "batch_size": 8},
        "rounds": 3,
        "trainer": "reference",
    }


def make():
    """Return a small network with all kinds of values."""
    tied = nn.Linear(4, 4)
    frozen = nn.Linear(4, 4)
    frozen.requires_grad_(False)
    return nn.Sequential(tied, nn.BatchNorm1d(4), nn.Tanh(), tied, frozen, nn.Linear(4, 2))


def test_the_trained_network_comes_back_and_its_file_loads(network, tmp_path):
    result = ft.simulate(**network, out=tmp_path / "run")
    module = result.module()
    inputs = torch.from_numpy(network["problem"].train["x"])
    labels = torch.from_numpy(network["problem"].train["y"])
    right = (module(inputs).argmax(1) == labels).double().mean()
    assert result.metrics["test_accuracy"][-1] == pytest.approx(float(right))
    fresh = make().eval()
    fresh.load_state_dict(safetensors.torch.load_file(tmp_path / "run" / "model.safetensors"))
    assert torch.equal(fresh(inputs), module(inputs))
    again = ft.simulate(**network, out=tmp_path / "run", resume=True)
    assert torch.equal(again.module()(inputs), module(inputs))
