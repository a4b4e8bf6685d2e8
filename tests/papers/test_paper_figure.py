"""The figures of published experiments, and the ticks of their logarithmic axes."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedtide.papers import load, load_records
from fedtide.papers.paper_figure import draw_figure
from fedtide.papers.rows import compare

RECORDS = Path(__file__).parents[2] / "results"


def recorded(name):
    """Return an experiment with its recorded rows."""
    return load(name), compare(load(name), load_records(RECORDS, name), "paper")


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
