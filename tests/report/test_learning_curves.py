"""Learning curves: axes that show every value of a metric, whatever its range."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from matplotlib.ticker import PercentFormatter

from fedtide.plotting.curves import scale_values
from fedtide.plotting.style import method_styles, new_figure
from fedtide.report.figures.learning_curves import (
    client_figures,
    draw_curves,
)
from fedtide.report.figures.participation_raster import participation_figures
from fedtide.report.loading import LoadedRun, load_runs
from fedtide.simulation.run_folder import RunFolder


def run_with(metric, values, is_lower, seed=0):
    """Return a run that was evaluated after every round."""
    metrics = pl.DataFrame({"round": range(1, len(values) + 1), metric: values})
    experiment = {"name": "m", "seed": seed, "rounds": len(values)}
    return LoadedRun(
        RunFolder("none"), experiment, metrics, pl.DataFrame(), 1.0, len(values), {metric: is_lower}
    )


def drawn(metric, *curves, is_lower):
    """Return the panel with one method per curve."""
    groups = {f"m{i}": [run_with(metric, curve, is_lower)] for i, curve in enumerate(curves)}
    _, (panel,) = new_figure(3.0)
    draw_curves(panel, groups, metric, method_styles(groups))
    scale_values([panel], metric, is_lower)
    return panel


def is_in_percent(panel):
    return isinstance(panel.yaxis.get_major_formatter(), PercentFormatter)


@pytest.mark.parametrize(
    ("metric", "curves", "is_lower"),
    [
        ("test_points", [[-3.0, 20.0, 95.0]], False),
        ("test_energy", [[-1.0, -20.0, -35.0], [5.0, 4.0, 3.0]], True),
        ("test_mae", [[3.0, 1.0, 0.0]], True),
    ],
)
def test_every_value_of_an_own_metric_is_within_the_axes(metric, curves, is_lower):
    panel = drawn(metric, *curves, is_lower=is_lower)
    low, high = panel.get_ylim()
    assert low <= np.min(curves)
    assert high >= np.max(curves)
    assert not is_in_percent(panel)


def test_a_band_on_a_logarithmic_axis_and_the_axis_end_at_the_data():
    """A mean of 1 ± 1.56 over two seeds ended far below both."""
    group = [run_with("loss", [2.0, loss], True, seed) for seed, loss in enumerate([0.4, 2.0])]
    _, (panel,) = new_figure(3.0)
    draw_curves(panel, {"m": group}, "loss", method_styles(["m"]))
    scale_values([panel], "loss", is_lower=True)
    band = panel.collections[0].get_paths()[0].vertices[:, 1]
    assert band.min() == 0.4
    low, high = np.log(panel.get_ylim())
    assert low > np.log(0.4) - 0.1 * (high - low)


def distribution(*seeds):
    """Return the line of the figure of clients with these losses, one list per seed."""
    group = [
        replace(
            run_with("loss", [1.0], True, seed),
            clients=pl.DataFrame(
                {"participation": np.linspace(0.1, 1, len(losses)), "loss": losses}
            ),
        )
        for seed, losses in enumerate(seeds)
    ]
    found = client_figures({"m": group}, method_styles(["m"]))
    (figure,) = [one.figure for one in found if one.name == "clients-spread"]
    (line,) = figure.axes[0].lines
    assert line.get_drawstyle() == "steps-post"
    return line.get_xdata(), line.get_ydata()


def test_the_distribution_is_the_share_of_clients_that_are_at_most_a_value():
    losses = [3.0, 1.0, 2.0, 2.0, 7.0]
    x, y = distribution(losses)
    assert (x[0], y[0]) == (1.0, 0.0)
    for value in (*losses, 1.5, 6.9):
        drawn = y[np.flatnonzero(x <= value)[-1]]
        assert drawn == pytest.approx(np.mean(np.array(losses) <= value))


def test_methods_of_which_a_run_has_no_value_of_the_clients_are_not_drawn():
    nothing, some = [np.nan, np.nan], [1.0, np.nan]
    tables = {"lost": [some, nothing], "kept": [some, some]}
    groups = {
        method: [
            replace(
                run_with("loss", [1.0], is_lower=True, seed=seed),
                clients=pl.DataFrame({"participation": [0.5, 0.2], "loss": losses}),
            )
            for seed, losses in enumerate(seeds)
        ]
        for method, seeds in tables.items()
    }
    for one in client_figures(groups, method_styles(groups)):
        assert [line.get_label() for line in one.figure.axes[0].lines] == ["kept"]
    lost = {"lost": groups["lost"]}
    assert client_figures(lost, method_styles(lost)) == []


@pytest.mark.parametrize("rate", [1 / 3, 0.0])
def test_clients_of_one_rate_are_one_dot(rate):
    """Ten arbitrary groups at one rate were a vertical zigzag."""
    losses = np.random.default_rng(0).random(50)
    clients = pl.DataFrame({"participation": [rate] * 40 + [0.5] * 10, "loss": losses})
    run = run_with("loss", [1.0], is_lower=True)
    groups = {"m": [replace(run, clients=clients, ended=9), replace(run, clients=clients, ended=9)]}
    (line,) = client_figures(groups, method_styles(groups))[0].figure.axes[0].lines
    dots = sorted([(max(rate, 0.5 / 9), losses[:40].mean()), (0.5, losses[40:].mean())])
    assert line.get_xydata() == pytest.approx(np.array(dots))


def test_cohort_sizes_cover_every_round(runs_folder):
    length = 40
    (run,) = load_runs([runs_folder / "fedavg" / "seed-1"])
    log = pl.read_parquet(run.folder.participation).filter(pl.col("round") < length)
    used = log.filter(pl.col("stage") == "used")["round"].to_list()
    run = replace(run, participation=log, ended=length)
    (figure,) = [f for f in participation_figures({"m": [run]}) if f.name == "cohorts-0"]
    (panel,) = figure.figure.axes
    (line,) = panel.lines
    assert line.get_drawstyle() == "steps-post"
    assert line.get_xdata() == pytest.approx(range(length + 1))
    assert line.get_ydata()[:-1] == pytest.approx([used.count(t) for t in range(length)])
    assert panel.get_xlim() == (0, length)
