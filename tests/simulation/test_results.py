"""Results: several seeds, their tables, summaries and figures."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import safetensors.torch
import torch
from matplotlib.figure import Figure
from torch import nn

import fedtide as ft
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


def test_the_summary_of_seeds_has_means_and_standard_deviations(fields):
    results = ft.simulate(**fields, name="mine", seeds=SEEDS)
    losses = np.array([result.metrics["loss"][-1] for result in results])
    assert f"{losses[0]:.4g}" in results[0].summary()
    assert f"{losses[0]:.4g}" in repr(results[0])
    lines = results.summary().splitlines()
    assert lines[0] == "fedavg, seeds 4, 2, 7"
    (line,) = [line for line in lines if line.split()[0] == "loss"]
    assert line.split()[1:] == [f"{losses.mean():.4g}", "±", f"{losses.std(ddof=1):.2g}"]


UNEVEN = ["round", "test_accuracy", "test_balanced_accuracy"]


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 0, 2]])
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


def test_the_signatures_of_simulate_agree():
    """Those for type checkers have the arguments of the function itself."""
    import inspect
    from typing import get_overloads

    from fedtide.simulation.api import _Arguments

    own = set(inspect.signature(simulate).parameters) - {"seeds"}
    assert own == set(_Arguments.__annotations__)
    assert len(get_overloads(simulate)) == 2


def make():
    """Return a small network with tied, frozen and running values."""
    tied, frozen = nn.Linear(4, 4), nn.Linear(4, 4)
    frozen.requires_grad_(False)
    return nn.Sequential(tied, nn.BatchNorm1d(4), nn.Tanh(), tied, frozen, nn.Linear(4, 2))


def test_the_trained_network_comes_back_and_its_file_loads(regression, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    table = {"x": x, "y": (x[:, 0] + x[:, 1] > 0).astype(np.int64)}
    problem = ft.problems.Supervised(
        table, test=table, clients=6, partition=ft.problems.Iid(), model=make
    )
    fields = regression | {"problem": problem, "out": tmp_path / "run"}
    result = ft.simulate(**fields)
    module, inputs = result.module(), torch.from_numpy(x)
    right = (module(inputs).argmax(1) == torch.from_numpy(table["y"])).double().mean()
    assert result.metrics["test_accuracy"][-1] == pytest.approx(float(right))
    fresh = make().eval()
    fresh.load_state_dict(safetensors.torch.load_file(tmp_path / "run" / "model.safetensors"))
    assert torch.equal(fresh(inputs), module(inputs))
    again = ft.simulate(**fields, resume=True)
    assert torch.equal(again.module()(inputs), module(inputs))
