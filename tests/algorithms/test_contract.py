"""What holds for every method, whatever it does."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtide.algorithms import ALGORITHMS, ClientUpdates, Cohort, FedAU, RoundDriver
from fedtide.algorithms.base import WeightedTotal
from fedtide.algorithms.serialization import to_tensors
from fedtide.population import Population
from fedtide.testing import check_method

from .driver import Quadratics, drive, random_table
from .methods import BOUNDED, METHODS

PROBLEM = Quadratics.random(np.random.default_rng(3), 4)
START = np.array([2.0, -1.0, 3.0])
RATES = np.array([0.9, 0.5, 0.7, 0.2])
POPULATION = Population(4, samples=np.array([5, 2, 9, 4]), rates=RATES)
TABLES = {
    "random": random_table(np.random.default_rng(4), 30, 4),
    "empty": np.zeros((7, 4)),
}

every_method = pytest.mark.parametrize("method", METHODS + BOUNDED, ids=repr)


def run(method, table=TABLES["random"], problem=PROBLEM, **how):
    start = START if how.get("state") is None else None
    rates = RATES[: problem.clients]
    return drive(method, problem, table, 0.1, 2, start, rates=rates, **how)


def of_one_client(method):
    """The same method where groups would name four clients."""
    return replace(method, groups=["a"]) if isinstance(method, FedAU) and method.groups else method


@every_method
def test_it_keeps_the_contract(method):
    check_method(method)


def test_the_table_names_every_method():
    assert {type(method) for method in METHODS + BOUNDED} == set(ALGORITHMS.values())


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_it_reaches_the_optimum_when_everyone_is_there(method):
    everyone, equal = np.full((150, 4), 0.25), np.full(4, 1.0)
    driven = drive(method, PROBLEM, everyone, 0.2, 1, START, rates=equal)
    np.testing.assert_allclose(driven.iterates[-1], PROBLEM.optimum(), atol=1e-8)


@pytest.mark.parametrize("method", BOUNDED, ids=repr)
def test_it_reaches_an_optimum_on_which_all_clients_agree(method):
    agreed = Quadratics(PROBLEM.A, np.tile(PROBLEM.e[0], (4, 1)))
    everyone, equal = np.full((150, 4), 0.25), np.full(4, 1.0)
    driven = drive(method, agreed, everyone, 0.2, 1, START, rates=equal)
    np.testing.assert_allclose(driven.iterates[-1], agreed.optimum(), atol=1e-8)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_it_ends_where_its_weights_say_unless_absent_clients_count(method):
    """On F_n(x) = |x - e_n|² / 2, e_n the unit vectors, the optimum of Σ w_n F_n is w."""
    problem = Quadratics(np.tile(np.eye(4), (4, 1, 1)), np.eye(4))
    cycle = np.array([[1, 0, 0, 0], [1 / 2, 1 / 2, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0], [0, 0, 0, 1]])
    driven = drive(method, problem, np.tile(cycle, (150, 1)), 0.03, rates=(cycle > 0).mean(axis=0))
    counted = np.zeros(4)
    for info in driven.infos[300:]:
        np.add.at(counted, info.clients.numpy(), info.weights.numpy())
    found, said = driven.iterates[-300:].mean(axis=0), counted / counted.sum()
    assert method.traits.uses_absent_clients or np.abs(found - said).max() < 0.01


@every_method
def test_nothing_moves_before_anyone_came_and_a_single_client_is_enough(method):
    if type(method).__name__ != "WaitForAll":  # which trains everyone, present or not
        np.testing.assert_array_equal(run(method, TABLES["empty"]).iterates, [START] * 8)
    problem = Quadratics(PROBLEM.A[:1], PROBLEM.e[:1])
    driven = run(of_one_client(method), TABLES["random"][:, :1], problem)
    assert np.isfinite(driven.iterates).all()


@pytest.mark.fuzz
@every_method
@given(seed=st.integers(0, 2**32 - 1), lr=st.floats(1e-6, 0.02), steps=st.integers(1, 3))
@settings(max_examples=6)
def test_finite_reports_make_finite_models(method, seed, lr, steps):
    """Whatever clients take part, with steps well below 1 / (L I), nothing overflows."""
    rng = np.random.default_rng(seed)
    problem, table = Quadratics.random(rng, 4), random_table(rng, 25, 4)
    driven = drive(method, problem, table, lr, steps, rng.normal(size=3), rates=RATES)
    assert np.isfinite(driven.iterates).all()
    assert np.abs(driven.iterates).max() < 1e3


@every_method
def test_sums_of_chunks_may_take_the_place_of_their_updates(method):
    """Bit for bit, wherever a method offers it; weights are asked for before anything arrives."""
    if method.traits.centralised:
        return
    updates, sums = (RoundDriver(method, torch.from_numpy(START), POPULATION) for _ in range(2))
    rng = np.random.default_rng(5)
    for _ in range(6):
        cohort = Cohort.uniform(torch.tensor([0, 1, 3]))
        arrived = [
            ClientUpdates(
                part.clients,
                part.weights,
                torch.from_numpy(rng.normal(size=(len(part), 3))),
                lr=0.1,
                steps=torch.full((len(part),), 2),
                samples=torch.tensor([5, 2, 9, 4])[part.clients],
                gradients=torch.from_numpy(rng.normal(size=(len(part), 3))),
            )
            for _, part in updates.chunks(updates.choose_cohort(cohort), 2)
        ]
        weights = [sums.weigh(replace(one, deltas=one.deltas[:, :0])) for one in arrived]
        for one, w in zip(arrived, weights, strict=True):
            updates.absorb(one)
            sums.absorb(one if w is None else WeightedTotal(one.clients, w, w @ one.deltas))
        one, other = updates.step(0.1), sums.step(0.1)
        assert torch.equal(one.direction, other.direction)
        assert torch.equal(one.weights, other.weights)
        assert torch.equal(updates.output, sums.output)


def test_averages_offer_sums_and_methods_that_look_at_updates_do_not():
    def offers(method):
        driver = RoundDriver(method, torch.from_numpy(START), POPULATION)
        one = torch.ones(1, dtype=torch.float64)
        empty = ClientUpdates(torch.tensor([0]), one, one[:, None][:, :0], 0.1, one, one)
        return driver.weigh(empty) is not None

    offered = {type(method).__name__ for method in METHODS + BOUNDED if offers(method)}
    assert offered >= {
        "FedAvg",
        "FedAU",
        "KnownRates",
        "FedProx",
        "Amplified",
        "FedAdam",
        "Averaged",
    }
    looking = {"FedVARP", "MIFA", "FedLaAvg", "Scaffold", "AmplifiedScaffold", "Clipped", "Median"}
    assert not offered & (looking | {"TrimmedMean", "ClientSideMemory", "WaitForAll"})


@every_method
def test_a_round_that_says_nothing_ends_in_the_same_state(method):
    """Bit for bit, with several updates, one update and none."""
    told, silent = (RoundDriver(method, torch.from_numpy(START), POPULATION) for _ in range(2))
    rng = np.random.default_rng(6)
    for clients in ([0, 1, 3], [2], [], [0, 1, 2, 3]):
        cohort = Cohort.uniform(torch.tensor(clients, dtype=torch.int64))
        for _, part in told.chunks(told.choose_cohort(cohort), 1):
            rows = torch.from_numpy(rng.normal(size=(2, len(part), 3)))
            samples, steps = POPULATION.samples[part.clients], torch.full((len(part),), 2)
            for driver in (told, silent):
                driver.absorb(
                    ClientUpdates(
                        part.clients,
                        part.weights,
                        rows[0].clone(),
                        0.1,
                        steps,
                        torch.as_tensor(samples).reshape(-1),
                        rows[1].clone(),
                    )
                )
        told.step(0.1)
        silent.advance(0.1)
        found, expected = to_tensors(silent.state), to_tensors(told.state)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
