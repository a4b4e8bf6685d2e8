"""What Auto's accounts promise, judged by the weights that entered the model."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtide import algorithms as a
from fedtide.population import Population

from .driver import Quadratics, drive, random_table

SHARE = 2 / (1 + math.sqrt(5))
BOUND = 1.1


def influences(present, server_lr=1.0):
    """Return N times the weight with which each client entered each round, (T, N)."""
    rounds, clients = present.shape
    driver = a.RoundDriver(a.Auto(server_lr), torch.zeros(1), Population(clients))
    found = np.zeros((rounds, clients))
    for t in range(rounds):
        ids = torch.from_numpy(np.flatnonzero(present[t]))
        ones = torch.ones(len(ids), dtype=torch.float64)
        driver.absorb(a.ClientUpdates(ids, ones, torch.zeros(len(ids), 1), 0.1, ids))
        info = driver.step(0.1)
        found[t, info.clients] = clients * info.weights
    return found


def totals_with_control_variates(present):
    """Return N times the weight that all updates of each client have had by each round, (T, N).

    Client n always sends the n-th unit vector.
    """
    rounds, clients = present.shape
    method = a.Auto(preconditioned=False, control_variates=True)
    driver = a.RoundDriver(method, torch.zeros(clients).double(), Population(clients))
    found = np.zeros((rounds, clients))
    for t in range(rounds):
        ids = torch.from_numpy(np.flatnonzero(present[t]))
        units = torch.eye(clients, dtype=torch.float64)[ids]
        driver.absorb(a.ClientUpdates(ids, torch.ones(len(ids)), units, 0.1, ids))
        driver.step(0.1)
        found[t] = clients * driver.state.model.numpy()
    return found


def longest_absence(present):
    """Return E: in any E consecutive rounds every client takes part at least once."""
    padded = np.vstack([np.ones(present.shape[1]), present, np.ones(present.shape[1])]) > 0
    return max(int(np.diff(np.flatnonzero(client)).max()) for client in padded.T)


def credit(present, t):
    """Return the credit in round t."""
    return present.shape[1] / SHARE * t / present[:t].sum()


def check_shares(present, found, first, last):
    """Every client weighs as much as there are rounds, up to its debt and the change of credit."""
    shares = found[first:last].sum(axis=0)
    moved = abs(credit(present, last) - credit(present, first))
    allowed = longest_absence(present) / SHARE + moved
    assert np.abs(shares - (last - first)).max() <= allowed
    return shares / (last - first)


def independent(rates, rounds, seed=0):
    return np.random.default_rng(seed).random((rounds, len(rates))) < rates


RATES = np.geomspace(0.5, 0.1, 600)  # of so many clients that steps are rarely cut


def test_clients_with_uneven_rates_have_even_shares():
    present = independent(RATES, 700)
    shares = check_shares(present, influences(present), 100, 700)
    np.testing.assert_allclose(shares, 1, atol=0.1)


def test_the_variance_of_the_weights_is_that_of_smoothed_intervals():
    """Var a = (1 - p) / p² · ρ / (2 - ρ) for independent rounds; error probability 1e-4."""
    p, clients, rounds = 0.1, 5000, 200
    weights = influences(independent(np.full(clients, p), 100 + rounds, seed=3))[100:]
    squares = ((weights - 1 / p) ** 2 * (weights > 0)).sum(axis=0) / (p * rounds)
    expected = (1 - p) / p**2 * SHARE / (2 - SHARE)
    assert abs(squares.mean() - expected) < 3.9 * squares.std() / clients**0.5


def test_with_everyone_present_it_is_fedavg_after_some_steps_of_the_largest_length():
    found = influences(np.ones((40, 4)))
    assert found.min(axis=1) == pytest.approx(found.max(axis=1))
    lengths = found[:, 0]
    assert lengths[:8] == pytest.approx(BOUND)
    assert (np.diff(lengths[8:20]) < 0).all()
    assert lengths[25:] == pytest.approx(1, abs=1e-6)
    assert lengths.sum() == pytest.approx(41)  # one weight a round, and one of the first credit


def test_rounds_without_updates_are_not_counted():
    rng = np.random.default_rng(0)
    present = rng.random((60, 7)) < 0.3
    present[::3] = 0
    found, used = influences(present), present.any(axis=1)
    assert 0 < used.sum() < 45
    np.testing.assert_array_equal(found[used], influences(present[used]))


@given(seed=st.integers(0, 2**32 - 1), server_lr=st.floats(0.1, 3))
@settings(max_examples=6)
def test_no_step_exceeds_the_mean_update_by_more_than_a_tenth(seed, server_lr):
    table = random_table(np.random.default_rng(seed), 40, 5) > 0
    weights = influences(table, server_lr) / server_lr
    assert (weights >= 0).all()
    assert (weights.sum(axis=1) <= BOUND * 5 * (1 + 1e-6)).all()
    np.testing.assert_allclose(weights, influences(table), rtol=1e-5, atol=1e-5)


def test_no_round_takes_two_models_further_apart_as_long_as_local_steps_are_stable():
    rng = np.random.default_rng(0)
    problem, table = Quadratics.random(rng, 5), random_table(rng, 60, 5)
    table[10:40, 1:] = 0  # the others return with large debts
    lr = 1 / np.linalg.eigvalsh(problem.A).max()
    method = a.Auto(preconditioned=False)
    one, other = (drive(method, problem, table, lr, 3, rng.normal(size=3)) for _ in range(2))
    apart = np.linalg.norm(one.iterates - other.iterates, axis=1)
    assert (np.diff(apart) <= 1e-12).all()


def test_what_the_bound_cuts_off_is_paid_later():
    present = np.zeros((260, 4))
    present[:, :3] = 1
    present[40:, 3] = 1  # owed 40 weights and its credit when it arrives
    found = influences(present)
    assert found[40:60].sum(axis=1) == pytest.approx(4 * BOUND)
    np.testing.assert_allclose(found.sum(axis=0)[3], found.sum(axis=0)[0], rtol=0.01)


def test_the_only_client_of_the_first_round_is_not_silenced_by_its_large_step():
    present = np.ones((12, 20))
    present[0, 1:] = 0
    found = influences(present)
    assert found[0, 0] == pytest.approx(20 * (SHARE / 20 + 1))
    assert found[4:, 0].min() > 0.25
    assert found[8:, 0].min() > 0.9


def steps_of(method, updates):
    """Return the steps of one client that sends these updates, (T, d)."""
    driver = a.RoundDriver(method, torch.zeros(updates.shape[1]).double(), Population(1))
    found = []
    for update in torch.from_numpy(updates):
        one = torch.ones(1)
        driver.absorb(a.ClientUpdates(torch.tensor([0]), one, update[None], 0.1, one))
        found.append(driver.step(0.1).direction.numpy())
    return np.array(found)


SPREAD = np.geomspace(1e-2, 1, 40)  # of the sizes of the coordinates' updates


def test_preconditioned_steps_are_as_long_as_plain_ones_over_the_rounds():
    updates = np.random.default_rng(0).normal(size=(300, 40)) * SPREAD
    lengths = [
        (steps_of(a.Auto(preconditioned=scaled), updates)[50:] ** 2).sum()
        for scaled in (True, False)
    ]
    assert lengths[0] / lengths[1] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("scales", [(1, 1, 1), (1, 0.1, 0.01)])
def test_preconditioned_training_ends_at_the_minimum_of_the_mean_loss(scales):
    """Coordinates of other units and uneven rates: FedAvg ends elsewhere."""
    rng = np.random.default_rng(0)
    rates = np.repeat([0.8, 0.2], 10)
    centers = np.where(rates == 0.2, 1.0, 0.0)[:, None] * np.array(scales) + 0.1 * rng.normal(
        size=(20, 3)
    ) * np.array(scales)
    problem = Quadratics(np.tile(np.eye(3), (20, 1, 1)), centers)
    present = (rng.random((1500, 20)) < rates) / 10
    optimum = problem.optimum() / scales
    method = a.Auto()
    found = method.output(drive(method, problem, present, lr=0.03).state).numpy() / scales
    plain = drive(a.FedAvg(), problem, present, lr=0.03).iterates[-500:].mean(axis=0) / scales
    np.testing.assert_allclose(found, optimum, atol=0.03)
    assert (np.abs(plain - optimum) > 0.2).all()


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_preconditioning_does_not_depend_on_the_unit_of_the_updates(size):
    updates = np.random.default_rng(0).normal(size=(9, 5))
    scaled = steps_of(a.Auto(), size * updates) / size
    np.testing.assert_allclose(scaled, steps_of(a.Auto(), updates), rtol=1e-9)


def test_coordinates_and_rounds_without_movement_stay_where_they_are():
    updates = np.random.default_rng(0).normal(size=(6, 3))
    updates[:, 1] = 0
    updates[[0, 4]] = 0
    steps = steps_of(a.Auto(), updates)
    assert np.isfinite(steps).all()
    assert (steps[:, 1] == 0).all()
    assert (steps[[0, 4]] == 0).all()
    assert (steps[1, [0, 2]] != 0).all()


@pytest.mark.parametrize("method", [a.Auto(), a.Amplified(period=2, factor=3.0, inner=a.Auto())])
def test_the_output_is_the_mean_of_the_iterates_with_growing_weights(method):
    rng = np.random.default_rng(0)
    problem, table, start = Quadratics.random(rng, 3), random_table(rng, 9, 3), rng.normal(size=3)
    driven = drive(method, problem, table, start=start)
    rounds = np.arange(1, 10)
    mean = np.average(driven.iterates[1:], axis=0, weights=rounds * (rounds + 1))
    np.testing.assert_allclose(method.output(driven.state), mean, atol=1e-13)
    assert method.output(method.init(torch.from_numpy(start), Population(3))) == pytest.approx(
        start
    )


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=6)
def test_control_variates_give_every_client_seen_one_weight_a_round_under_any_participation(seed):
    """Besides the weight of its first update; whatever is cut or forgiven."""
    rng = np.random.default_rng(seed)
    present = (rng.random((120, 6)) < rng.choice([0.02, 0.3, 0.9], 6)) * 1
    present[::7] = 0  # rounds that do not count
    totals = totals_with_control_variates(present)
    used, weights = present.any(axis=1), influences(present)
    for n in np.flatnonzero(present.any(axis=0)):
        first = np.flatnonzero(present[:, n])[0]
        expected = weights[first, n] + np.cumsum(used[first + 1 :])
        np.testing.assert_allclose(totals[first + 1 :, n], expected, atol=1e-5)
        assert (totals[:first, n] == 0).all()


def test_with_control_variates_the_weights_of_updates_vary_less():
    """Var w = (1 - p) / p² · ((1 - ρ)² + ρ³ / (2 - ρ)); error probability 1e-4."""
    p, clients, rounds = 0.1, 1500, 200
    present = independent(np.full(clients, p), 300 + rounds, seed=3)  # the last 200: to return in
    weights, squares = influences(present), np.zeros(clients)
    for n in range(clients):
        came = np.flatnonzero(present[:, n])
        own = weights[came, n]
        totals = own[:-1] + np.diff(came) - own[1:]
        counted = (came[:-1] >= 100) & (came[:-1] < 100 + rounds)
        squares[n] = ((totals - 1 / p) ** 2)[counted].sum() / (p * rounds)
    expected = (1 - p) / p**2 * ((1 - SHARE) ** 2 + SHARE**3 / (2 - SHARE))
    assert abs(squares.mean() - expected) < 3.9 * squares.std() / clients**0.5


@pytest.mark.parametrize("preconditioned", [True, False])
def test_with_control_variates_a_constant_rate_reaches_the_minimum(preconditioned):
    rng = np.random.default_rng(0)
    problem = Quadratics.random(rng, 6)
    present = rng.random((500, 6)) < [0.9, 0.7, 0.5, 0.3, 0.2, 0.1]
    apart = [
        np.abs(drive(method, problem, present, lr=0.06).iterates[-1] - problem.optimum()).max()
        for method in (a.Auto(1.0, preconditioned, True), a.Auto(1.0, preconditioned))
    ]
    assert apart[0] < 1e-10
    assert apart[1] > 0.1
