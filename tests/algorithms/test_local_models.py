"""Methods whose clients start from models of their own, or report gradients where they end."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import fedtide as ft
from fedtide import algorithms as a
from fedtide.algorithms import ClientUpdates, Cohort, RoundDriver
from fedtide.population import Population

from . import references as ref
from .driver import Quadratics, drive, random_table

RNG = np.random.default_rng(8)
PROBLEM = Quadratics.random(RNG, 5)
TABLE = random_table(RNG, 25, 5)
START = RNG.normal(size=3)


def simulated(method, table=TABLE, problem=PROBLEM, trainer="reference", **how):
    """The same rounds through the simulator, its trainers and its chunks."""
    return ft.simulate(
        problem=ft.problems.Quadratic(matrices=problem.A, centers=problem.e, start=START),
        participation=ft.participation.Table(weights=table),
        algorithm=method,
        local=ft.LocalTraining(steps=2, lr=0.1),
        rounds=len(table),
        dtype="float64",
        trainer=trainer,
        record_iterates=True,
        evaluation={"every": 0},
        **how,
    )


@pytest.mark.parametrize(
    ("method", "reference"), [(a.FedAWE(), ref.fedawe), (a.FedPBC(), ref.fedpbc)]
)
def test_the_mean_of_all_clients_models_is_recommended(method, reference):
    means = reference(PROBLEM, TABLE, np.full(len(TABLE), 0.1), 2, START, output=True)
    np.testing.assert_allclose(simulated(method).model, means[-1], atol=1e-11)
    for stop in (0, 1, 7, 23):
        driven = drive(method, PROBLEM, TABLE[:stop], 0.1, 2, START)
        np.testing.assert_allclose(method.output(driven.state), means[stop], atol=1e-11)


@pytest.mark.parametrize("method", [a.FedAWE(), a.FedPBC()], ids=repr)
def test_in_single_precision_the_output_stays_the_mean_of_all_clients_models(method):
    """From far away, so that a sum of 2,000 rounded changes would be off by 0.01 or more."""
    clients = torch.arange(5)
    table = (np.random.default_rng(9).random((2000, 5)) < 0.5) * 0.2
    driven = drive(method, PROBLEM, table, 0.01, 2, START + 1e4, dtype=torch.float32)
    models = method.instruct(driven.state, clients).model
    mean = models.double().mean(dim=0)
    torch.testing.assert_close(method.output(driven.state).double(), mean, rtol=0, atol=2e-3)


def test_with_fedawe_all_clients_of_a_round_have_counted_equally_until_then():
    """Proposition 1: whoever takes part in round t has echoes that sum to t + 1."""
    driven, echoes = drive(a.FedAWE(), PROBLEM, TABLE), np.zeros(5)
    for t, info in enumerate(driven.infos):
        clients = info.clients.numpy()
        echoes[clients] += info.weights.numpy() * len(clients)
        np.testing.assert_allclose(echoes[clients], t + 1)


@pytest.mark.parametrize("method", [a.FedAWE(), a.FedPBC()], ids=repr)
def test_a_wrapper_moves_the_models_of_the_clients_of_the_round(method):
    state = drive(method, PROBLEM, np.array([[0.5, 0.5, 0, 0, 0]]), start=START).state
    starts = method.instruct(state, torch.arange(5)).model
    wanted = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    moved = method.with_model(state, wanted)
    models = method.instruct(moved, torch.arange(5)).model
    torch.testing.assert_close(models, torch.stack([wanted, wanted, *starts[2:]]))
    torch.testing.assert_close(method.output(moved), models.mean(dim=0))


def test_focus_reaches_the_optimum_exactly_whoever_comes():
    """Rates from 0.1 to 0.9 and a constant γ, with which FedAU keeps wandering."""
    rng = np.random.default_rng(0)
    problem = Quadratics.random(rng, 5)
    table = (rng.random((300, 5)) < [0.1, 0.3, 0.5, 0.7, 0.9]) * 0.2
    error = {
        method: np.linalg.norm(
            drive(method, problem, table, 0.1, 2, np.ones(3)).iterates - problem.optimum(), axis=1
        )
        for method in (a.FOCUS(server_lr=0.2), a.FedAU())
    }
    focus, fedau = error.values()
    assert focus[100] < 1e-2 * focus[0]
    assert focus[200] < 1e-2 * focus[100]
    assert focus[-1] < 1e-10
    assert fedau[200:].min() > 1e-2


def test_only_clients_that_report_count_as_participants_of_fedpbc():
    """The others train as well; a weight of 0 does not make a client absent."""
    result, plain = (simulated(method, TABLE[:20]) for method in (a.FedPBC(), a.FedAvg()))
    assert result.clients["participation"].to_list() == plain.clients["participation"].to_list()
    state = a.FedPBC().init(torch.zeros(1), Population(2))
    cohort = a.FedPBC().choose_cohort(state, Cohort(torch.tensor([1]), torch.tensor([0.0])))
    updates = ClientUpdates(
        cohort.clients, cohort.weights, torch.tensor([[4.0], [2.0]]), 0.1, torch.ones(2)
    )
    state, _ = a.FedPBC().step(a.FedPBC().absorb(state, updates), lr=0.1)
    assert state.model.tolist() == [2.0]


@dataclass(frozen=True)
class Starts(a.FedAvg):
    """Clients 0 to 9 have the first of two models, all others the second."""

    def instruct(self, state, clients):
        second = clients >= 10
        return a.Instructions(second.to(state.model)[:, None] + state.model, starts=second.int())


@pytest.mark.parametrize(
    ("size", "expected"), [(None, [10, 30]), (25, [10, 25, 5]), (4, [4, 4, 2, *7 * [4], 2])]
)
def test_clients_with_the_same_model_train_together_in_chunks_of_the_same_size(size, expected):
    driver = RoundDriver(Starts(), torch.zeros(1), Population(40))
    chunks = list(driver.chunks(Cohort.uniform(torch.arange(40)), size))
    assert [len(cohort) for _, cohort in chunks] == expected
    assert torch.cat([cohort.clients for _, cohort in chunks]).tolist() == list(range(40))
    for instructions, cohort in chunks:
        assert instructions.model.tolist() == [float(cohort.clients[0] >= 10)]


@pytest.mark.parametrize(
    ("method", "trainer"), [(a.FedAWE(), "reference"), (a.FedPBC(), "stacked")], ids=repr
)
def test_a_cohort_in_chunks_gives_the_same_models(method, trainer):
    whole = simulated(method, TABLE[:12], trainer=trainer)
    parts = simulated(method, TABLE[:12], trainer=trainer, max_stack_bytes=48)
    np.testing.assert_allclose(parts.iterates, whole.iterates, atol=1e-12)


@dataclass(frozen=True)
class ByNorm(a.FedAvg):
    """Weighs updates by their norms, and does not say so."""

    def client_weights(self, state, updates):
        return 1 / (1 + updates.deltas.norm(dim=1))


def test_weights_that_read_the_updates_are_not_known_before_training(monkeypatch):
    found = simulated(ByNorm(), TABLE[:12], trainer="stacked")
    monkeypatch.setattr(ByNorm, "weigh", lambda *_: None)
    expected = simulated(ByNorm(), TABLE[:12], trainer="stacked")
    np.testing.assert_array_equal(found.iterates, expected.iterates)
