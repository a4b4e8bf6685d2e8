"""Learning curves: axes that show every value of a metric, whatever its range."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from matplotlib.ticker import PercentFormatter

from fedtide.plotting.style import method_styles, new_figure
from fedtide.report.figures.learning_curves import client_figures, draw_curves
from fedtide.report.loading import LoadedRun
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
    return panel


def is_in_percent(panel):
    return isinstance(panel.yaxis.get_major_formatter(), PercentFormatter)


@pytest.mark.parametrize(
    ("metric", "curves", "is_lower"),
    [
        ("test_points", [[-3.0, 20.0, 95.0]], False),
        ("test_log_likelihood", [[-9.0, -4.0, -2.0], [-8.0, -3.0, -1.0]], False),
        ("test_accuracy_in_points", [[12.0, 60.0, 91.0]], False),
        ("test_nll", [[2.0, 0.5, -1.5]], True),
        ("test_energy", [[-1.0, -20.0, -35.0], [5.0, 4.0, 3.0]], True),
        ("test_mae", [[900.0, 30.0, 0.2]], True),
        ("test_mae", [[3.0, 1.0, 0.0]], True),
    ],
)
def test_every_value_of_an_own_metric_is_within_the_axes(metric, curves, is_lower):
    panel = drawn(metric, *curves, is_lower=is_lower)
    low, high = panel.get_ylim()
    assert low <= np.min(curves)
    assert high >= np.max(curves)
    assert not is_in_percent(panel)


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


def test_distributions_of_seeds_are_averaged_client_by_client():
    x, y = distribution([4.0, 1.0, 2.0, 9.0], [5.0, 3.0, 0.0, 1.0], [2.0, float("nan"), 6.0, 2.0])
    np.testing.assert_allclose(y, [0, 0.25, 0.5, 0.75, 1])
    expected = np.mean([[1, 2, 4, 9], [0, 1, 3, 5], [2, 2, 6, 6]], axis=0)  # quantiles of three
    np.testing.assert_allclose(x, [expected[0], *expected])


def test_distributions_of_many_clients_keep_their_shares():
    losses = np.random.default_rng(0).normal(size=5000)
    x, y = distribution(losses)
    assert len(x) <= 401
    for value, share in zip(x[1:], y[1:], strict=True):
        assert share == pytest.approx(np.mean(losses <= value))


@pytest.mark.parametrize(
    ("values", "scale"),
    [([2.0, 1.0, 0.1], "log"), ([2.0, 1.0, 0.0], "linear"), ([2.0, 1.0, -0.1], "linear")],
)
def test_errors_have_a_logarithmic_axis_if_all_are_positive(values, scale):
    assert drawn("test_mae", values, is_lower=True).get_yscale() == scale


@pytest.mark.parametrize(("values", "percent"), [([0.1, 0.7, 0.9], True), ([10, 70, 90], False)])
def test_shares_are_shown_in_per_cent_and_end_at_1(values, percent):
    panel = drawn("test_accuracy", values, is_lower=False)
    assert is_in_percent(panel) == percent
    assert (panel.get_ylim()[1] <= 1.0) == percent


@pytest.mark.parametrize("values", [[0.1, 0.9], [0.7, 0.78], [0.72, 0.726], [0.9551, 0.9552]])
def test_labels_in_per_cent_say_where_their_ticks_are(values):
    panel = drawn("test_accuracy", values, is_lower=False)
    panel.figure.canvas.draw()
    ticks = panel.get_yticks()
    labels = [label.get_text() for label in panel.get_yticklabels()]
    shown = [float(label.removesuffix("%")) / 100 for label in labels]
    assert shown == pytest.approx(ticks, rel=0, abs=1e-9)
