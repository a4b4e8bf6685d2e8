"""Every method against the literal listing of its paper, under arbitrary participation."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtide import algorithms as a
from fedtide.algorithms import ClientUpdates
from fedtide.population import Population
from fedtide.randomness import random_words

from . import references as ref
from .driver import Quadratics, drive, random_table

RATES = [0.9, 0.2, 0.5, 0.7]  # of at most four clients
ADAM = {"server_lr": 0.3, "beta1": 0.8, "beta2": 0.95, "tau": 0.01}


def drawn_order(t, clients):
    """The order in which FedBuff lets the updates of a round enter."""
    return sorted(clients, key=lambda n: random_words(0, "fedbuff order", t, n).view(np.int64))


CASES = {
    "fedavg": (lambda N: a.FedAvg(server_lr=1.3), partial(ref.fedavg, server_lr=1.3)),
    "fedavg-all": (lambda N: a.FedAvg(weights="all"), partial(ref.fedavg, weights="all")),
    "fedavg-given": (lambda N: a.FedAvg(weights="given"), partial(ref.fedavg, weights="given")),
    "known": (
        lambda N: a.KnownRates(server_lr=0.7, rates=RATES[:N]),
        partial(ref.known_rates, rates=RATES, server_lr=0.7),
    ),
    "fedau": (lambda N: a.FedAU(cutoff=None, server_lr=1.3), partial(ref.fedau, server_lr=1.3)),
    "fedau-3": (lambda N: a.FedAU(cutoff=3), partial(ref.fedau, K=3)),
    "fedvarp": (lambda N: a.FedVARP(server_lr=0.7), partial(ref.fedvarp, server_lr=0.7)),
    "fedvarp-memory": (
        lambda N: a.FedVARP(empty_rounds="memory"),
        partial(ref.fedvarp, empty_rounds="memory"),
    ),
    "fedstale": (
        lambda N: a.FedStale(server_lr=0.7, beta=0.3),
        partial(ref.fedstale, server_lr=0.7, beta=0.3),
    ),
    "fedstale-known": (
        lambda N: a.FedStale(rates=RATES[:N], empty_rounds="memory"),
        partial(ref.fedstale, rates=RATES, beta=0.5, empty_rounds="memory"),
    ),
    "f3ast": (
        lambda N: a.F3AST(server_lr=0.3, beta=0.2),
        partial(ref.f3ast, server_lr=0.3, beta=0.2),
    ),
    "f3ast-initial": (
        lambda N: a.F3AST(beta=0.1, initial=1.0),
        partial(ref.f3ast, beta=0.1, initial=1.0),
    ),
    "auto": (lambda N: a.Auto(server_lr=0.7), partial(ref.auto, server_lr=0.7)),
    "auto-plain": (
        lambda N: a.Auto(preconditioned=False),
        partial(ref.auto, preconditioned=False),
    ),
    "auto-control-variates": (
        lambda N: a.Auto(server_lr=0.7, control_variates=True),
        partial(ref.auto, server_lr=0.7, control_variates=True),
    ),
    "fedpbc": (lambda N: a.FedPBC(server_lr=0.7), partial(ref.fedpbc, server_lr=0.7)),
    "fedawe": (lambda N: a.FedAWE(server_lr=0.7), partial(ref.fedawe, server_lr=0.7)),
    "fedawe-clipped": (
        lambda N: a.FedAWE(server_lr=0.7, clip=0.1),
        partial(ref.fedawe, server_lr=0.7, clip=0.1),
    ),
    "focus": (
        lambda N: a.FOCUS(server_lr=1 / N),
        lambda problem, *args: ref.focus(problem, *args, server_lr=1 / problem.clients),
    ),
    "mifa": (lambda N: a.MIFA(server_lr=0.7), partial(ref.mifa, server_lr=0.7)),
    "mifa-exclude": (lambda N: a.MIFA(unseen="exclude"), partial(ref.mifa, unseen="exclude")),
    "mifa-wait": (lambda N: a.MIFA(unseen="wait"), partial(ref.mifa, unseen="wait")),
    "fedlaavg": (lambda N: a.FedLaAvg(), ref.fedlaavg),
    "fedprox": (
        lambda N: a.FedProx(mu=0.4, weights="given"),
        partial(ref.fedavg, mu=0.4, weights="given"),
    ),
    "scaffold-1": (lambda N: a.Scaffold(option=1), partial(ref.scaffold, option=1)),
    "scaffold-2": (lambda N: a.Scaffold(server_lr=0.6), partial(ref.scaffold, server_lr=0.6)),
    "scaffold-given": (
        lambda N: a.Scaffold(weights="given"),
        partial(ref.scaffold, weights="given"),
    ),
    "amplified-scaffold": (
        lambda N: a.AmplifiedScaffold(period=4, factor=1.5),
        partial(ref.amplified_scaffold, P=4, factor=1.5),
    ),
    "amplified-scaffold-given": (
        lambda N: a.AmplifiedScaffold(period=3, factor=0.8, weights="given"),
        partial(ref.amplified_scaffold, P=3, factor=0.8, weights="given"),
    ),
    "amplified": (
        lambda N: a.Amplified(period=3, factor=2.0, inner=a.FedAvg(weights="given")),
        partial(ref.amplified, P=3, factor=2.0, weights="given"),
    ),
    "amplified-late": (
        lambda N: a.Amplified(period=3, factor=0.5, start=2),
        partial(ref.amplified, P=3, factor=0.5, start=2),
    ),
    "fedadam": (lambda N: a.FedAdam(**ADAM), partial(ref.fedopt, rule="adam", v0=1e-4, **ADAM)),
    "fedyogi": (
        lambda N: a.FedYogi(v0=0.02, **ADAM),
        partial(ref.fedopt, rule="yogi", v0=0.02, **ADAM),
    ),
    "fedavgm-sum": (
        lambda N: a.FedAvgM(server_lr=0.5, momentum=0.6),
        partial(ref.fedavgm, server_lr=0.5, momentum=0.6, convention="sum"),
    ),
    "fedavgm-ema": (
        lambda N: a.FedAvgM(momentum=0.6, convention="ema"),
        partial(ref.fedavgm, server_lr=1.0, momentum=0.6, convention="ema"),
    ),
    "fedbuff": (
        lambda N: a.FedBuff(server_lr=0.7, buffer_size=3),
        partial(ref.fedbuff, B=3, server_lr=0.7, order=drawn_order),
    ),
    "fedbuff-1": (
        lambda N: a.FedBuff(buffer_size=1, exponent=1.0),
        partial(ref.fedbuff, B=1, a=1.0, order=drawn_order),
    ),
    "wait-steps": (lambda N: a.WaitForAll(period=3), partial(ref.wait_steps, P=3)),
    "wait-gradient": (
        lambda N: a.WaitForAll(period=3, mode="gradient"),
        partial(ref.wait_gradient, P=3),
    ),
    "weighted": (
        lambda N: a.WeightedFedAvg(rates=RATES[:N]),
        partial(ref.weighted_fedavg, p=RATES, normalise=True),
    ),
    "weighted-printed": (
        lambda N: a.WeightedFedAvg(rates=RATES[:N], normalise=False),
        lambda problem, *args: ref.weighted_fedavg(
            problem, *args, p=np.divide(RATES, sum(RATES[: problem.clients])), normalise=False
        ),
    ),
    "central": (lambda N: a.CentralSGD(), ref.central),
    "switch": (
        lambda N: a.Switch(first=a.FedAvg(), second=a.FedAU(cutoff=3), at=5),
        partial(ref.switch, first=ref.fedavg, second=partial(ref.fedau, K=3), at=5),
    ),
    "averaged": (lambda N: a.Averaged(a.FedAvg()), ref.fedavg),
    "scaled": (lambda N: a.Scaled(), ref.scaled),
    "clipped": (
        lambda N: a.Clipped(bound=0.2, inner=a.FedAU(cutoff=3)),
        partial(ref.clipped, bound=0.2, K=3),
    ),
    "clipped-quantile": (
        lambda N: a.Clipped(bound=0.2, quantile=0.4, rate=0.5, inner=a.FedAU(cutoff=None)),
        partial(ref.clipped, bound=0.2, quantile=0.4, rate=0.5),
    ),
    "trimmed-mean": (
        lambda N: a.TrimmedMean(trim=0.3, inner=a.FedAvg(server_lr=0.7)),
        partial(ref.trimmed, b=lambda S: [0, 0, 0, 1, 1][S], server_lr=0.7),
    ),
    "trimmed-mean-fedau": (
        lambda N: a.TrimmedMean(trim=0.1, inner=a.FedAU(cutoff=3)),
        partial(ref.trimmed, b=lambda S: [0, 0, 0, 1, 1][S], K=3),
    ),
    "median-fedau": (
        lambda N: a.Median(a.FedAU(cutoff=3)),
        partial(ref.trimmed, b=lambda S: [0, 0, 0, 1, 1][S], K=3),
    ),
}


@pytest.mark.parametrize("name", CASES)
@given(seed=st.integers(0, 2**32 - 1), rounds=st.integers(0, 14), clients=st.integers(1, 4))
@settings(max_examples=8)
def test_a_method_is_its_papers_listing(name, seed, rounds, clients):
    make, reference = CASES[name]
    rng = np.random.default_rng(seed)
    problem = Quadratics.random(rng, clients)
    table, lr = random_table(rng, rounds, clients), rng.uniform(0.05, 0.3, rounds)
    steps, start = int(rng.integers(1, 4)), rng.normal(size=3)

    driven = drive(
        make(clients), problem, table, lambda t: float(lr[t]), steps, start, chunks=3, shuffle=rng
    )

    expected = reference(problem, table, lr, steps, start)
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(driven.iterates, expected, rtol=0, atol=1e-10 * scale)


def test_the_output_of_averaged_is_the_mean_of_the_iterates():
    rng = np.random.default_rng(0)
    problem, table, start = Quadratics.random(rng, 3), random_table(rng, 9, 3), rng.normal(size=3)
    for inner in (a.FedAvg(), a.Amplified(period=2, factor=3.0)):
        method = a.Averaged(inner)
        driven = drive(method, problem, table, start=start)
        mean = driven.iterates[1:].mean(axis=0)
        np.testing.assert_allclose(method.output(driven.state), mean, atol=1e-13)


@pytest.mark.parametrize(("power", "weights"), [(1, [1, 2, 3, 4]), (2, [2, 6, 12, 20])])
def test_late_iterates_count_more_with_a_power(power, weights):
    """The weights t and t (t + 1), of which Shamir and Zhang's recursion is the mean."""
    rng = np.random.default_rng(0)
    problem, table = Quadratics.random(rng, 3), random_table(rng, 4, 3)
    method = a.Averaged(power=power)
    driven = drive(method, problem, table)
    mean = np.average(driven.iterates[1:], axis=0, weights=weights)
    np.testing.assert_allclose(method.output(driven.state), mean, atol=1e-13)


