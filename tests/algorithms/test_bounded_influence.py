"""What clipping, trimmed means and medians promise: how far one client can move the model."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtide as ft
from fedtide import algorithms as a
from fedtide.algorithms import ClientUpdates, RoundDriver
from fedtide.population import Population
from fedtide.report.loading import load_runs
from fedtide.report.weight_replay import history

HUGE = 1e30


def updates(clients, deltas, dtype=torch.float64):
    """Return the updates of these clients, (S, d)."""
    ids = torch.tensor(clients)
    rows = torch.as_tensor(np.asarray(deltas), dtype=dtype)
    return ClientUpdates(
        ids, torch.full((len(ids),), 1 / len(ids), dtype=dtype), rows, 0.1, ids + 1
    )


def driven(method, rounds, clients, d=1, dtype=torch.float64):
    """Return the driver after rounds of (clients, deltas), and what the last round did."""
    driver = RoundDriver(method, torch.zeros(d, dtype=dtype), Population(clients))
    info = None
    for ids, deltas in rounds:
        if len(ids):
            driver.absorb(updates(ids, deltas, dtype))
        info = driver.step(0.1)
    return driver, info


def total_weight(inner, rounds, clients, d):
    """Return the sum of the inner method's own weights in the last round."""
    return float(driven(inner, rounds, clients, d)[1].weights.sum())


@given(seed=st.integers(0, 2**32 - 1), honest=st.integers(3, 9), hostile=st.integers(1, 3))
@settings(max_examples=15)
def test_hostile_clients_cannot_take_a_coordinate_beyond_the_honest_ones(seed, honest, hostile):
    """Whatever they send, and however much weight FedAU gives them for having been away."""
    rng, size = np.random.default_rng(seed), honest + hostile
    if hostile >= honest:
        return
    away = [[n for n in range(honest) if rng.random() < 0.8] for _ in range(6)]
    before = [(ids, np.zeros((len(ids), 4))) for ids in away]
    deltas = rng.normal(size=(size, 4))
    deltas[honest:] = rng.choice([-HUGE, -3.0, 0.0, 3.0, HUGE], size=(hostile, 4))
    order = rng.permutation(size)
    rounds = [*before, (order.tolist(), deltas[order])]
    low, high = deltas[:honest].min(axis=0), deltas[:honest].max(axis=0)
    for inner in (a.FedAvg(), a.FedAU()):
        total = total_weight(inner, rounds, size, 4)
        for method in (a.TrimmedMean(trim=hostile / size, inner=inner), a.Median(inner)):
            direction = driven(method, rounds, size, 4)[1].direction.numpy()
            slack = 1e-12 * total
            assert (direction >= total * low - slack).all()
            assert (direction <= total * high + slack).all()


def test_a_client_does_not_become_the_median_by_staying_away():
    rounds = [([0, 1, 2, 3], np.zeros((4, 1)))] * 40
    rounds += [([0, 1, 2, 3, 4], [[1.0], [1.1], [0.9], [1.0], [-50.0]])]
    plain = driven(a.FedAU(cutoff=8), rounds, 5)[1]
    assert float(plain.weights[4]) > float(plain.weights[:4].sum())  # ω = 8 against 1 each
    for method in (a.TrimmedMean(0.2, a.FedAU(cutoff=8)), a.Median(a.FedAU(cutoff=8))):
        info = driven(method, rounds, 5)[1]
        assert float(info.direction) > 0
        assert float(info.weights[4]) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e9, HUGE, 3e38])  # the last makes the untrimmed sum infinite
def test_what_is_trimmed_leaves_nothing_in_the_mean_of_the_iterates(size, dtype):
    rng = np.random.default_rng(0)
    for method in (a.Median(a.Auto(preconditioned=False)), a.TrimmedMean(0.3, a.Auto(1.0, False))):
        driver, iterates = RoundDriver(method, torch.zeros(2, dtype=dtype), Population(7)), []
        for _ in range(6):
            deltas = rng.normal(size=(7, 2))
            deltas[5:] = size
            driver.absorb(updates(list(range(7)), deltas, dtype))
            driver.step(0.1)
            iterates.append(driver.state.model.double().numpy())
        rounds = np.arange(1, 7)
        mean = np.average(iterates, axis=0, weights=rounds * (rounds + 1))
        np.testing.assert_allclose(driver.output.double(), mean, rtol=1e-5)


