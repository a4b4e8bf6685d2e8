"""FedAU's weights against Algorithm 2, and what the weights are for."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtide.algorithms import ClientUpdates, FedAU
from fedtide.population import Population

from . import references as ref

PATTERNS = st.integers(1, 60).flatmap(
    lambda T: st.lists(
        st.lists(st.booleans(), min_size=3, max_size=3) | st.just([False] * 3),
        min_size=T,
        max_size=T,
    )
)
CUTOFFS = st.one_of(st.none(), st.integers(1, 12))


def weights_of_every_round(method, present):
    """ω before each round and after the last, (T + 1, N), chunk by chunk."""
    N = len(present[0])
    state = method.init(torch.zeros(1), Population(N))
    omegas = [method.omega(state, torch.arange(N))]
    for came in present:
        for n in np.flatnonzero(came)[::-1]:
            one = torch.ones(1)
            report = ClientUpdates(torch.tensor([n]), one, one[:, None], 0.1, one)
            state = method.absorb(state, report)
        state, _ = method.step(state, 0.1)
        omegas.append(method.omega(state, torch.arange(N)))
    return torch.stack(omegas).numpy()


def per_client(algorithm, present, *args):
    columns = [algorithm([row[n] for row in present], *args) for n in range(len(present[0]))]
    return np.array(columns).T


@given(PATTERNS, CUTOFFS)
@settings(max_examples=50)
def test_the_weights_are_those_of_algorithm_2(present, cutoff):
    expected = per_client(ref.algorithm_2, present, cutoff or math.inf)
    lazy = weights_of_every_round(FedAU(cutoff=cutoff), present)
    np.testing.assert_allclose(lazy, expected, rtol=1e-12)


@given(PATTERNS, CUTOFFS, st.floats(0.01, 0.99))
@settings(max_examples=50)
def test_decayed_weights_are_those_of_the_round_by_round_form(present, cutoff, decay):
    expected = per_client(ref.algorithm_2_decayed, present, cutoff or math.inf, decay)
    lazy = weights_of_every_round(FedAU(cutoff=cutoff, average=decay), present)
    np.testing.assert_allclose(lazy, expected, rtol=1e-9)


@given(PATTERNS, CUTOFFS)
@settings(max_examples=50)
def test_groups_share_the_mean_over_the_intervals_of_all_members(present, cutoff):
    groups = ["a", "b", "a"]
    expected = ref.algorithm_2_pooled(present, cutoff or math.inf, groups)
    lazy = weights_of_every_round(FedAU(cutoff=cutoff, groups=groups), present)
    np.testing.assert_allclose(lazy, expected, rtol=1e-12)


@pytest.mark.statistical
@pytest.mark.parametrize(("active", "inactive", "cutoff"), [(3, 7, 4), (1, 9, 50), (2, 8, 1)])
def test_the_weight_of_a_cyclic_client_approaches_the_closed_form(active, inactive, cutoff):
    """(a + b) / ((a - 1) + ceil((b + 1) / K)), papers' note to section 2A."""
    present = [[k % (active + inactive) < active] for k in range(2000)]
    omega = weights_of_every_round(FedAU(cutoff=cutoff), present)[-1, 0]
    closed = (active + inactive) / (active - 1 + math.ceil((inactive + 1) / cutoff))
    assert omega == pytest.approx(closed, rel=0.01)


@pytest.mark.statistical
def test_the_weight_of_an_independent_client_approaches_the_closed_form():
    """(1 - (1 - p)^K) / p for p = 0.2, K = 6. With 20,000 rounds, intervals of mean ω and a
    standard deviation below ω, the mean of more than 5,000 of them is off by 5 standard errors
    (7 %) with probability below 1e-6."""
    came = np.random.default_rng(3).random((20_000, 1)) < 0.2
    omega = weights_of_every_round(FedAU(cutoff=6), came)[-1, 0]
    assert omega == pytest.approx((1 - 0.8**6) / 0.2, rel=0.07)