def test_auto_with_full_participation_is_fedavg_scaled_and_averaged():
    """After the first steps, which its credit makes up to a tenth longer."""
    rng = np.random.default_rng(3)
    problem, table = Quadratics.random(rng, 4), np.full((6, 4), 0.25)
    longer = a.Averaged(a.Scaled(a.FedAvg(server_lr=1.1)), power=2)
    auto, wrapped = (drive(method, problem, table) for method in (a.Auto(), longer))
    np.testing.assert_allclose(auto.iterates, wrapped.iterates, rtol=1e-12)
    outputs = a.Auto().output(auto.state), longer.output(wrapped.state)
    np.testing.assert_allclose(*outputs, rtol=1e-12)


def test_a_wrapper_around_averaged_averages_what_it_makes_of_the_iterates():
    rng = np.random.default_rng(1)
    problem, table = Quadratics.random(rng, 3), random_table(rng, 9, 3)
    method = a.Amplified(period=2, factor=3.0, inner=a.Averaged(a.FedAvg()))
    driven = drive(method, problem, table)
    mean = driven.iterates[1:].mean(axis=0)
    np.testing.assert_allclose(method.output(driven.state), mean, atol=1e-13)


def test_wrappers_nest():
    """Amplified(FedAdam(FedAU)) from FedAU's and Adam's listings, with the amplification on top."""
    rng = np.random.default_rng(2)
    problem, table, lr = Quadratics.random(rng, 3), random_table(rng, 12, 3), 0.1
    adam = {"server_lr": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 0.1}
    method = a.Amplified(period=4, factor=2.0, inner=a.FedAdam(**adam, inner=a.FedAU(cutoff=None)))

    x = x0 = np.zeros(3)
    m, v, xs = np.zeros(3), np.full(3, 0.01), [x]
    omega = [ref.algorithm_2(table[:, n] > 0, math.inf) for n in range(3)]
    for t in range(12):
        came = ref.present(table[t])
        steps = [omega[n][t] * (ref.local(problem, n, x, lr, 2)[0] - x) for n in came]
        delta = sum(steps, np.zeros(3)) / 3
        m, v = 0.9 * m + 0.1 * delta, 0.99 * v + 0.01 * delta**2
        x = x + 0.1 * m / (np.sqrt(v) + 0.1)
        if (t + 1) % 4 == 0:
            x = x0 = x0 + 2.0 * (x - x0)
        xs.append(x)

    driven = drive(method, problem, table, lr, steps=2)
    np.testing.assert_allclose(driven.iterates, xs, atol=1e-12)