@given(values=st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=8))
@settings(max_examples=30)
def test_equal_values_share_what_is_trimmed(values):
    """The trimmed mean of equal weights is that of the sorted values, in any order of arrival."""
    values = np.array(values)
    b = min(int(np.ceil(round(0.3 * len(values), 9))), (len(values) - 1) // 2)
    wanted = np.sort(values)[b : len(values) - b].mean()
    for order in (np.arange(len(values)), np.argsort(values), np.argsort(-values)):
        rounds = [(order.tolist(), values[order, None])]
        info = driven(a.TrimmedMean(trim=0.3), rounds, len(values))[1]
        assert float(info.direction) == pytest.approx(wanted)
        by_client = dict(zip(info.clients.tolist(), info.weights.tolist(), strict=True))
        same = {v: [by_client[n] for n in np.flatnonzero(values == v)] for v in set(values)}
        assert all(np.ptp(weights) < 1e-12 for weights in same.values())


@given(seed=st.integers(0, 2**32 - 1), bound=st.floats(1e-3, 10))
@settings(max_examples=15)
def test_a_clipped_update_moves_the_model_by_its_weight_times_the_bound(seed, bound):
    rng = np.random.default_rng(seed)
    honest = rng.normal(size=(4, 3))
    for hostile in (HUGE * rng.normal(size=3), rng.normal(size=3)):
        before = [([0, 1, 2, 3], honest)] * 9
        models = []
        for last in ([], [4]):
            rows = np.concatenate([honest, hostile[None]])[: 4 + len(last)]
            method = a.Clipped(bound=bound, inner=a.FedAU(cutoff=6))
            models.append(driven(method, [*before, ([0, 1, 2, 3, *last], rows)], 5, 3)[0].state)
        moved = float((models[1].model - models[0].model).norm())
        omega = 6  # one closed interval, which the cutoff ended
        assert moved <= omega / 5 * bound * (1 + 1e-9)


def test_updates_as_large_as_floats_allow_leave_the_model_finite():
    rounds = [([0, 1, 2], [[1.0], [3e38], [-3e38]])]
    for method in (a.Clipped(bound=1.0), a.TrimmedMean(trim=0.1), a.Median()):
        driver, info = driven(method, rounds, 3, dtype=torch.float32)
        assert abs(float(driver.state.model)) <= 1.0
        assert bool(torch.isfinite(info.weights).all())


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
def test_the_bound_follows_the_quantile_of_the_norms(quantile):
    rng = np.random.default_rng(2)
    method = a.Clipped(bound=100.0, quantile=quantile)
    driver = RoundDriver(method, torch.zeros(1), Population(50))
    bounds = []
    for _ in range(400):
        driver.absorb(updates(list(range(50)), rng.lognormal(size=(50, 1)), torch.float32))
        driver.step(0.1)
        bounds.append(driver.state.bound)
    wanted = np.quantile(np.random.default_rng(3).lognormal(size=10**5), quantile)
    assert np.exp(np.log(bounds[200:]).mean()) == pytest.approx(wanted, rel=0.05)


def test_a_bound_that_followed_updates_of_zero_comes_back():
    rounds = [([0, 1], np.zeros((2, 1)))] * 800
    driver = driven(a.Clipped(bound=1e-300, quantile=0.1, rate=1.0), rounds, 2)[0]
    assert 0 < driver.state.bound < 1e-300
    driver.absorb(updates([0, 1], [[0.0], [0.0]]))
    driver.step(0.1)
    assert float(driver.state.model) == 0.0


EXPERIMENT = {
    "name": "bounded",
    "rounds": 7,
    "problem": {
        "type": "quadratic",
        "matrices": [[[1.0]], [[1.0]], [[1.0]]],
        "centers": [[1.0], [2.0], [9.0]],
    },
    "local": {"steps": 1, "lr": 0.5},
    "participation": "full",
    "trainer": "reference",
}


def test_a_report_does_not_replay_weights_that_follow_updates(tmp_path):
    methods = {"plain": a.FedAU(), "nested": a.Averaged(a.Median(a.FedAU()))}
    for name, algorithm in methods.items():
        ft.simulate(**EXPERIMENT | {"algorithm": algorithm}, out=tmp_path / name)
    plain, nested = (history(load_runs([tmp_path / name])[0]) for name in methods)
    assert plain is not None
    assert nested is None
