"""What holds for every method, whatever it does."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtide.algorithms import ALGORITHMS, ClientUpdates, Cohort, FedAU, RoundDriver
from fedtide.algorithms.base import WeightedTotal
from fedtide.algorithms.serialization import from_tensors, to_tensors
from fedtide.population import Population

from .driver import Quadratics, drive, random_table
from .methods import BOUNDED, METHODS

PROBLEM = Quadratics.random(np.random.default_rng(3), 4)
START = np.array([2.0, -1.0, 3.0])
RATES = np.array([0.9, 0.5, 0.7, 0.2])
POPULATION = Population(4, samples=np.array([5, 2, 9, 4]), rates=RATES)
TABLES = {
    "random": random_table(np.random.default_rng(4), 30, 4),
    "empty": np.zeros((7, 4)),
    "absent, then back": np.kron([[1.0], [0.0], [1.0]], np.eye(4)[[0, 1, 1, 3]] + 0.0),
}

BY_NAME = {repr(method): method for method in METHODS + BOUNDED}

every_method = pytest.mark.parametrize("method", METHODS + BOUNDED, ids=repr)
every_table = pytest.mark.parametrize("table", TABLES)


def run(method, table=TABLES["random"], problem=PROBLEM, **how):
    start = START if how.get("state") is None else None
    rates = RATES[: problem.clients]
    return drive(method, problem, table, 0.1, 2, start, rates=rates, **how)


def undisturbed(method, table="random"):
    """Return what the method does with the whole table; tests share it."""
    return _undisturbed(repr(method), table)


@cache
def _undisturbed(method, table):
    return run(BY_NAME[method], TABLES[table])


def of_one_client(method):
    """The same method where groups would name four clients."""
    return replace(method, groups=["a"]) if isinstance(method, FedAU) and method.groups else method


@every_method
def test_participants_exchange_as_many_vectors_as_they_are_instructed_to(method, monkeypatch):
    counts, instruct = set(), type(method).instruct

    def count(self, state, clients):
        found = instruct(self, state, clients)
        counts.add(2 + (found.correction is not None) + found.gradients + found.end_gradients)
        return found

    monkeypatch.setattr(type(method), "instruct", count)
    run(method)
    assert method.message_vectors == max(counts)


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
    assert method.uses_absent_clients or np.abs(found - said).max() < 0.01


@every_method
@every_table
def test_it_says_what_it_did(method, table):
    driven = undisturbed(method, table)
    assert driven.state.round == len(TABLES[table])
    for before, after, info in zip(driven.models, driven.models[1:], driven.infos, strict=False):
        torch.testing.assert_close(after - before, info.direction, rtol=0, atol=1e-12)
        assert len(info.clients) == len(info.weights)
        assert len(set(info.clients.tolist())) == len(info.clients)
        assert bool(torch.isfinite(after).all() and torch.isfinite(info.weights).all())


@every_method
def test_it_lists_who_reported_in_the_order_of_arrival(method):
    if method.centralised:
        return
    state = method.init(torch.from_numpy(START), Population(4, rates=RATES))
    present = torch.tensor([2, 0])
    driven = drive(method, PROBLEM, np.array([[0.4, 0.0, 0.6, 0.0]]), state=state, rates=RATES)
    start = method.init(state.model, Population(4, rates=RATES))
    trained = method.choose_cohort(start, Cohort.uniform(present)).clients
    assert driven.infos[0].clients.tolist() == sorted(trained.tolist())


@every_method
def test_nothing_moves_before_anyone_came(method):
    if type(method).__name__ == "WaitForAll":
        return  # it trains everyone, present or not
    np.testing.assert_array_equal(run(method, TABLES["empty"]).iterates, [START] * 8)


@every_method
def test_it_works_for_a_single_client(method):
    problem = Quadratics(PROBLEM.A[:1], PROBLEM.e[:1])
    driven = run(of_one_client(method), TABLES["random"][:, :1], problem)
    assert np.isfinite(driven.iterates).all()


@every_method
@every_table
def test_the_order_and_number_of_chunks_do_not_matter(method, table):
    chunked = run(method, TABLES[table], chunks=3, shuffle=np.random.default_rng(0))
    np.testing.assert_allclose(chunked.iterates, undisturbed(method, table).iterates, atol=1e-12)


@every_method
@pytest.mark.parametrize("stop", [0, 7, 29])
def test_a_stored_state_goes_on_bit_for_bit(method, stop):
    whole = undisturbed(method)
    stopped = run(method, TABLES["random"][:stop]).state
    fresh = method.init(torch.from_numpy(START), Population(4, rates=RATES))
    resumed = run(
        method, state=from_tensors(fresh, through_a_file(to_tensors(stopped))), first=stop
    )
    np.testing.assert_array_equal(resumed.iterates, whole.iterates[stop:])
    torch.testing.assert_close(method.output(resumed.state), method.output(whole.state))


def through_a_file(packed: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Store and load with safetensors, which refuses tensors that share memory."""
    return safetensors.torch.load(safetensors.torch.save(dict(packed)))


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_is_kept(method, dtype):
    driven = run(method, dtype=dtype)
    assert {model.dtype for model in driven.models} == {dtype}
    assert {info.direction.dtype for info in driven.infos} == {dtype}
    assert method.output(driven.state).dtype == dtype
    expected = undisturbed(method).iterates
    np.testing.assert_allclose(driven.iterates, expected, rtol=0, atol=1e-4)


@every_method
def test_weights_may_be_those_of_a_cohort(method):
    """They are float64, whatever the model is."""

    def train(_, cohort):
        rows = torch.ones(len(cohort), 3)
        samples = torch.tensor([5, 2, 9, 4])[cohort.clients]
        steps = torch.ones(len(cohort))
        return ClientUpdates(cohort.clients, cohort.weights, rows, 0.1, steps, samples, rows)

    driver = RoundDriver(method, torch.zeros(3), POPULATION)
    for clients in ([0], [0, 2, 3], []):
        if not method.centralised or len(clients) == 1:
            info = driver.run(Cohort.uniform(torch.tensor(clients, dtype=torch.int64)), 0.1, train)
            found = {driver.state.model.dtype, info.direction.dtype, driver.output.dtype}
            assert found == {torch.float32}


@every_method
def test_a_model_never_changes_in_place(method):
    state = method.init(torch.from_numpy(START.copy()), Population(4, rates=RATES))
    kept = [(state.model, state.model.clone())]
    for t in range(len(TABLES["random"])):
        driven = run(method, TABLES["random"][: t + 1], state=state, first=t)
        state = driven.state
        kept.append((state.model, state.model.clone()))
    for model, copy in kept:
        assert torch.equal(model, copy)


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
    if method.centralised:
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
