"""The figures of published experiments, and the ticks of their logarithmic axes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedtide.papers import load, load_records
from fedtide.papers.paper_figure import draw_figure
from fedtide.papers.rows import compare
from fedtide.plotting.style import plain_logarithms

RECORDS = Path(__file__).parents[2] / "results"


def recorded(name):
    """Return an experiment with its recorded rows."""
    return load(name), compare(load(name), load_records(RECORDS, name), "paper")


def visible_labels(axis):
    """Return the tick labels within the view of a drawn axis."""
    low, high = sorted(axis.get_view_interval())
    ticks = zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=True)
    return [label.get_text() for place, label in ticks if low <= place <= high]


@pytest.mark.parametrize(
    ("low", "high", "some"),
    [
        (0.31, 0.39, "0.35"),
        (0.3, 30.0, "10"),
        (1e-40, 1.0, "1e\N{MINUS SIGN}34"),
    ],
)
def test_logarithmic_axis_has_a_few_plain_numbers(low, high, some):
    figure = Figure(figsize=(4, 3))
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    plain_logarithms(axes.yaxis)
    axes.set_ylim(low, high)
    figure.canvas.draw()
    labels = visible_labels(axes.yaxis)
    assert some in labels
    assert 2 <= len(set(labels)) == len(labels) <= 10


def test_figure_of_example_1_has_numbers_on_every_axis():
    """Its logarithmic axes span sixteen decades; rounding errors below 0 are not drawn."""
    figure = draw_figure(*recorded("003/example-1"))
    figure.canvas.draw()
    assert len(figure.axes) == 3
    for axes in figure.axes:
        assert len(visible_labels(axes.yaxis)) >= 2
        assert all(not (np.asarray(line.get_ydata()) <= 0).any() for line in axes.get_lines())


def test_the_band_around_a_curve_is_the_standard_error():
    """Values 1, 2 and 3 have the standard deviation 1, so the error of their mean is 1/√3."""
    paper, (row, *_) = recorded("003/example-1")
    metric, record = paper.figure["metric"], row.records[0]
    records = [
        replace(record, seed=seed, curve={"round": [0, 10], metric: [float(seed)] * 2})
        for seed in (1, 2, 3)
    ]
    axes = draw_figure(paper, [replace(row, records=tuple(records))]).axes[0]
    (band,) = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((2 - 3**-0.5, 2 + 3**-0.5))
