"""Methods that must coincide where their equations do."""

import numpy as np
import pytest
import torch

from fedtide import algorithms as a
from fedtide.algorithms import ClientUpdates
from fedtide.population import Population

from .driver import Quadratics, drive, random_table

RNG = np.random.default_rng(5)
PROBLEM = Quadratics.random(RNG, 4)
EVERYONE = np.full((12, 4), 0.25)
SOME = random_table(RNG, 40, 4)
START = RNG.normal(size=3)


def iterates(method, table, lr=0.1, steps=3):
    return drive(method, PROBLEM, table, lr, steps, START).iterates


def same(first, second, table, **how):
    np.testing.assert_allclose(
        iterates(first, table, **how), iterates(second, table, **how), atol=1e-11
    )


@pytest.mark.parametrize(
    "method",
    [
        a.FedAU(),
        a.FedVARP(),
        a.MIFA(),
        a.FedLaAvg(),
        a.FedAvg(weights="all"),
        a.KnownRates(rates=[1.0] * 4),
        a.WeightedFedAvg(rates=[0.25] * 4, normalise=False),
        a.WaitForAll(period=1),
        a.FedStale(beta=0.3),
        a.FedAWE(),
        a.FedPBC(),
        a.F3AST(initial=1.0),
        a.FedBuff(buffer_size=4),
        a.FedBuff(buffer_size=2, exponent=0.0, server_lr=0.5),
    ],
    ids=repr,
)
def test_with_everyone_present_this_is_fedavg(method):
    same(method, a.FedAvg(), EVERYONE)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (a.FedAU(cutoff=1), a.FedAvg(weights="all")),
        (a.FedLaAvg(), a.MIFA()),
        (a.FedStale(beta=0.0), a.FedAU(cutoff=None)),
        (a.FedStale(beta=0.0, rates=[0.2, 0.9, 1, 0.5]), a.KnownRates(rates=[0.2, 0.9, 1, 0.5])),
        (a.F3AST(beta=1.0), a.FedAvg(weights="all")),
        (a.FedProx(mu=0.0), a.FedAvg()),
        (a.FedProx(mu=0.0, weights="given"), a.FedAvg(weights="given")),
        (a.Amplified(period=1, factor=1.7), a.FedAvg(server_lr=1.7)),
        (a.Amplified(period=5, factor=1.0), a.FedAvg()),
        (a.AmplifiedScaffold(period=1, factor=1.0), a.Scaffold(option=2)),
        (a.Switch(first=a.FedAvg(), second=a.FedAU(cutoff=2), at=0), a.FedAU(cutoff=2)),
        (a.Switch(first=a.MIFA(), second=a.FedAvg(), at=99), a.MIFA()),
        (a.FedAvgM(momentum=0.0), a.FedAvg()),
        (a.FedAvgM(server_lr=0.5, momentum=0.8), a.FedAvgM(2.5, 0.8, convention="ema")),
        (a.FedAdam(server_lr=10.0, beta1=0.0, tau=1e9), a.FedAvg(server_lr=1e-8)),
        (a.Averaged(a.MIFA()), a.MIFA()),
        (a.KnownRates(rates=[0.5] * 4), a.FedAvg(server_lr=2.0, weights="all")),
    ],
    ids=repr,
)
def test_whoever_comes_these_two_are_the_same(first, second):
    same(first, second, SOME)


def test_with_one_step_both_options_of_scaffold_are_the_same():
    """Then the only raw gradient is the one at x."""
    same(a.Scaffold(option=1), a.Scaffold(option=2), SOME, steps=1)


@pytest.mark.parametrize("method", [a.FedLaAvg(), a.MIFA(), a.Scaffold(), a.FedAvg()], ids=repr)
def test_with_everyone_and_one_step_this_is_gradient_descent(method):
    x, expected = START, [START]
    for _ in range(12):
        x = x - 0.1 * np.mean([PROBLEM.gradient(n, x) for n in range(4)], axis=0)
        expected.append(x)
    np.testing.assert_allclose(iterates(method, EVERYONE, steps=1), expected, atol=1e-12)


def test_fedlaavg_scales_old_gradients_by_the_current_rate_and_mifa_does_not():
    table = np.zeros((2, 4))
    table[0, 1] = 1.0
    halving = {"lr": lambda t: 0.2 / 2**t, "steps": 1}
    first = -0.05 * PROBLEM.gradient(1, START)
    np.testing.assert_allclose(iterates(a.MIFA(), table, **halving)[2], START + 2 * first)
    np.testing.assert_allclose(iterates(a.FedLaAvg(), table, **halving)[2], START + 1.5 * first)


def test_the_weights_of_a_round_are_what_the_updates_were_multiplied_by():
    """The direction is Σ w_n Δ_n, for the methods without memory or momentum."""
    for method in (a.FedAvg(server_lr=1.3), a.FedAU(cutoff=2), a.WeightedFedAvg(rates=[0.5] * 4)):
        driven = drive(method, PROBLEM, SOME, 0.1, 1, START)
        for x, info in zip(driven.models, driven.infos, strict=False):
            updates = [-0.1 * PROBLEM.gradient(n, x.numpy()) for n in info.clients.tolist()]
            total = sum(w * u for w, u in zip(info.weights.tolist(), updates, strict=True))
            np.testing.assert_allclose(info.direction.numpy(), total, atol=1e-14)


def test_moving_a_wrapper_moves_what_it_wraps():
    method = a.Amplified(period=2, factor=2.0, inner=a.FedAdam(inner=a.Averaged(a.FedAU())))
    state = drive(method, PROBLEM, SOME[:5], start=START).state
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
