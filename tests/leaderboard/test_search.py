"""Cells against the simulator and literal computations: training, figures and the search."""

from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pytest
import torch
from tests.leaderboard.small_board import FILE, small_board

import fedtide as ft
from fedtide.leaderboard.lockstep import Run, train
from fedtide.leaderboard.problems import ClientTasks, NoisyQuadratic
from fedtide.leaderboard.search import (
    coarse_pairs,
    evaluation_rounds,
    refined_pairs,
    run_cell,
)
from fedtide.leaderboard.spec import load_leaderboard
from fedtide.participation import Bernoulli, Schedule
from fedtide.simulation.experiment import read_yaml

CLIENTS, ROUNDS, STEPS = 6, 9, 2
RATES = [0.9, 0.8, 0.6, 0.5, 0.3, 0.2]
METHODS = {
    "fedavg": {"server_lr": 0.7},
    "fedprox": {"mu": 0.5},
    "fedau": {"cutoff": 3},
    "known-rates": {},
    "mifa": {},
    "scaffold": {},
    "scaffold, option 1": {"type": "scaffold", "option": 1},
    "amplified-scaffold": {"period": 3, "factor": 1.5},
    "focus": {},
    "fedawe": {},
    "fedpbc": {},
    "wait-for-all": {"period": 3},
    "averaged": {"inner": {"type": "fedavg"}},
}


def functions(tasks):
    """Return A_n and e_n, read off the gradients of F_n, which are affine."""
    d, everyone = len(tasks.start), torch.arange(CLIENTS)

    def gradients(x):
        return tasks.gradients(x.expand(CLIENTS, -1), everyone, None).numpy()

    zero = gradients(torch.zeros(d, dtype=torch.float64))
    columns = [gradients(x) - zero for x in torch.eye(d, dtype=torch.float64)]
    matrices = np.stack(columns, axis=2)
    return matrices, -np.linalg.solve(matrices, zero[:, :, None])[:, :, 0]


@pytest.fixture(scope="module")
def quadratic():
    return NoisyQuadratic("", "", [0.1] * 9, 1.0, dimension=3, noise=0.0).draw(CLIENTS, seed=4)


def simulated(tasks, algorithm, lr, participation, **settings):
    """Return the result of the simulator for the same run."""
    matrices, centers = functions(tasks)
    return ft.simulate(
        problem=ft.problems.Quadratic((matrices + matrices.transpose(0, 2, 1)) / 2, centers),
        participation=participation,
        algorithm=algorithm,
        local={"steps": STEPS, "lr": lr},
        rounds=ROUNDS,
        seed=4,
        dtype="float64",
        trainer="reference",
        progress=False,
        **settings,
    )


@pytest.mark.parametrize("name", METHODS)
def test_runs_trained_together_are_those_of_the_simulator(name, quadratic):
    from fedtide.algorithms import Algorithm
    from fedtide.simulation.experiment import BUILDER

    algorithm = BUILDER.build(Algorithm, {"type": name} | METHODS[name])
    population = replace(quadratic.population, rates=np.array(RATES))
    stream = Schedule(Bernoulli(RATES)).start(population, seed=4)
    rounds = [stream.round(t) for t in range(ROUNDS)]
    runs = [Run(algorithm, 0.3), Run(ft.algorithms.FedAvg(), 0.2), Run(algorithm, 0.1)]
    *_, last = train(runs, quadratic, population, rounds, STEPS)
    for run, model in zip(runs, last, strict=True):
        result = simulated(quadratic, run.algorithm, run.lr, Bernoulli(RATES))
        assert np.allclose(model, result.model, rtol=1e-9, atol=1e-12)
