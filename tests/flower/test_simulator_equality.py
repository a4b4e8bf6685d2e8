"""The deployment gives the simulator's model, for the same participation."""

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import fedtide as ft
from fedtide.flower.ledger.ledger import read_ledger, read_rounds

from .driver import deploy, federation, model, prepare, quadratic, scripted

A = ft.algorithms
ROUNDS = 12
METHODS = [
    A.FedAvg(),
    A.FedAvg(server_lr=0.7, weights="given"),
    A.FedAU(cutoff=3),
    A.FedAU(cutoff=None, average=0.8),
    A.F3AST(server_lr=0.3, beta=0.2),
    A.Auto(server_lr=0.7),
    A.Auto(control_variates=True),
    A.FedStale(beta=0.3),
    A.MIFA(),
    A.MIFA(unseen="wait"),
    A.FedVARP(empty_rounds="memory"),
    A.FedLaAvg(),
    A.FedProx(mu=0.3),
    A.Scaffold(),
    A.Scaffold(option=1),
    A.Amplified(period=4, factor=1.5, inner=A.FedAU(cutoff=3)),
    A.AmplifiedScaffold(period=4, factor=1.3),
    A.FedAdam(server_lr=0.1),
    A.Averaged(inner=A.FedAvg()),
    A.Switch(first=A.FedAvg(), second=A.FedLaAvg(), at=5),
    A.FedBuff(buffer_size=3),
    A.WaitForAll(period=3, mode="gradient"),
    A.Clipped(bound=1.0, quantile=0.5, inner=A.MIFA()),
    A.TrimmedMean(trim=0.2, inner=A.FedAU(cutoff=3)),
    A.Median(),
]


def simulated(problem, present, algorithm, local):
    q = present / np.maximum(present.sum(axis=1, keepdims=True), 1)
    return ft.simulate(
        problem=problem,
        participation=ft.participation.Table(weights=q),
        algorithm=algorithm,
        local=local,
        rounds=len(present),
        seed=0,
        dtype="float64",
        trainer="reference",
    )


@pytest.mark.parametrize("algorithm", METHODS, ids=repr)
def test_scripted_participation_gives_the_simulators_model(algorithm, tmp_path):
    problem, local = quadratic(), ft.LocalTraining(steps=3, lr=0.1)
    task, present = prepare(problem), scripted(ROUNDS, 5)
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    strategy = deploy(federation(task, local, present), algorithm, ROUNDS, task=task, ledger=url)
    wanted = simulated(problem, present, algorithm, local)
    np.testing.assert_allclose(model(strategy), wanted.model, rtol=0, atol=1e-6)
    np.testing.assert_allclose(model(strategy), wanted.model, rtol=1e-9)
    assert read_rounds(url)["round"].to_list() == list(range(ROUNDS))
    used = read_ledger(url).filter(pl.col("stage") == "used")
    columns = ["round", "client", "stage"]
    wanted_log = wanted.participation.filter(pl.col("stage") == "used")
    wanted_log = wanted_log.with_columns(pl.col("client").cast(pl.String))
    wanted_log = wanted_log.sort("round", "client")
    assert_frame_equal(used.select(columns), wanted_log.select(columns))
    np.testing.assert_allclose(used["weight"], wanted_log["weight"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "how"),
    [
        (A.FedAvg(weights="data"), {"epochs": 1}),
        (A.FedAU(), {"steps": 3}),
        (A.Scaffold(), {"steps": 3}),
    ],
    ids=str,
)
def test_minibatches_go_on_where_the_client_left_off(algorithm, how):
    """The strategy tells each client how many steps it has taken; no client remembers."""
    problem = ft.problems.Classification("digits", ft.problems.Dirichlet(0.5), clients=4)
    local = ft.LocalTraining(lr=0.1, batch_size=50, **how)
    task, present = prepare(problem), scripted(6, 4)
    strategy = deploy(federation(task, local, present), algorithm, 6, task=task)
    wanted = simulated(problem, present, algorithm, local)
    np.testing.assert_allclose(model(strategy), wanted.model, rtol=0, atol=1e-6)
