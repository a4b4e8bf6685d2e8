"""The replay of methods along a log, against the algorithms that train elsewhere."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from fedtide.algorithms import ALGORITHMS, ClientUpdates, Cohort, Instructions, RoundDriver
from fedtide.auditing.recommend.log_replay import Script, replay
from fedtide.auditing.statistics.auto_weights import auto_weights
from fedtide.population import Population

CLIENTS, ROUNDS = 7, 40
STEPS = np.array([0.3, 0.05], dtype=np.float32)
METHODS: list[dict[str, Any]] = [
    {"type": "fedavg"},
    {"type": "fedavg", "weights": "all"},
    {"type": "fedavg", "weights": "data"},
    {"type": "fedau", "cutoff": 5},
    {"type": "auto", "preconditioned": False},
    {"type": "known-rates"},
    {"type": "amplified", "period": 6, "factor": 1.5, "inner": {"type": "fedavg"}},
    {"type": "amplified", "period": 4, "factor": 3.0, "inner": {"type": "fedau", "cutoff": 5}},
    {"type": "mifa"},
    {"type": "fedlaavg"},
    {"type": "fedvarp"},
    {"type": "scaffold"},
    {"type": "amplified-scaffold", "period": 6, "factor": 1.5},
    {"type": "amplified-scaffold", "period": 5, "factor": 1.0},
]


@pytest.fixture(scope="module")
def cohorts() -> list[np.ndarray]:
    """Return who takes part; some rounds are empty, and client 6 never comes."""
    present = np.random.default_rng(4).random((ROUNDS, CLIENTS)) < 0.25
    present[[3, 17]] = False
    present[:, 6] = False
    return [np.flatnonzero(row) for row in present]


def make_script(cohorts: list[np.ndarray], factors: np.ndarray) -> Script:
    """Return a script whose FedAU weights come from the published algorithm, round by round."""
    clients = np.concatenate(cohorts).astype(np.int32)
    targets = np.random.default_rng(5).normal(size=(len(clients), 3)).astype(np.float32)
    return Script(
        starts=np.concatenate([[0], np.cumsum([len(cohort) for cohort in cohorts])]),
        clients=clients,
        size=CLIENTS,
        targets=targets,
        start=np.array([1.0, 0.0, -0.5], dtype=np.float32),
        steps=STEPS,
        factors=factors,
        fedau_weights=fedau_weights(cohorts, 5),
        auto_weights=published_auto_weights(cohorts),
        rates=np.linspace(0.1, 0.7, CLIENTS),
        samples=np.arange(1.0, CLIENTS + 1),
    )


def fedau_weights(cohorts: list[np.ndarray], cutoff: int) -> np.ndarray:
    """Return ω of each entry by Algorithm 2 of paper 001, as it is printed."""
    closed: list[list[int]] = [[] for _ in range(CLIENTS)]
    waited = np.zeros(CLIENTS, dtype=int)
    found = []
    for cohort in cohorts:
        found += [float(np.mean(closed[n])) if closed[n] else 1.0 for n in cohort]
        waited += 1
        for n in range(CLIENTS):
            if n in cohort or waited[n] == cutoff:
                closed[n].append(waited[n])
                waited[n] = 0
    return np.array(found)


def published_auto_weights(cohorts: list[np.ndarray]) -> np.ndarray:
    """Return a_n of each entry as docs/auto.md prints it, in exact arithmetic but for ρ."""
    rho, updates, t = (5**0.5 - 1) / 2, 0, 0
    accounts = [0.0] * CLIENTS
    found = []
    for cohort in cohorts:
        owed = t + 1 + (CLIENTS / rho) * max(t, 1) / max(updates, 1)
        debts = {n: max(0.0, owed - accounts[n]) for n in cohort}
        total = sum(rho * debt for debt in debts.values())
        cut = min(1.0, 1.1 * CLIENTS / total) if total else 1.0
        for n, debt in debts.items():
            found.append(rho * debt * cut)
            accounts[n] = owed - debt + found[-1]
        updates += len(cohort)
        t += len(cohort) > 0
    return np.array(found)


def run_algorithm(script: Script, settings: dict[str, Any], step: int) -> np.ndarray:
    """Return the iterates x_1, x_2, ... of the algorithm itself, shape (R, K)."""
    parameters = {key: value for key, value in settings.items() if key != "type"}
    if "inner" in parameters:
        inner = dict(parameters["inner"])
        parameters["inner"] = ALGORITHMS[inner.pop("type")](**inner)
    method = ALGORITHMS[settings["type"]](**parameters)
    assert script.samples is not None
    population = Population(CLIENTS, samples=script.samples.astype(int), rates=script.rates)
    driver = RoundDriver(method, torch.tensor(script.start).double(), population)
    lr = float(STEPS[step])
    iterates = []
    for t in range(ROUNDS):
        low, high = script.starts[t], script.starts[t + 1]
        ids = torch.tensor(script.clients[low:high].astype(np.int64))
        targets = torch.tensor(script.targets[low:high]).double()
        plain = settings.get("weights") == "data"
        factors = torch.ones(CLIENTS) if plain else torch.tensor(script.factors)
        driver.run(Cohort.uniform(ids), lr, partial(train, targets, factors.double(), lr))
        iterates.append(driver.state.model.numpy().copy())
    return np.stack(iterates)


def train(
    targets: torch.Tensor,
    factors: torch.Tensor,
    lr: float,
    instructions: Instructions,
    cohort: Cohort,
) -> ClientUpdates:
    """Take one gradient step on N a_n ½ (x − target)²."""
    gradients = factors[cohort.clients, None] * (instructions.model - targets)
    if instructions.correction is not None:
        gradients = gradients + instructions.correction
    ones = torch.ones(len(cohort), dtype=torch.int64)
    samples = cohort.clients + 1
    return ClientUpdates(cohort.clients, cohort.weights, -lr * gradients, lr, ones, samples)


@pytest.mark.parametrize("wanted", ["equal", "uneven"])
def test_replay_equals_the_algorithms_for_every_step_size(
    cohorts: list[np.ndarray], wanted: str
) -> None:
    factors = np.ones(CLIENTS) if wanted == "equal" else np.linspace(0.4, 1.6, CLIENTS)
    script = make_script(cohorts, factors)
    found = replay(script, METHODS, blocks=2)
    assert found.shape == (len(METHODS), 2, 2, 3)
    for settings, squares in zip(METHODS, found, strict=True):
        for step in range(2):
            last = run_algorithm(script, settings, step)[-(ROUNDS // 3) :]
            halves = [part.mean(axis=0) for part in np.split(last**2, [len(last) // 2])]
            np.testing.assert_allclose(squares[:, step], halves, rtol=2e-3, atol=1e-6)


def test_weights_of_auto_follow_its_definition(cohorts: list[np.ndarray]) -> None:
    starts = np.concatenate([[0], np.cumsum([len(cohort) for cohort in cohorts])])
    found = auto_weights(starts, np.concatenate(cohorts), CLIENTS)
    np.testing.assert_allclose(found, published_auto_weights(cohorts), rtol=1e-12)


def test_diverging_method_has_an_infinite_loss(cohorts: list[np.ndarray]) -> None:
    script = make_script(cohorts, np.ones(CLIENTS))
    wild = Script(**{**vars(script), "steps": np.array([1e6], dtype=np.float32)})
    assert np.isinf(replay(wild, [{"type": "fedavg"}], blocks=1)).all()


def test_rounds_of_clients_without_samples_change_nothing(cohorts: list[np.ndarray]) -> None:
    """Clients 0 to 3 have no samples: as if each had stayed away, without a warning."""
    script = make_script(cohorts, np.ones(CLIENTS))
    assert any(len(cohort) and cohort.max() < 4 for cohort in cohorts)
    weighted = {"type": "fedavg", "weights": "data"}
    found = replay(replace(script, samples=np.array([0, 0, 0, 0, 1.0, 1, 1])), [weighted], 2)
    counted = script.clients >= 4
    before = np.concatenate([[0], np.cumsum(counted)])
    alone = replace(
        script,
        starts=before[script.starts],
        clients=script.clients[counted],
        targets=script.targets[counted],
    )
    np.testing.assert_allclose(found, replay(alone, [{"type": "fedavg"}], 2), rtol=1e-5)
