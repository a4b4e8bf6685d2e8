"""Cells against the simulator and literal computations: training, figures and the search."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.leaderboard.small_board import small_board
from torch.nn import functional

import fedtide as ft
from fedtide.algorithms import Algorithm, FedAvg
from fedtide.errors import InvalidInputError
from fedtide.leaderboard.lockstep import Run, train
from fedtide.leaderboard.problems import ClientTasks, ImageClassification, NoisyQuadratic
from fedtide.leaderboard.search import (
    coarse_pairs,
    evaluation_rounds,
    refined_pairs,
    run_cell,
)
from fedtide.leaderboard.spec import load_leaderboard
from fedtide.participation import Bernoulli, Schedule
from fedtide.simulation.experiment import BUILDER

TASK = NoisyQuadratic("", "", small_board().problems["quadratic"].lr, 1.0, dimension=3, noise=0.1)
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
    "fedbuff": {"buffer_size": 4},
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
    """Among two other runs, with another γ and with another method."""
    algorithm = BUILDER.build(Algorithm, {"type": name.partition(",")[0]} | METHODS[name])
    population = replace(quadratic.population, rates=np.array(RATES), seed=4)
    stream = Schedule(Bernoulli(RATES)).start(population, seed=4)
    rounds = [stream.round(t) for t in range(ROUNDS)]
    runs = [Run(FedAvg(), 0.2), Run(algorithm, 0.3), Run(algorithm, 0.1)]
    *_, last = train(runs, quadratic, population, rounds, STEPS)
    result = simulated(quadratic, algorithm, 0.3, Bernoulli(RATES))
    assert np.allclose(last[1], result.model, rtol=1e-9, atol=1e-12)


def test_quadratics_take_their_steps_in_closed_form():
    """The same as one step after the other, with noise, a correction and a proximal term."""
    problem = NoisyQuadratic("", "", [0.1] * 9, 1.0, dimension=3, noise=0.5)
    tasks, clients = problem.draw(CLIENTS, seed=1), torch.tensor([4, 0, 4])
    random = np.random.default_rng(0)
    starts, corrections = torch.from_numpy(random.normal(size=(2, 3, 3)))
    lr, mu = torch.tensor([[0.1], [0.2], [0.3]]), torch.tensor([[0.0], [1.0], [0.5]])
    draws = tasks.draws(7, STEPS)
    for pull, push in ((None, None), (mu, corrections)):
        arguments = (starts, clients, lr, pull, push, draws)
        one_by_one = ClientTasks.descend(tasks, *arguments)
        assert torch.allclose(tasks.descend(*arguments), one_by_one, rtol=1e-12)


@pytest.mark.parametrize("hidden", [0, 3])
def test_gradients_on_images_are_those_of_the_cross_entropy(hidden):
    problem = ImageClassification("", "", [0.1] * 9, 1.0, batch=4, hidden=hidden)
    tasks, clients = problem.draw(10, seed=2), torch.tensor([3, 9])
    points = torch.from_numpy(np.random.default_rng(1).normal(size=(2, len(tasks.start)))).float()
    for draw in (None, tasks.draws(0, steps=1)[0]):
        slopes = tasks.gradients(points, clients, draw)
        for point, client, slope in zip(points, clients.tolist(), slopes, strict=True):
            samples = tasks._table[client, : tasks.population.samples[client]]
            if draw is not None:
                samples = tasks._table[client, draw[client]]
            layers = [torch.nn.Linear(64, hidden or 10)]
            if hidden:
                layers += [torch.nn.ReLU(), torch.nn.Linear(hidden, 10)]
            network = torch.nn.Sequential(*layers)
            load_transposed(network, point)
            targets = tasks._targets[samples].argmax(dim=1)
            functional.cross_entropy(network(tasks._inputs[samples]), targets).backward()
            grads = [parameter.grad.t().flatten() for parameter in network.parameters()]
            assert torch.allclose(slope, torch.cat(grads), rtol=1e-4, atol=1e-6)


def load_transposed(network, point):
    """Set the parameters of a network to a flat model whose matrices are transposed."""
    first = 0
    for parameter in network.parameters():
        values = point[first : first + parameter.numel()]
        parameter.data = values.view(parameter.shape[::-1]).t().clone()
        first += parameter.numel()


def test_clients_hold_mostly_one_class():
    tasks = ImageClassification("", "", [0.1] * 9, 1.0).draw(50, seed=0)
    shares = tasks.population.class_shares
    assert (shares.argmax(axis=1) == np.arange(50) // 5).all()
    assert 0.93 < shares.max(axis=1).mean() < 0.98  # 95 % and a tenth of the other 5 %


def test_a_cell_is_the_mean_excess_loss_of_literal_runs():
    board = small_board()
    cell = replace(board.cell("quadratic", "turns", "fedavg"), task=replace(TASK, noise=0.0))
    result = run_cell(cell)
    lr, server_lr = result.best
    for seed, figure in zip(board.seeds, result.figures, strict=True):
        tasks = cell.task.draw(board.clients, seed)
        matrices, centers = functions(tasks)
        stream = cell.participation.schedule.start(tasks.population, seed)
        x, excess = np.zeros(3), []
        for t in range(board.rounds):
            clients = stream.round(t).reported
            moved = []
            for n in clients:
                y = x
                for _ in range(board.steps):
                    y = y - lr * matrices[n] @ (y - centers[n])
                moved.append(y - x)
            x = x + server_lr * np.mean(moved, axis=0)
            if t in (6, 8):  # the last third, every second round
                excess.append(objective(x, matrices, centers))
        best = np.linalg.solve(matrices.sum(axis=0), np.einsum("nij,nj->i", matrices, centers))
        least = objective(best, matrices, centers)
        first = objective(np.zeros(3), matrices, centers)
        expected = 100 * np.mean([(value - least) / (first - least) for value in excess])
        assert figure == pytest.approx(expected, rel=1e-5)


def objective(x, matrices, centers):
    offsets = x - centers
    return 0.5 * np.mean(np.einsum("ni,nij,nj->n", offsets, matrices, offsets))


def test_the_settings_with_the_least_tuning_figure_are_chosen():
    board = small_board()
    cell = board.cell("quadratic", "even", "fedavg")
    result = run_cell(cell)
    rates, values = cell.task.lr, cell.tuning.tuned[1]
    tried = coarse_pairs(9, 5)
    tried += refined_pairs(tried[int(np.argmin(result.trials[:8]))])
    i, j = tried[int(np.argmin(result.trials))]
    assert result.best == (rates[i], values[j])
    again = replace(cell, seeds=(cell.tuning_seed,))
    # On quadratics, the tuning figure is the judged one.
    assert run_cell(again).figures[0] == min(result.trials)


def test_all_methods_have_the_same_budget():
    board = load_leaderboard()
    pairs = coarse_pairs(9, 5)
    tried = {tuple(pairs + refined_pairs(best)) for best in pairs}
    assert all(len(set(one)) == 12 for one in tried)
    assert all(0 <= i < 9 and 0 <= j < 5 for one in tried for i, j in one)
    assert {len(problem.lr) for problem in board.problems.values()} == {9}
    assert {len(method.tuned[1]) for method in board.methods.values()} == {5}
    with pytest.raises(InvalidInputError, match=r"tune: .*one field with 5 values"):
        small_board(methods={"mine": {"algorithm": {"type": "fedavg"}, "tune": {}, "memory": "d"}})


def test_a_run_that_diverges_has_no_figure():
    wild = replace(TASK, lr=[1e60] * 9)
    result = run_cell(replace(small_board().cell("quadratic", "even", "fedavg"), task=wild))
    assert set(result.trials) == {None}
    assert result.figures == (None, None, None)


@pytest.mark.parametrize(("rounds", "every"), [(300, 7), (9, 2), (30, 3), (10, 100)])
def test_evaluations_are_in_the_last_third_and_include_the_last_round(rounds, every):
    due = list(evaluation_rounds(rounds, every))
    assert due[-1] == rounds - 1
    assert 3 * due[0] >= 2 * rounds - 3
    assert due[0] - every < 2 * rounds / 3
