"""Cells against literal computations: problems, figures, the search, and their records."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.leaderboard.small_board import plain_board, small_board
from torch.nn import functional

import fedtide as ft
from fedtide.errors import Interrupted
from fedtide.leaderboard import cells as cells_module
from fedtide.leaderboard.cells import (
    coarse_pairs,
    estimate_seconds,
    load_results,
    records_in,
    refined_pairs,
    run_cell,
    run_cells,
)
from fedtide.leaderboard.problems import ImageClasses, NoisyQuadratic
from fedtide.leaderboard.spec import Cell, parse_leaderboard
from fedtide.leaderboard.standings import load_standings
from fedtide.problems.base import BatchPlan
from fedtide.simulation.experiment import Experiment

CPU = torch.device("cpu")


@pytest.fixture
def small():
    return small_board()


def quiet(**changes):
    """Return the small board without noise."""
    plain = plain_board(**changes)
    plain["problems"]["quadratic"]["problem"] |= {"noise": 0.0}
    return parse_leaderboard(plain)


def objective(x, task):
    offsets = x - task.centers.numpy()
    return 0.5 * np.mean(np.einsum("ni,nij,nj->n", offsets, task.matrices.numpy(), offsets))


def test_a_cell_is_the_mean_excess_loss_of_literal_runs():
    board = quiet()
    cell = Cell(board, "quadratic", "turns", "fedavg")
    result = run_cell(cell)
    lr, server_lr = result.best
    for seed, figure in zip(board.seeds, result.figures, strict=True):
        experiment = Experiment.from_dict(cell.experiment(lr, server_lr, seed))
        task = experiment.problem.prepare(seed, CPU, torch.float64)
        matrices, centers = task.matrices.numpy(), task.centers.numpy()
        stream = ft.participation.Schedule(experiment.participation).start(task.population, seed)
        x, excess = np.zeros(3), []
        best = np.linalg.solve(matrices.sum(axis=0), np.einsum("nij,nj->i", matrices, centers))
        least, first = objective(best, task), objective(x, task)
        for t in range(board.rounds):
            moved = []
            for n in stream.round(t).reported:
                y = x
                for _ in range(board.steps):
                    y = y - lr * matrices[n] @ (y - centers[n])
                moved.append(y - x)
            x = x + server_lr * np.mean(moved, axis=0)
            if t + 1 in (8, 9):  # the last third: every second round, and the last
                excess.append(100 * (objective(x, task) - least) / (first - least))
        assert figure == pytest.approx(np.mean(excess), rel=1e-5)


def test_noise_is_normal_and_not_in_whole_gradients():
    """4,000 numbers: the standard error of their standard deviation is 0.0056."""
    task = NoisyQuadratic(clients=4, dimension=10, noise=0.5).prepare(3, CPU, torch.float64)
    steps = np.arange(100)[:, None] + np.zeros((1, 4), dtype=np.int64)
    noise = task.batch_inputs(BatchPlan(np.arange(4), steps))[2]
    assert noise.shape == (100, 4, 10)
    assert noise.std().item() == pytest.approx(0.5, abs=0.03)
    assert abs(noise.mean().item()) < 0.04
    assert len(noise.unique()) == 4000
    whole = BatchPlan(np.arange(4), np.full((1, 4), -1))
    slopes = task.gradient(task.start, whole)
    expected = torch.einsum("nij,nj->ni", task.matrices, -task.centers)
    assert torch.allclose(slopes, expected)


@pytest.mark.parametrize("hidden", [0, 3])
def test_gradients_on_images_are_those_of_the_cross_entropy(hidden):
    problem = ImageClasses(clients=10, batch=4, hidden=hidden)
    task = problem.prepare(2, CPU, torch.float32)
    point = torch.from_numpy(np.random.default_rng(1).normal(size=len(task.start))).float()
    steps = np.zeros((1, 10), dtype=np.int64)
    sizes = task.population.samples
    largest = np.arange(sizes.max())
    whole = BatchPlan(
        np.arange(10),
        steps - 1,
        np.minimum(largest, sizes[:, None] - 1)[None],
        (largest < sizes[:, None])[None],
    )
    for plan in (whole, BatchPlan(np.arange(10), steps)):
        inputs, targets, weights = (part[0] for part in task.batch_inputs(plan))
        slopes = task.gradient(point, plan)
        for n in (3, 9):
            used = weights[n] > 0
            assert plan is not whole or int(used.sum()) == sizes[n]
            layers = [torch.nn.Linear(64, hidden or 10)]
            layers += [torch.nn.ReLU(), torch.nn.Linear(hidden, 10)] if hidden else []
            network = torch.nn.Sequential(*layers)
            load_transposed(network, point)
            functional.cross_entropy(network(inputs[n][used]), targets[n][used]).backward()
            grads = [parameter.grad.t().flatten() for parameter in network.parameters()]
            assert torch.allclose(slopes[n], torch.cat(grads), rtol=1e-4, atol=1e-6)


def load_transposed(network, point):
    """Set the parameters of a network to a flat model whose matrices are transposed."""
    first = 0
    for parameter in network.parameters():
        values = point[first : first + parameter.numel()]
        parameter.data = values.view(parameter.shape[::-1]).t().clone()
        first += parameter.numel()


def test_clients_hold_mostly_one_class():
    task = ImageClasses().prepare(0, CPU, torch.float32)
    shares = task.population.class_shares
    assert (shares.argmax(axis=1) == np.arange(50) // 5).all()
    assert 0.93 < shares.max(axis=1).mean() < 0.98  # 95 % and a tenth of the other 5 %


def test_the_settings_with_the_least_tuning_figure_are_chosen(small):
    result = run_cell(Cell(small, "quadratic", "even", "fedavg"))
    rates, values = small.problems["quadratic"].lr, small.methods["fedavg"].tuned[1]
    tried = coarse_pairs(9, 5)
    tried += refined_pairs(tried[int(np.argmin(result.trials[:8]))])
    i, j = tried[int(np.argmin(result.trials))]
    assert result.best == [rates[i], values[j]]
    again = Cell(replace(small, seeds=[small.tuning_seed]), "quadratic", "even", "fedavg")
    # On quadratics, the tuning figure is the judged one.
    assert run_cell(again).figures[0] == min(result.trials)


def test_a_run_that_diverges_has_no_figure(small):
    wild = replace(small.problems["quadratic"], lr=[1e60 * 2**i for i in range(9)])
    cell = Cell(replace(small, problems={"quadratic": wild}), "quadratic", "even", "fedavg")
    result = run_cell(cell)
    assert set(result.trials) == {None}
    assert result.figures == [None, None, None]


def test_cells_are_recorded_once_and_an_interruption_loses_nothing(small, tmp_path, monkeypatch):
    cells, file = small.cells(), tmp_path / "records.parquet"
    assert [cell.place for cell in cells] == [
        ("quadratic", "full", "fedavg"),
        ("quadratic", "even", "fedavg"),
        ("quadratic", "turns", "fedavg"),
        ("quadratic", "turns", "amplified"),
    ]
    ended = []

    def stop_after_two(cell, result, left):
        ended.append(cell.place)
        if len(ended) == 2:
            raise Interrupted("interrupted")

    with pytest.raises(Interrupted):
        run_cells(cells, file, on_cell=stop_after_two)
    assert set(load_results(cells, file)) == set(ended)
    run_cells(cells, file, on_cell=lambda cell, *_: ended.append(cell.place))
    assert ended == [cell.place for cell in cells]
    content = file.read_bytes()
    monkeypatch.setattr(cells_module, "run_cell", None)
    run_cells(cells, file)
    assert file.read_bytes() == content
    assert load_standings(small, file).missing() == []
    record = load_results(cells, file)[cells[0].place]
    assert (record.seeds, record.tuning_seed, record.trainer) == ([1, 2, 3], 0, "stacked")
    assert "Python" in record.version
    assert record.machine
    assert record.instructions


@pytest.mark.process
def test_several_processes_give_the_same_results(small, tmp_path):
    found = []
    for workers in (1, 2):
        file = tmp_path / f"{workers}.parquet"
        run_cells(small.cells(), file, workers)
        results = load_results(small.cells(), file)
        found.append({place: (r.trials, r.best, r.figures) for place, r in results.items()})
    assert len(found[0]) == 4
    assert found[0] == found[1]


def test_a_record_with_other_settings_is_not_counted(small, tmp_path):
    cell, file = Cell(small, "quadratic", "even", "fedavg"), tmp_path / "records.parquet"
    run_cells([cell], file)
    titled = replace(small.patterns["even"], title="other words")
    reworded = Cell(replace(small, patterns={"even": titled}), *cell.place)
    longer = Cell(replace(small, rounds=10), *cell.place)
    assert cell.place in load_results([cell], file)
    assert cell.place in load_results([reworded], file)
    assert cell.place not in load_results([longer], file)
    two = [cell, Cell(small, "quadratic", "turns", "fedavg")]
    assert estimate_seconds(two, {}) == 2 * cell.task.seconds
    (record,) = records_in(file).read()
    assert estimate_seconds(two, {cell.place: replace(record, seconds=7.0)}) == 14.0


def test_records_that_are_written_at_the_same_time_are_all_kept(small, tmp_path):
    file = tmp_path / "records.parquet"
    record = run_cell(Cell(small, "quadratic", "even", "fedavg"))
    records = [replace(record, method=f"m{i}") for i in range(20)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: records_in(file).add([one]), records))
    assert records_in(file).read() == sorted(records, key=lambda one: one.method)


def test_cells_are_run_again_once_their_log_or_their_class_has_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log, module = tmp_path / "log.csv", tmp_path / "changing_method.py"
    log.write_text("round,client\n0,0\n8,3\n")
    module.write_text("from fedtide.algorithms import FedAvg\nclass Mine(FedAvg): pass\n")
    replay = {"title": "", "source": "", "participation": {"type": "replay", "log": "log.csv"}}
    mine = {"algorithm": {"type": "changing_method:Mine"}, "memory": "d"}
    mine["tune"] = {"server_lr": [0.5, 0.7, 1.0, 1.4, 2.0]}
    plain, file = plain_board(), tmp_path / "records.parquet"
    patterns = {"replay": replay, "even": plain["patterns"]["even"]}
    methods = {"mine": mine, "fedavg": plain["methods"]["fedavg"]}
    board = parse_leaderboard(plain | {"patterns": patterns, "methods": methods})
    run_cells(board.cells(), file)
    assert load_standings(board, file).missing() == []
    module.write_text(module.read_text() + "# another version\n")
    missing = {cell.place[1:] for cell in load_standings(board, file).missing()}
    assert missing == {("replay", "mine"), ("even", "mine")}
    log.write_text("round,client\n0,0\n8,4\n")
    missing = {cell.place[1:] for cell in load_standings(board, file).missing()}
    assert missing == {("replay", "mine"), ("even", "mine"), ("replay", "fedavg")}