def test_moving_a_wrapper_moves_what_it_wraps():
    method = a.Amplified(period=2, factor=2.0, inner=a.FedAdam(inner=a.Averaged(a.FedAU())))
    rng = np.random.default_rng(5)
    state = drive(method, Quadratics.random(rng, 4), random_table(rng, 5, 4)).state
    there = state.model + 1.0
    moved = method.with_model(state, there)
    while hasattr(moved, "inner"):
        assert moved.model is there
        moved = moved.inner
    assert moved.model is there


def test_fedbuff_draws_the_order_of_a_round_with_the_seed_of_the_run():
    """With B = 1 and a = 1 the update that enters as k-th has the weight 1 / k."""
    method, rows = a.FedBuff(buffer_size=1, exponent=1.0), torch.eye(6)

    def orders(seed):
        state = method.init(torch.zeros(6), Population(6, seed=seed))
        found = []
        for _ in range(3):
            updates = ClientUpdates(torch.arange(6), rows[0], rows, 0.1, rows[0])
            state, info = method.step(method.absorb(state, updates), 0.1)
            found.append([round(1 / w) for w in info.weights.tolist()])
        assert all(sorted(order) == [1, 2, 3, 4, 5, 6] for order in found)
        return found

    assert orders(1) == orders(1) != orders(2)
    assert orders(None) == orders(0) != orders(1)
