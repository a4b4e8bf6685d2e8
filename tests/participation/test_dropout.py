"""Dropout models."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedtide.participation import RandomDropout


@given(seed=st.integers(0, 2**40), t=st.integers(0, 10**6), ids=st.sets(st.integers(0, 99)))
def test_dropout_is_a_function_of_client_and_round(seed: int, t: int, ids: set[int]) -> None:
    clients = np.array(sorted(ids), dtype=np.int64)
    all_clients = RandomDropout(0.4).draw_mask(seed, t, np.arange(100))
    np.testing.assert_array_equal(
        RandomDropout(0.4).draw_mask(seed, t, clients), all_clients[clients]
    )


def test_dropout_frequency() -> None:
    """Binomial over clients and over rounds, each wrong with probability 1e-6."""
    masks = np.array([RandomDropout(0.2).draw_mask(1, t, np.arange(300)) for t in range(300)])
    assert stats.binomtest(int(masks.sum()), masks.size, 0.8).pvalue > 1e-6
    both = masks[1:] & masks[:-1]
    assert stats.binomtest(int(both.sum()), int(masks[:-1].sum()), 0.8).pvalue > 1e-6
