"""The wrapper: clipping, noise, who may take part, and what it refuses."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy import stats

import fedtide as ft
from fedtide.algorithms import (
    Amplified,
    ClientUpdates,
    Clipped,
    Cohort,
    FedAdam,
    FedAU,
    FedAvg,
    RoundDriver,
    WeightedSum,
    WeightedSumState,
)
from fedtide.differential_privacy import shut_out
from fedtide.differential_privacy.noise_source import standard_normals
from fedtide.errors import InvalidInputError
from fedtide.flower import ClientSideMemory
from fedtide.population import Population
from fedtide.privacy import (
    Gaussian,
    MatrixFactorisation,
    loss_of_epsilon,
    make_private,
)

from .rounds import banded_root, drive

A = ft.algorithms
AVERAGE = FedAvg(weights="all")


def zeros(d):
    return lambda t, ids: np.zeros((len(ids), d))


def is_finished(driver, clients):
    """Whether none of the clients may ever take part again."""
    return len(shut_out(driver.algorithm, driver.state)) == clients


def test_updates_are_clipped_before_they_are_weighted():
    draws = np.random.default_rng(0)
    updates = draws.normal(size=(3, 4)) * [[0.01], [1.0], [100.0]]
    _, moved = drive(
        AVERAGE, Gaussian(0.5, 0.0, 1e-5), np.ones((1, 3), bool), lambda t, ids: updates[ids], 4
    )
    norms = np.linalg.norm(updates, axis=1)
    expected = (updates * np.minimum(1, 0.5 / norms)[:, None]).sum(axis=0) / 3
    np.testing.assert_allclose(moved[0], expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_clipped_update_is_never_longer_than_the_bound(dtype):
    draws = np.random.default_rng(1)
    updates = draws.normal(size=(200, 50)) * draws.uniform(0.5, 1e4, (200, 1))
    present, clip = np.eye(200, dtype=bool), 0.3
    _, moved = drive(
        AVERAGE, Gaussian(clip, 0.0, 1e-5), present, lambda t, ids: updates[ids], 50, dtype=dtype
    )
    lengths = np.linalg.norm(moved.astype(np.float64) * 200, axis=1)
    assert lengths.max() <= clip
    assert lengths.min() > 0.99999 * clip


@pytest.mark.parametrize("share", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("mechanism", [Gaussian, MatrixFactorisation])
def test_the_noise_does_not_depend_on_who_sends_an_update(mechanism, share):
    """Also where half of the cohort, or all of it, goes missing."""
    present = np.random.default_rng(2).random((8, 6)) < 0.7
    missing = present & (np.arange(6) < 6 * share)
    private = mechanism(1.0, 2.0, 1e-5)
    _, everyone = drive(FedAU(cutoff=3), private, present, zeros(5), 5)
    _, fewer = drive(FedAU(cutoff=3), private, missing, zeros(5), 5)
    np.testing.assert_array_equal(everyone, fewer)
    assert (np.abs(everyone) > 0).all()


@pytest.mark.statistical
@pytest.mark.parametrize("bands", [1, 4])
def test_the_noise_in_the_model_is_what_was_accounted(bands):
    """A correct program fails with probability 1e-6: 60 tests at 1.6e-8 each."""
    rounds, d, cutoff = 10, 20_000, 5
    mechanism = MatrixFactorisation(0.7, 1.3, 1e-5, min_separation=bands)
    present = np.zeros((rounds, 3), dtype=bool)
    _, moved = drive(FedAU(server_lr=2.0, cutoff=cutoff), mechanism, present, zeros(d), d)
    # C undoes the correlation: independent, with the deviation η z K C / N
    white = banded_root(bands, rounds) @ moved / (2.0 * 1.3 * cutoff * 0.7 / 3)
    level = 1.6e-8
    for row in white:
        assert stats.kstest(row, "norm").pvalue > level
    for one in range(rounds):
        for other in range(one):
            correlation = (white[one] * white[other]).sum() / d**0.5
            assert 2 * stats.norm.sf(abs(correlation)) > level


@pytest.mark.statistical
def test_secret_noise_is_standard_normal_and_never_the_same():
    first, second = standard_normals(200_000, 0, None), standard_normals(200_000, 0, None)
    assert not torch.equal(first, second)
    for sample in (first, second):  # fails with probability 2e-6 each
        assert stats.kstest(sample.numpy(), "norm").pvalue > 2e-6
    assert len(standard_normals(7, 0, None)) == 7


def test_a_strategy_has_secret_noise_and_a_simulation_that_of_its_seed():
    present = np.ones((2, 2), dtype=bool)
    mechanism = Gaussian(1.0, 1.0, 1e-5)
    runs = [drive(AVERAGE, mechanism, present, zeros(3), 3, seed)[1] for seed in (1, 1, 2, None)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.isclose(runs[0], runs[2]).any()
    assert not np.isclose(runs[0], runs[3]).any()


def test_clients_rest_and_stop_as_the_mechanism_asks():
    mechanism = MatrixFactorisation(1.0, 1.0, 1e-5, min_separation=3, max_participations=2)
    seen = []

    def record(t, ids):
        seen.append((t, ids.tolist()))
        return np.zeros((len(ids), 1))

    present = np.ones((8, 2), dtype=bool)
    present[0, 1] = False
    driver, moved = drive(AVERAGE, mechanism, present, record, 1)
    assert [one for one in seen if one[1]] == [(0, [0]), (1, [1]), (3, [0]), (4, [1])]
    # Nobody may ever take part again: there is nothing to hide, and the model stays.
    assert (moved[:5] != 0).all()
    assert (moved[5:] == 0).all()
    assert is_finished(driver, 2)


@pytest.mark.parametrize("algorithm", [AVERAGE, FedAU(cutoff=4)])
def test_no_client_exceeds_its_budget_and_none_stops_before_its_next_update_could(algorithm):
    z, budget = 1.5, 6.0
    mechanism = Gaussian(1.0, z, 1e-5, budget=budget)
    present = np.random.default_rng(3).random((60, 5)) < [0.02, 0.3, 0.5, 0.8, 1.0]
    driver, _ = drive(algorithm, mechanism, present, zeros(1), 1)
    free, _ = drive(algorithm, Gaussian(1.0, z, 1e-5), present, zeros(1), 1)
    limit = loss_of_epsilon(budget, 1e-5) * z**2
    spent = driver.state.lost
    assert (spent <= limit).all()
    stopped = driver.state.rounds < free.state.rounds
    assert stopped.any()
    assert not stopped.all()
    assert (spent[stopped] > limit - 1.0).all()
    assert mechanism.epsilon(float(spent.max()) / z**2) <= budget


@pytest.mark.parametrize(
    "algorithm",
    [
        A.MIFA(),
        A.Scaffold(),
        A.TrimmedMean(inner=FedAU()),
        Clipped(bound=1.0, quantile=0.5, inner=FedAU()),
        ClientSideMemory(FedAU()),
        A.CentralSGD(),
        Amplified(period=2, factor=1.5, inner=A.MIFA()),
    ],
)
def test_methods_that_use_more_than_a_sum_are_refused(algorithm):
    with pytest.raises(InvalidInputError, match=r"^algorithm: .* uses more .*; give fedau"):
        make_private(algorithm, Gaussian(1.0, 1.0, 1e-5), 0)


@pytest.mark.parametrize(
    "algorithm",
    [FedAU(cutoff=None), FedAvg(), FedAvg(weights="given"), A.WeightedFedAvg(rates=[0.5, 0.5])],
)
def test_weights_without_a_public_bound_are_refused(algorithm):
    with pytest.raises(InvalidInputError, match=r"^algorithm: .*any weight.*; give fedau"):
        drive(algorithm, Gaussian(1.0, 1.0, 1e-5), np.ones((1, 2), bool), zeros(1), 1)


def test_updates_of_clients_that_may_not_take_part_are_not_used():
    """A driver that does not ask choose_cohort cannot exceed a budget, nor step without noise."""
    mechanism = MatrixFactorisation(1.0, 1.0, 1e-5, 2, 1)
    driver, _ = drive(AVERAGE, mechanism, np.ones((1, 2), bool), zeros(1), 1)
    one = torch.ones(1)
    driver.absorb(ClientUpdates(torch.tensor([0]), one, one[:, None].double(), 0.1, one))
    with pytest.raises(InvalidInputError, match=r"^updates: one is from a client that may not"):
        driver.step(0.1)


def test_a_client_has_one_update_in_a_round():
    driver, _ = drive(AVERAGE, Gaussian(1.0, 1.0, 1e-5), np.ones((1, 2), bool), zeros(1), 1)
    one = torch.ones(1)
    for _ in range(2):
        driver.absorb(ClientUpdates(torch.tensor([0]), one, one[:, None].double(), 0.1, one))
    with pytest.raises(
        InvalidInputError, match=r"^algorithm\.absorb: .*; give .* each at most once"
    ):
        driver.step(0.1)


def test_a_method_with_a_false_bound_is_stopped():
    class Doubled(FedAvg):
        def client_weights(self, state, updates):
            return 2.0 * super().client_weights(state, updates)

    with pytest.raises(InvalidInputError, match=r"the weight 2, more than its weight_bound of 1;"):
        drive(Doubled(weights="all"), Gaussian(1.0, 1.0, 1e-5), np.ones((1, 2), bool), zeros(1), 1)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: Amplified(period=3, factor=2.0, inner=inner),
        lambda inner: FedAdam(inner=inner),
        lambda inner: A.FedAvgM(inner=inner),
        lambda inner: A.Averaged(inner=inner),
        lambda inner: A.Scaled(inner=inner),
    ],
)
def test_wrappers_see_only_the_steps_that_have_noise(wrap):
    """Their models are functions of the private steps alone."""
    present = np.random.default_rng(4).random((9, 4)) < 0.6
    updates = np.random.default_rng(5).normal(size=(9, 4, 3))
    mechanism = Gaussian(1.0, 1.0, 1e-5)
    wrapped, _ = drive(wrap(FedAU(cutoff=3)), mechanism, present, lambda t, n: updates[t, n], 3)
    _, steps = drive(FedAU(cutoff=3), mechanism, present, lambda t, n: updates[t, n], 3)
    # The same steps, as those of a single client without noise
    method = wrap(FedAvg())
    driver = RoundDriver(method, torch.zeros(3, dtype=torch.float64), Population(1))
    one = torch.ones(1)
    for step in torch.from_numpy(steps):
        updates_of_one = ClientUpdates(torch.tensor([0]), one, step[None], 0.1, one)
        driver.absorb(updates_of_one)
        driver.step(0.1)
    np.testing.assert_allclose(wrapped.output.numpy(), driver.output.numpy(), rtol=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 1.0, "noise_multiplier": 0.0}, "^budget: without noise"),
        ({"bands": 4, "min_separation": 3}, "^bands: 4 bands overlap .*; give at most 3"),
    ],
)
def test_impossible_mechanisms_are_refused(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        MatrixFactorisation(**({"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5} | arguments))


def simulate(privacy, rounds=12, algorithm=None, **options):
    draws = np.random.default_rng(6)
    return ft.simulate(
        problem=ft.problems.Quadratic(
            matrices=np.stack([np.eye(3)] * 6), centers=draws.normal(size=(6, 3))
        ),
        participation=ft.participation.Bernoulli(0.5),
        algorithm=algorithm or FedAU(cutoff=4),
        local=ft.LocalTraining(steps=2, lr=0.1),
        rounds=rounds,
        privacy=privacy,
        progress=False,
        trainer="reference",
        **options,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": FedAvg()}, "^algorithm: an update may enter a step"),
        ({"algorithm": A.KnownRates(rates=[0.5])}, "^algorithm.rates: 1 rate for 6 clients"),
        ({"privacy": Gaussian(1.0, 1.0, 1e-5, budget=0.1)}, "^privacy: one update already costs"),
    ],
)
def test_an_experiment_names_the_field_that_privacy_refuses(changes, message):
    with pytest.raises(InvalidInputError, match=message):
        simulate(**({"privacy": Gaussian(1.0, 1.0, 1e-5)} | changes))


class StopAfter(ft.callbacks.Callback):
    """Interrupts a run after so many rounds."""

    def __init__(self, rounds):
        self.rounds = rounds

    def on_round_end(self, run):
        if run.round == self.rounds:
            raise KeyboardInterrupt


def test_a_simulation_resumes_bit_for_bit_with_its_noise(tmp_path):
    mechanism = MatrixFactorisation(1.0, 1.0, 1e-5, min_separation=3)
    whole = simulate(mechanism, out=tmp_path / "whole")
    options = {"out": tmp_path / "cut", "checkpoint": {"seconds": 1e9, "every": 5}}
    with pytest.raises(KeyboardInterrupt):
        simulate(mechanism, callbacks=[StopAfter(7)], **options)
    resumed = simulate(mechanism, resume=True, **options)
    np.testing.assert_array_equal(whole.model, resumed.model)
    assert not np.array_equal(whole.model, simulate(None).model)


def test_a_model_whose_numbers_are_too_short_is_refused():
    """Rounding would let clipped updates exceed their bound."""
    private = make_private(AVERAGE, Gaussian(0.3, 1.0, 1e-5), seed=0)
    with pytest.raises(InvalidInputError, match=r"^privacy: .*float16.*give .* float32"):
        RoundDriver(private, torch.zeros(4, dtype=torch.bfloat16), Population(3))


GROUPED = FedAU(cutoff=10, groups=[0, 0, 0, 1, 1])


@pytest.mark.parametrize(
    "method",
    [
        FedAU(cutoff=10),
        FedAU(cutoff=10, average=0.9),
        GROUPED,
        Amplified(inner=FedAU(cutoff=10), period=2, factor=1.5),
    ],
    ids=["mean", "decayed", "groups", "wrapped"],
)
def test_training_ends_when_the_weights_of_all_clients_are_too_large_for_their_budgets(method):
    """FedAU's weight of a client that stays away only grows."""
    present = np.zeros((400, 5), dtype=bool)
    for n in range(5):
        present[n % 4 :: 4, n] = True
    mechanism = Gaussian(0.3, 1.0, 1e-5, budget=4.0)
    private = make_private(method, mechanism, seed=0)
    driver = RoundDriver(private, torch.zeros(2, dtype=torch.float64), Population(5))
    ended = None
    for t, row in enumerate(present):
        asked = Cohort.uniform(torch.from_numpy(np.flatnonzero(row)))
        everyone = driver.choose_cohort(Cohort.uniform(torch.arange(5)))
        finished = is_finished(driver, 5)
        assert not (finished and len(everyone)), t
        if finished and ended is None:
            ended, model = t, driver.state.model.clone()
        driver.run(
            asked,
            0.1,
            lambda _, cohort: ClientUpdates(
                cohort.clients,
                cohort.weights,
                torch.ones(len(cohort), 2, dtype=torch.float64),
                0.1,
                torch.ones(len(cohort)),
            ),
        )
    assert ended is not None
    assert ended < 390
    if not isinstance(method, Amplified):  # which repeats the steps of its last period
        assert (driver.state.model == model).all()


