"""Errors name the field and the value."""

import numpy as np
import pytest
import torch

from fedtide import algorithms as a
from fedtide.errors import InvalidInputError
from fedtide.flower import ClientSideMemory
from fedtide.population import Population

from .driver import Quadratics, drive

PARAMETERS = [  # rules over several fields; tests/spec checks those that single fields declare
    (lambda: a.FedAvg(weights="meen"), "weights: unknown 'meen'; did you mean 'mean'"),
    (lambda: a.FedAU(cutoff=0), "cutoff: 0 is below 1"),
    (lambda: a.FedAU(average=1.5), "average: the decay 1.5"),
    (lambda: a.FedAU(average="median"), "average: unknown 'median'"),
    (lambda: a.FedAU(average=0.5, groups=[0]), "average: groups share"),
    (lambda: a.Auto(memory_folder="x"), "memory_folder: without control variates no updates"),
    (
        lambda: a.Switch(first=a.FedAvg(), second=ClientSideMemory(a.MIFA()), at=1),
        "second: clients cannot change the form",
    ),
    (
        lambda: a.Switch(first=a.CentralSGD(), second=a.MIFA(), at=1),
        "second: one method pools",
    ),
    (lambda: a.TrimmedMean(trim=0.5), r"trim: 0.5 is not within \[0, 0.5\)"),
]
POPULATIONS = [
    (a.FedAvg(weights="data"), "weights: 'data' needs clients that hold samples"),
    (a.FedAU(groups=["a"]), "groups: 1 entry for 2 clients"),
    (a.KnownRates(), "rates: unknown, as the participation process does"),
    (a.KnownRates(rates=[0.5]), "rates: 1 rate for 2 clients"),
    (a.KnownRates(rates=[0.5, 0.0]), "rates: client 1 has the rate 0 and may take part"),
    (a.WeightedFedAvg(rates=[0.5, 1.5]), "rates: a rate is not within"),
    (a.WeightedFedAvg(rates=[0.0, 0.0]), "rates: all are 0"),
    (a.Amplified(period=2, factor=2.0, inner=a.KnownRates()), "rates: unknown, as"),
]


@pytest.mark.parametrize(("make", "complaint"), PARAMETERS)
def test_parameters(make, complaint):
    with pytest.raises(InvalidInputError, match=f"^{complaint}"):
        make()


@pytest.mark.parametrize(
    "inner",
    [
        a.Scaffold(option=1),
        a.Scaffold(),
        a.AmplifiedScaffold(period=2, factor=1.5),
        a.CentralSGD(),
        ClientSideMemory(a.MIFA()),
    ],
    ids=repr,
)
def test_methods_that_learn_more_than_updates_from_clients_cannot_be_clipped(inner):
    with pytest.raises(InvalidInputError, match=r"^inner: it uses more .*; give"):
        a.Clipped(bound=1.0, inner=inner)


@pytest.mark.parametrize(
    "inner",
    [
        a.FedAWE(),
        a.FedPBC(),
    ],
    ids=repr,
)
def test_clients_with_models_of_their_own_would_not_follow_a_wrapper_that_moves_the_model(inner):
    """Also not the steps that momentum makes in rounds without updates."""
    wrappers = [
        lambda inner: a.Amplified(period=2, factor=1.5, inner=inner),
        lambda inner: a.FedAvgM(inner=inner),
        lambda inner: a.FedAdam(inner=inner),
    ]
    for wrapper in wrappers:
        with pytest.raises(InvalidInputError, match=r"^inner: its clients continue from .*; give"):
            wrapper(inner)
        assert wrapper(a.FedAU())


@pytest.mark.parametrize(
    "inner",
    [
        a.MIFA(),
        a.FedAdam(),
        a.Amplified(period=2, factor=1.5),
        a.Clipped(bound=1.0),
        a.CentralSGD(),
    ],
    ids=repr,
)
def test_only_averages_of_a_rounds_updates_can_be_trimmed(inner):
    for wrapper in (a.TrimmedMean, a.Median):
        with pytest.raises(InvalidInputError, match=r"^inner: its step is not .*; give"):
            wrapper(inner=inner)
        assert wrapper(inner=a.Auto(preconditioned=False)).inner == a.Auto(preconditioned=False)


@pytest.mark.parametrize(("method", "complaint"), POPULATIONS)
def test_parameters_that_do_not_fit_the_population(method, complaint):
    with pytest.raises(InvalidInputError, match=f"^{complaint}"):
        method.init(torch.zeros(1), Population(2))


def test_a_rate_may_be_zero_where_the_process_never_lets_the_client_take_part():
    never = Population(2, rates=np.array([0.5, 0.0]))
    a.KnownRates(rates=[0.5, 0.0]).init(torch.zeros(1), never)
    a.KnownRates().init(torch.zeros(1), never)
    a.WeightedFedAvg(rates=[0.5, 0.0]).init(torch.zeros(1), Population(2))


@pytest.mark.parametrize("method", [a.FedLaAvg(), a.Scaffold(), a.WaitForAll(1, "gradient")])
def test_gradients_cannot_be_recovered_without_a_learning_rate(method):
    problem = Quadratics.random(np.random.default_rng(0), 2)
    with pytest.raises(InvalidInputError, match=r"^lr: 0\.0 is not a positive number"):
        drive(method, problem, np.ones((1, 2)), lr=0.0)


def test_methods_that_recover_gradients_require_plain_sgd():
    plain = [
        a.Scaffold(),
        a.AmplifiedScaffold(period=1, factor=1.0),
        a.WaitForAll(1, mode="gradient"),
        a.FedAdam(inner=a.Averaged(a.Scaffold())),
        a.Switch(first=a.FedAvg(), second=a.Scaffold(), at=3),
    ]
    others = [a.Scaffold(option=1), a.WaitForAll(1), a.FedLaAvg(), a.FedAdam(), a.FedProx(mu=1.0)]
    assert all(method.traits.requires_plain_sgd for method in plain)
    assert not any(method.traits.requires_plain_sgd for method in others)
    assert a.Averaged(a.CentralSGD()).traits.centralised


def test_methods_that_remember_latest_updates_accept_stale_ones():
    memory = [a.MIFA(), a.FedLaAvg(), a.FedVARP(), ClientSideMemory(a.MIFA())]
    memory += [a.Amplified(period=5, factor=2.0, inner=a.MIFA())]
    memory += [a.Switch(first=a.MIFA(), second=a.FedVARP(), at=3)]
    others = [a.FedAU(), a.Scaffold(), ClientSideMemory(a.FedAU()), a.FedAdam()]
    others += [a.Switch(first=a.FedAvg(), second=a.MIFA(), at=3)]
    assert all(method.traits.accepts_stale_updates for method in memory)
    assert not any(method.traits.accepts_stale_updates for method in others)
