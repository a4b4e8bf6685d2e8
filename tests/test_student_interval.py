"""Student's interval of a mean, against `scipy.stats`, which the library avoids importing."""

import numpy as np
import pytest
from scipy import stats

from fedtide.student_interval import t_margin


@pytest.mark.parametrize("seeds", [2, 5])
@pytest.mark.parametrize("level", [0.95, 0.99])
def test_margin_is_that_of_scipy(seeds, level):
    values = np.random.default_rng(seeds).normal(3.0, 2.0, seeds)
    low, high = stats.t.interval(level, seeds - 1, values.mean(), stats.sem(values))
    assert values.mean() - t_margin(values, level) == pytest.approx(low)
    assert values.mean() + t_margin(values, level) == pytest.approx(high)


def test_margins_of_several_quantities_are_those_of_each():
    values = np.random.default_rng(1).normal(size=(4, 3))
    assert t_margin(values) == pytest.approx([float(t_margin(v)) for v in values.T])