class PerReply(FedAvg):
    def normaliser(self, state):
        return float(len(state.clients))


class ByLength(FedAvg):
    def client_weights(self, state, updates):
        return 1.0 / (1.0 + updates.deltas[:, 0].abs())


class ByModel(FedAvg):
    def weight_bound(self, state):
        return 9.0

    def client_weights(self, state, updates):
        return torch.full((len(updates.clients),), 2.0 if (state.model == 0).all() else 1.0)


class BySamples(FedAvg):
    def client_weights(self, state, updates):
        return updates.samples.sqrt() / 10.0


def test_weights_by_numbers_of_samples_are_refused():
    private = make_private(BySamples(weights="all"), Gaussian(1.0, 1.0, 1e-5), 0)
    state, ids = private.init(torch.zeros(1), Population(2)), torch.arange(2)
    cohort = private.choose_cohort(state, Cohort.uniform(ids))
    updates = ClientUpdates(
        ids, cohort.weights, torch.ones(2, 1), 0.1, torch.ones(2), samples=torch.tensor([4.0, 9.0])
    )
    with pytest.raises(InvalidInputError, match=r"weights updates by what they are, "):
        private.absorb(state, updates)


class Negative(FedAvg):
    def client_weights(self, state, updates):
        return -2.0 * super().client_weights(state, updates)


