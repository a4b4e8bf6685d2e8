"""The probabilities against SciPy's `stats`, which the library does without."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedtide.auditing.statistics import distributions as laws

some = st.floats(0.01, 60)
degrees = st.floats(1, 500)


@given(z=st.floats(-8, 8), p=st.floats(1e-9, 0.999))
def test_normal(z: float, p: float) -> None:
    assert float(laws.normal_above(z)) == pytest.approx(stats.norm.sf(z))
    assert laws.normal_point(p) == pytest.approx(stats.norm.isf(p), abs=1e-12)


@given(x=some, above=degrees, below=degrees)
def test_chi2_f_and_student(x: float, above: float, below: float) -> None:
    assert laws.f_above(x, above, below) == pytest.approx(stats.f.sf(x, above, below), abs=1e-12)
    assert float(laws.chi2_above(x, above)) == pytest.approx(stats.chi2.sf(x, above), abs=1e-12)
    assert float(laws.student_above(x, above)) == pytest.approx(stats.t.sf(x, above), abs=1e-12)
    assert float(laws.student_point(0.025, above)) == pytest.approx(stats.t.isf(0.025, above))


@given(length=st.integers(4, 400), seed=st.integers(0, 2**32 - 1))
def test_runs(length: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    ones = random.integers(2, length - 1, size=20, endpoint=True).clip(2, length - 1)
    found = (1 + random.random(20) * (np.minimum(ones, length - ones + 1) - 1)).round()
    law = stats.hypergeom(length, length - ones + 1, ones)
    expected = 2 * np.minimum(law.cdf(found), law.sf(found - 1))
    got = laws.runs_two_sided(found, ones.astype(float), length)
    np.testing.assert_allclose(got, np.minimum(expected, 1), rtol=1e-6, atol=1e-12)


def test_many_runs_are_normal() -> None:
    """Where the variance is above 400 the tails agree to a few parts in a hundred."""
    ones, length = np.full(5, 4000.0), 10_000
    found = 2400 + np.array([-60.0, -20.0, 0.0, 20.0, 60.0])
    law = stats.hypergeom(length, length - 4000 + 1, 4000)
    expected = np.minimum(1, 2 * np.minimum(law.cdf(found), law.sf(found - 1)))
    got = laws.runs_two_sided(found, ones, length)
    np.testing.assert_allclose(got, expected, rtol=0.05)
