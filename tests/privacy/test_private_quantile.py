"""A clipping norm that follows a quantile of the norms, under noise that the same budget pays."""

import copy
import math
from itertools import product

import numpy as np
import pytest
import torch
from tests.algorithms.references import algorithm_2

from fedtide.algorithms import ClientUpdates, Cohort, FedAU, FedAvg, RoundDriver
from fedtide.differential_privacy import noise_source
from fedtide.differential_privacy.noise_source import standard_normals
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.privacy import Gaussian, MatrixFactorisation, make_private, spent

from .rounds import all_patterns, banded_root, drive
from .test_private_sum import StopAfter, simulate

AVERAGE = FedAvg(weights="all")
FOLLOWS = {"quantile": 0.7, "clip_rate": 0.3}


@pytest.mark.parametrize(
    ("mechanism", "noise_on_sum", "noise_on_count"),
    [
        (Gaussian(1.0, 3.0, 1e-5, quantile=0.5, count_noise=5.0), 3.75, 5.0),  # 3-4-5
        (Gaussian(1.0, 2.0, 1e-5, quantile=0.5), 2 / 0.96**0.5, 10.0),
        (Gaussian(1.0, 2.0, 1e-5), 2.0, 10.0),
        (Gaussian(1.0, 0.0, 1e-5, quantile=0.5), 0.0, 0.0),
    ],
)
def test_the_noise_multiplier_is_divided_between_sum_and_count(
    mechanism, noise_on_sum, noise_on_count
):
    assert mechanism.noise_on_sum == pytest.approx(noise_on_sum)
    assert mechanism.noise_on_count == noise_on_count


def test_sum_and_count_together_cost_what_dp_accounting_says():
    """Its numerical composition of k releases of each, with losses rounded to 3e-4."""
    dp_accounting = pytest.importorskip("dp_accounting")
    from dp_accounting import pld

    k, mechanism = 3, Gaussian(1.0, 4.0, 1e-5, quantile=0.5, count_noise=7.0)
    accountant = pld.PLDAccountant(value_discretization_interval=3e-4)
    for z in (mechanism.noise_on_sum, mechanism.noise_on_count):
        accountant.compose(dp_accounting.GaussianDpEvent(z), k)
    loss = mechanism.loss(np.arange(k), np.ones(k))
    assert mechanism.epsilon(loss) == pytest.approx(accountant.get_epsilon(1e-5), abs=1e-5)


@pytest.mark.parametrize("bands", [1, 3])
def test_model_and_norm_follow_the_written_equations(bands):
    """FedAU and the norm step by step in NumPy, with the noise of the seed."""
    rounds, clients, d, cutoff, lr, seed = 12, 5, 4, 3, 0.7, 2
    mechanism = MatrixFactorisation(0.8, 0.6, 1e-5, bands, count_noise=1.5, **FOLLOWS)
    draws = np.random.default_rng(0)
    updates = draws.normal(size=(rounds, clients, d))
    present = np.zeros((rounds, clients), dtype=bool)
    for n in range(clients):
        present[n % 3 :: max(bands, n), n] = True
    driver, moved = drive(
        FedAU(server_lr=lr, cutoff=cutoff), mechanism, present, lambda t, n: updates[t, n], d, seed
    )
    fresh = np.array([standard_normals(d + 1, t, seed).numpy() for t in range(rounds)])
    noise = np.linalg.inv(banded_root(bands, rounds)) @ fresh
    weights = np.array([algorithm_2(row, cutoff)[:-1] for row in present.T]).T * present
    clip, expected = 0.8, []
    for t in range(rounds):
        norms = np.linalg.norm(updates[t], axis=1)
        total = weights[t] * np.minimum(1, clip / norms) @ updates[t]
        total += (0.6**-2 - 1.5**-2) ** -0.5 * cutoff * clip * noise[t, :d]
        count = weights[t] @ ((norms > clip) - 0.3) + 1.5 * cutoff * noise[t, d]
        # Rounded to 2^-20 of a power of two below the noise's deviation, 4.5.
        clip *= math.exp(0.3 * lr / clients * round(count * 2**18) / 2**18)
        expected.append(lr / clients * total)
    np.testing.assert_allclose(moved, expected, rtol=0, atol=3e-6)
    assert driver.state.clip == pytest.approx(clip, rel=1e-9)


@pytest.mark.parametrize("quantile", [0.3, 0.5])
def test_the_count_lies_on_a_grid_that_does_not_depend_on_the_updates(quantile):
    """Or the digits of the norm would rule out counts (Mironov 2012), whatever ε is stated."""
    norm, clients = 0.8, 5
    mechanism = Gaussian(norm, 0.2, 1e-5, quantile=quantile, clip_rate=1.0, count_noise=1.0)
    for length, seed in product((0.1, 10.0), range(20)):
        driver, _ = drive(
            FedAvg(weights="all"),
            mechanism,
            np.ones((1, clients), dtype=bool),
            lambda _, n, length=length: np.where(n < 2, length, 0.0)[:, None],
            1,
            seed,
        )
        steps = math.log(driver.state.clip / norm) * clients * 2**20
        assert abs(steps - round(steps)) < 1e-3