class OwnStep(FedAU):
    def step(self, state, lr):
        return super().step(state, lr)


class Looking(Amplified):
    def absorb(self, state, updates):
        return super().absorb(state, updates)


class Adding(Amplified):
    def weigh(self, state, updates):
        return torch.ones_like(updates.weights)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (PerReply(weights="all"), r"divides the sum by 2, not by N = 3, .* correct its normaliser"),
        (ByLength(weights="all"), r"weights updates by what they are, .* who took part alone"),
        (ByModel(weights="all"), r"weights updates by what they are, or by the model, .* alone"),
        (Negative(weights="all"), r"the weight -2, more than its weight_bound of 1;"),
        (OwnStep(cutoff=5), r"OwnStep has its own step, .* leave it out"),
        (
            Looking(period=2, factor=1.5, inner=AVERAGE),
            r"Looking has its own absorb, .* leave it out",
        ),
        (
            Adding(period=2, factor=1.5, inner=AVERAGE),
            r"Adding has its own weigh, .* leave it out",
        ),
    ],
)
def test_sums_of_ones_own_that_noise_does_not_hide_are_refused(method, message):
    def ones(t, ids):
        return np.ones((len(ids), 1))

    present = np.array([[True, True, False]] * 2)
    with pytest.raises(InvalidInputError, match=f"^algorithm: .*{message}"):
        drive(method, Gaussian(1.0, 1.0, 1e-5), present, ones, 1)


