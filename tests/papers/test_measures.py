"""Measures of a run, against values computed by hand."""

import polars as pl
import pytest

from fedtide.papers.measures import Measure

METRICS = pl.DataFrame(
    {"round": [0, 10, 20, 30, 40], "loss": [4.0, 2.0, 1.0, 0.5, 0.75], "share": [0.1] * 5}
)


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({}, 0.75),
        ({"take": "best"}, 0.5),
        ({"take": "best", "better": "higher"}, 4.0),
        ({"take": "mean", "rounds": 20}, 0.625),
        ({"take": "mean", "rounds": 21}, 0.75),
        ({"take": "spread", "rounds": 20}, 0.125),
        ({"take": "first-below", "target": 1.0}, 20),
        ({"take": "first-above", "target": 4.0}, 0),
        ({"take": "first-below", "target": 0.1}, None),
        ({"percent": True}, 75.0),
    ],
)
def test_measure_of_a_run(fields, value):
    assert Measure("loss", **fields).read(METRICS) == value


def test_worst_of_last_is_a_quantile_of_the_last_tenth():
    """The last 20 of 200 evaluations are 0..19: 90 % are at least 1.9, and 90 % at most 17.1."""
    frame = pl.DataFrame({"round": range(200), "m": [1e3] * 180 + list(range(20))})
    high = Measure("m", take="worst-of-last", better="higher").read(frame)
    low = Measure("m", take="worst-of-last", better="lower").read(frame)
    assert (high, low) == (pytest.approx(1.9), pytest.approx(17.1))
