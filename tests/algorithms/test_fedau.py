"""FedAU's weights against Algorithm 2, and what the weights are for."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtide.algorithms import ClientUpdates, FedAU, FedAvg
from fedtide.population import Population

from . import references as ref
from .driver import Quadratics, drive

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


P = np.array([0.9, 0.5, 0.25])
LINE = Quadratics(np.ones((3, 1, 1)) * [[[1.0]], [[2.0]], [[1.5]]], np.array([[0.0], [1.0], [4.0]]))


def _time_average(method, scale, rounds=2000, lr=0.05):
    """The mean iterate of the second half under Bernoulli(P), from x_0 = 1."""
    came = np.random.default_rng(8).random((rounds, 3)) < P
    return drive(method, LINE, came * scale, lr, start=np.ones(1)).iterates[rounds // 2 :].mean()


def test_constant_weights_minimise_the_wrong_sum():
    """Theorem 1: the limit minimises Σ ω_n p_n F_n.

    With one local step, E[x_{t+1} | x_t] = x_t - γ Σ ω_n p_n F_n'(x_t) / N, and the mean of T
    iterates is normal around the minimiser with standard error σ / (h √T), σ² the variance of one
    round's step (over γ²) and h the curvature of the sum; 5 of them fail with probability 6e-7.
    """
    omega = np.array([1.0, 3.0, 0.5])
    mean = _time_average(FedAvg(weights="given"), omega / 3)

    target = LINE.optimum(omega * P)[0]
    slopes = LINE.A[:, 0, 0] * (target - LINE.e[:, 0]) * omega / 3
    sigma = math.sqrt((slopes**2 * P * (1 - P)).sum())
    error = sigma / (LINE.A[:, 0, 0] @ (omega * P / 3) * math.sqrt(1000))
    assert abs(mean - target) < 5 * error
    assert abs(LINE.optimum()[0] - target) > 10 * error


def test_fedau_reaches_the_optimum_that_averaging_misses():
    """The mean of the last 1000 iterates has a standard error of 0.042 as above with ω = 1 / p. The
    estimates of ω have one of 6 % at most (from 1000 rounds and more), which moves the minimiser by
    0.042. Together that is 0.06; 5 of them fail with probability 6e-7."""
    optimum = LINE.optimum()[0]
    assert abs(_time_average(FedAU(cutoff=None), 1.0) - optimum) < 0.3
    assert abs(_time_average(FedAvg(weights="all"), 1.0) - optimum) > 0.5