@dataclass(frozen=True)
class SizeState(WeightedSumState):
    size: float


@dataclass(frozen=True)
class BySize(WeightedSum):
    """A method of a user that weights the updates of a round by the length of the last sum."""

    server_lr: float = 1.0

    def init(self, model, population):
        return SizeState.initial(model, population, size=0.0)

    def weight_bound(self, state):
        return 9.0

    def client_weights(self, state, updates):
        return torch.full((len(updates.clients),), 1.0 + state.size)

    def normaliser(self, state):
        return float(state.population)

    def record_cohort(self, state):
        return replace(state, size=float(state.total.norm() + state.model.norm()))


def test_a_method_of_ones_own_cannot_remember_a_sum_without_noise():
    """Only client 0 differs, and only in round 0: steps of later rounds must not."""

    def moved(first):
        def deltas(t, ids):
            return np.where((ids == 0) & (t == 0), first, 0.25)[:, None]

        return drive(BySize(), Gaussian(1.0, 0.0, 1e-5), np.ones((3, 4), bool), deltas, 1)[1]

    np.testing.assert_array_equal(moved(1.0)[1:], moved(0.0)[1:])


@pytest.mark.parametrize("hostile", [np.inf, -np.inf, np.nan, 1.7e308, 1e200, 3e38, 1e-300])
@pytest.mark.parametrize(("method", "quantile"), [(AVERAGE, None), (FedAU(cutoff=3), 0.5)])
def test_whatever_a_client_sends_moves_the_sum_by_no_more_than_the_norm(method, quantile, hostile):
    def moved(sent):
        def deltas(t, ids):
            rows = np.full((len(ids), 2), 0.1)
            rows[ids == 0] = sent, 0.3 * sent
            return rows

        mechanism = Gaussian(0.5, 0.0, 1e-5, quantile=quantile)
        return drive(method, mechanism, np.ones((1, 4), bool), deltas, 2)[1][0] * 4

    assert np.linalg.norm(moved(hostile) - moved(0.0)) <= 0.5


def test_the_sum_over_many_clients_is_exact_beyond_single_precision():
    """Else leaving out one of them could change it by more than C, by rounding."""
    clients, d = 100_000, 2
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(clients, d)) + 3.0).astype(np.float32)
    private = make_private(AVERAGE, Gaussian(100.0, 1.0, 1e-5), 0)
    state = private.init(torch.zeros(d), Population(clients))
    for ids in torch.arange(clients).split(30_000):
        ones = torch.ones(len(ids))
        state = private.absorb(
            state, ClientUpdates(ids, ones, torch.from_numpy(rows)[ids], 0.1, ones)
        )
    exact = [math.fsum(column) for column in rows.T.tolist()]
    np.testing.assert_allclose(state.inner.total.double().numpy(), exact, rtol=0, atol=1e-7)
    state, info = private.step(state, 0.1)
    assert {state.model.dtype, state.inner.total.dtype, info.direction.dtype} == {torch.float32}
