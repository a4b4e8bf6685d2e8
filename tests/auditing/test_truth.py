"""Logs of known processes: what the audit says of them is true. Seeds are fixed."""

from typing import Any

import numpy as np
import polars as pl
import pytest

import fedtide as ft
from fedtide.auditing.recommend.log_replay import mean_end
from fedtide.auditing.recommend.ranking import Advice
from fedtide.auditing.statistics.influence import find_objectives
from fedtide.auditing.statistics.pattern import find_pattern
from fedtide.auditing.statistics.rate_estimates import estimate_rates
from fedtide.auditing.statistics.variance import Noise
from fedtide.participation import (
    Availability,
    Bernoulli,
    Cyclic,
    GroupCycle,
    Markov,
    Permutation,
    Schedule,
    Uniform,
    Weighted,
)


def process_of(name: str, rates: list[float]) -> Availability:
    size = max(1, len(rates) // 10)
    processes: dict[str, Availability] = {
        "bernoulli": Bernoulli(rates),
        "uniform": Uniform(size),
        "markov": Markov(rates),
        "cyclic": Cyclic(rates, period=100),
        "short": Cyclic(rates, period=24),
        "turns": GroupCycle(3, 20, on=0.5, off=0.05),
        "permutation": Permutation(size),
    }
    return processes[name]


FAMILIES = {
    "bernoulli": ("independent", None),
    "uniform": ("independent", None),
    "markov": ("markov", None),
    "cyclic": ("cyclic", 100),
    "short": ("cyclic", 24),
    "turns": ("cyclic", 60),
    "permutation": ("regularized", None),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_family_is_recognised(draw: Any, uneven: Any, name: str) -> None:
    log = draw(Schedule(process_of(name, uneven(40, 3))), 40, 500, 3)
    found = find_pattern(log)
    assert (found.family, found.period) == FAMILIES[name]
    assert found.confidence > 0.99


def test_rates_that_change_are_drift(of_rounds: Any) -> None:
    random = np.random.default_rng(0)
    cohorts = [
        np.flatnonzero(random.random(30) < (0.1 if t < 250 else 0.3)).tolist() for t in range(500)
    ]
    assert find_pattern(of_rounds(cohorts, 30)).family == "drifting"


def test_who_is_always_there_has_no_pattern(of_rounds: Any) -> None:
    found = find_pattern(of_rounds([[0, 1]] * 20, 3))
    assert found.family == "always"
    assert found.clients.tolist() == ["always", "always", "never"]


def test_a_short_log_is_undecided(of_rounds: Any) -> None:
    random = np.random.default_rng(1)
    cohorts = [np.flatnonzero(random.random(4) < 0.5).tolist() for _ in range(20)]
    assert find_pattern(of_rounds(cohorts, 4)).family == "undecided"


def test_the_exact_skew_of_paper_004(draw: Any) -> None:
    log = draw(Schedule(Weighted(10, np.exp(-np.arange(100) / 10).tolist())), 100, 2000, 5)
    pattern = find_pattern(log)
    rates = estimate_rates(log, pattern)
    noise = Noise(log, pattern, rates)
    found = find_objectives(log, noise, rates, np.full(100, 0.01), 50)
    low, high = found.plain.interval
    assert low <= 1.289078 <= high
    assert high - low < 0.05


def test_the_objective_is_where_fedavg_ends(draw: Any, table: Any, uneven: Any) -> None:
    """Train on the log with unit-vector centres: the mean iterate shows each client's weight."""
    clients, rounds = 12, 3000
    log = draw(Schedule(Bernoulli(uneven(clients, 2))), clients, rounds, 2)
    rows = table(log)
    last = pl.DataFrame({"round": [rounds - 1], "client": [0]}).join(
        rows, on=["round", "client"], how="anti"
    )
    found = ft.audit(rows, clients=clients)
    trained = ft.simulate(
        problem=ft.problems.Quadratic(np.tile(np.eye(clients), (clients, 1, 1)), np.eye(clients)),
        participation=ft.participation.Replay(
            pl.concat(
                [
                    rows.with_columns(stage=pl.lit("used")),
                    last.with_columns(stage=pl.lit("available")),
                ]
            )
        ),
        algorithm=ft.algorithms.FedAvg(),
        local=ft.LocalTraining(steps=1, lr=0.02),
        rounds=rounds,
        dtype="float64",
        record_iterates=True,
        trainer="reference",
    )
    assert trained.iterates is not None
    ends = trained.iterates[500:].mean(axis=0)
    np.testing.assert_allclose(ends, found.objectives.plain.weights, atol=0.006)


def test_the_replay_is_a_simulation(draw: Any, table: Any) -> None:
    """The replay's closed-form step drives a method as `simulate` does."""
    clients, rounds = 6, 60
    log = draw(Schedule(Uniform(2)), clients, rounds, 0)
    centers = np.random.default_rng(0).normal(size=(clients, 3))
    method = ft.algorithms.FedAU(cutoff=5)
    trained = ft.simulate(
        problem=ft.problems.Quadratic(np.tile(np.eye(3), (clients, 1, 1)), centers),
        participation=ft.participation.Replay(table(log)),
        algorithm=method,
        local=ft.LocalTraining(steps=1, lr=0.05),
        rounds=rounds,
        dtype="float64",
        record_iterates=True,
        trainer="reference",
    )
    assert trained.iterates is not None
    expected = trained.iterates[-20:].mean(axis=0)
    np.testing.assert_allclose(mean_end(log, method, centers, rounds, 0.05), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["bernoulli", "uniform", "markov", "cyclic", "turns", "permutation"]
)
def test_no_method_of_its_class_ends_nearer_than_the_advised(
    draw: Any, table: Any, uneven: Any, name: str
) -> None:
    """40 clients, 1000 rounds, seeds 0 to 2; nearer is by more than both errors."""
    for seed in range(3):
        log = draw(Schedule(process_of(name, uneven(40, seed))), 40, 1000, seed)
        found = ft.audit(table(log), clients=40, simulate=True)
        first = found.advice[0]
        for other in found.advice[1:]:
            if other.memory == first.memory:
                assert _gap(first, other) <= _error(first, other), (seed, first, other)


def _gap(first: Advice, other: Advice) -> float:
    assert first.simulated is not None
    assert other.simulated is not None
    return first.simulated[0] - other.simulated[0]


def _error(first: Advice, other: Advice) -> float:
    assert first.simulated is not None
    assert other.simulated is not None
    return 1.96 * float(np.hypot(first.simulated[1], other.simulated[1]))