def test_with_fedau_the_quantile_counts_clients_and_not_participations():
    """The rare half of the clients has long updates; a ninth of the participations are theirs."""
    rounds, norms = 150, np.repeat([1.0, 2.0, 8.0, 9.0], 5)
    rates = np.where(norms > 4, 0.1, 0.8)
    present = np.random.default_rng(2).random((rounds, 20)) < rates
    settled = {}
    for name, method in (("clients", FedAU(cutoff=50)), ("cohort", FedAvg(20 / 9, "all"))):
        mechanism = Gaussian(3.0, 0.0, 1e-5, quantile=0.7, clip_rate=0.1)
        driver, _ = drive(method, mechanism, present, lambda t, n: norms[n, None], 1)
        settled[name] = driver.state.clip
    assert settled["clients"] == pytest.approx(8.0, rel=0.3)  # of the clients, half reach 8
    assert settled["cohort"] == pytest.approx(2.0, rel=0.3)  # of the participations, a ninth


SEVEN = pytest.param(3, 7, marks=pytest.mark.statistical)


@pytest.mark.parametrize(("cutoff", "rounds"), [(1, 5), (3, 5), SEVEN])
def test_every_pattern_changes_norm_and_sum_by_what_is_accounted(cutoff, rounds, monkeypatch):
    """Client n has the pattern n; in every round, its update is replaced by zeros in a copy.

    In deviations of their noise, the changes of sum and count have the squares u² / z² together:
    what is accounted, reached by an update that is too long, and exceeded by none.
    """
    monkeypatch.setattr(noise_source, "_GRID_BITS", 45)  # as good as without rounding
    patterns = all_patterns(rounds)[1:]
    clients = len(patterns)
    mechanism = Gaussian(0.5, 1.2, 1e-5, quantile=0.4, count_noise=2.0)
    private = make_private(FedAU(cutoff=cutoff), mechanism, seed=3)
    driver = RoundDriver(private, torch.zeros(2, dtype=torch.float64), Population(clients))
    unit = cutoff / clients
    on_sum, on_count = (1.2**-2 - 2.0**-2) ** -0.5 * unit, 0.2 * 2.0 * unit

    def released(driver, cohort, deltas):
        clip = driver.state.clip
        rows = torch.from_numpy(deltas)
        driver.absorb(
            ClientUpdates(cohort.clients, cohort.weights, rows, 0.1, torch.ones(len(rows)))
        )
        direction = driver.step(0.1).direction.numpy()
        return np.append(direction / (on_sum * clip), math.log(driver.state.clip) / on_count)

    lost, draws = np.zeros(clients), np.random.default_rng(4)
    for t in range(rounds):
        ids = np.flatnonzero(patterns[:, t])
        cohort = Cohort.uniform(torch.from_numpy(ids))
        deltas = draws.normal(size=(len(ids), 2))
        long = np.linalg.norm(deltas, axis=1) > driver.state.clip
        before = copy.deepcopy(driver)
        real = released(driver, cohort, deltas)
        for i, n in enumerate(ids):
            without = deltas.copy()
            without[i] = 0
            change = ((real - released(copy.deepcopy(before), cohort, without)) ** 2).sum()
            share = algorithm_2(patterns[n], cutoff)[t] / cutoff
            assert change <= share**2 / 1.2**2 * (1 + 1e-9)
            assert not long[i] or change == pytest.approx(share**2 / 1.2**2, rel=1e-5)
            lost[n] += share**2
    np.testing.assert_allclose(driver.state.lost, lost, rtol=1e-9)


def test_the_norm_has_noise_in_rounds_without_updates_and_stops_with_the_training():
    mechanism = MatrixFactorisation(1.0, 1.0, 1e-5, 1, 1, quantile=0.5)
    present = np.zeros((4, 40), dtype=bool)
    present[1] = True
    norms = []

    def record(t, ids):
        return np.zeros((len(ids), 1))

    for rounds in range(1, 5):
        driver, _ = drive(AVERAGE, mechanism, present[:rounds], record, 1)
        norms.append(driver.state.clip)
    assert norms[0] != 1.0
    assert norms[1] != norms[0]
    assert norms[1:] == [norms[1]] * 3


def test_a_run_with_a_quantile_resumes_and_its_log_costs_what_it_counted(tmp_path):
    pytest.importorskip("dp_accounting")
    mechanism = MatrixFactorisation(1.0, 0.5, 1e-5, min_separation=3, quantile=0.5)
    whole = simulate(mechanism, out=tmp_path / "whole")
    options = {"out": tmp_path / "cut", "checkpoint": {"seconds": 1e9, "every": 5}}
    with pytest.raises(KeyboardInterrupt):
        simulate(mechanism, callbacks=[StopAfter(7)], **options)
    resumed = simulate(mechanism, resume=True, **options)
    np.testing.assert_array_equal(whole.model, resumed.model)
    assert whole.state.clip == resumed.state.clip != 1.0
    found = spent(str(tmp_path / "whole"), mechanism, FedAU(cutoff=4))
    np.testing.assert_allclose(found.losses, whole.state.lost.numpy() / 0.5**2, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count_noise": 5.0}, "^count_noise: only .* follows a quantile .*; give quantile"),
        ({"quantile": 0.5, "count_noise": 1.0}, "^count_noise: 1 is not above noise_multiplier, 1"),
    ],
)
def test_impossible_quantiles_are_refused(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        Gaussian(1.0, 1.0, 1e-5, **arguments)
