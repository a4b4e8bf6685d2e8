"""The effective objective of logs whose truth is known; seeds are fixed."""

import numpy as np
import polars as pl
import pytest
from tests.auditing.logs import log_to_frame, simulate_log, uneven_rates

import fedtide as ft
from fedtide.auditing.statistics.influence import compare_objectives
from fedtide.auditing.statistics.pattern import find_pattern
from fedtide.auditing.statistics.rate_estimates import estimate_rates
from fedtide.auditing.statistics.variance import VarianceModel
from fedtide.participation import Bernoulli, Schedule, Weighted


def test_skew_interval_holds_the_exact_value_of_paper_004() -> None:
    log = simulate_log(Schedule(Weighted(10, np.exp(-np.arange(100) / 10).tolist())), 100, 2000, 5)
    pattern = find_pattern(log)
    rates = estimate_rates(log, pattern)
    variances = VarianceModel(log, pattern, rates)
    found = compare_objectives(log, variances, np.full(100, 0.01))
    low, high = found.plain.interval
    assert low <= 1.289078 <= high
    assert high - low < 0.05


@pytest.mark.statistical
def test_weights_are_where_fedavg_ends() -> None:
    """With unit-vector centres, the mean iterate of FedAvg along the log shows each weight."""
    clients, rounds = 12, 3000
    log = simulate_log(Schedule(Bernoulli(uneven_rates(clients, 2))), clients, rounds, 2)
    rows = log_to_frame(log)
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
