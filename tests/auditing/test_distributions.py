"""Tail probabilities against `scipy.stats`, which the library avoids importing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedtide.auditing.statistics import distributions

positive = st.floats(0.01, 60)
degrees = st.floats(1, 500)


@given(z=st.floats(-8, 8), p=st.floats(1e-9, 0.999))
def test_normal_tails_match_scipy(z: float, p: float) -> None:
    assert float(distributions.normal_sf(z)) == pytest.approx(stats.norm.sf(z))
    assert distributions.normal_isf(p) == pytest.approx(stats.norm.isf(p), abs=1e-12)


@given(x=positive, freedom=degrees)
def test_chi2_and_student_tails_match_scipy(x: float, freedom: float) -> None:
    assert float(distributions.chi2_sf(x, freedom)) == pytest.approx(
        stats.chi2.sf(x, freedom), abs=1e-12
    )
    assert float(distributions.student_t_sf(x, freedom)) == pytest.approx(
        stats.t.sf(x, freedom), abs=1e-12
    )
    assert float(distributions.student_t_isf(0.025, freedom)) == pytest.approx(
        stats.t.isf(0.025, freedom)
    )


@given(length=st.integers(4, 400), seed=st.integers(0, 2**32 - 1))
def test_runs_p_value_is_hypergeometric(length: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    ones = random.integers(2, length - 1, size=20, endpoint=True).clip(2, length - 1)
    found = (1 + random.random(20) * (np.minimum(ones, length - ones + 1) - 1)).round()
    law = stats.hypergeom(length, length - ones + 1, ones)
    expected = 2 * np.minimum(law.cdf(found), law.sf(found - 1))
    got = distributions.runs_p_value(found, ones.astype(float), length)
    np.testing.assert_allclose(got, np.minimum(expected, 1), rtol=1e-6, atol=1e-12)


def test_runs_p_value_is_nearly_exact_where_normal() -> None:
    """Above a variance of 400 the tails agree to 5%."""
    ones, length = np.full(5, 4000.0), 10_000
    found = 2400 + np.array([-60.0, -20.0, 0.0, 20.0, 60.0])
    law = stats.hypergeom(length, length - 4000 + 1, 4000)
    expected = np.minimum(1, 2 * np.minimum(law.cdf(found), law.sf(found - 1)))
    got = distributions.runs_p_value(found, ones, length)
    np.testing.assert_allclose(got, expected, rtol=0.05)
