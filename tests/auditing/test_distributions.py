"""Tail probabilities against `scipy.stats`, which the library avoids importing."""

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
