"""The two-stage search, against the same search as plain loops."""

import copy

import numpy as np
import pytest
import yaml

import fedtide as ft
from fedtide.sweep import Sweep, TwoStage, run_sweep

LR, SERVER_LR = [0.003, 0.05, 1e30], [1.0, 2.0]
METHODS = {
    "fedau": {},
    "fedavg": {"algorithm": {"type": "fedavg", "server_lr": 0.5}},
    "central": {"algorithm": "central-sgd"},
}


def loss(base, seeds, method, lr, server_lr):
    """Return the mean loss of a method with two learning rates; inf if a run diverges."""
    losses = []
    for seed in seeds:
        plain = copy.deepcopy(base | METHODS[method] | {"seed": seed})
        plain["local"]["lr"] = lr
        if method != "central":
            plain["algorithm"]["server_lr"] = server_lr
        try:
            losses.append(ft.simulate(**plain).metrics["loss"][-1])
        except ft.InvalidInputError:
            return float("inf")
    return float(np.mean(losses))


def test_the_search_finds_the_rates_that_plain_loops_find(base, sweep, tmp_path):
    seeds = [1, 2]
    strategy = {"type": "two-stage", "lr": LR, "server_lr": SERVER_LR}
    found = sweep(methods=METHODS, seeds=seeds, strategy=strategy)
    frame = run_sweep(found, tmp_path / "out", workers=1)
    best = yaml.safe_load((tmp_path / "out" / "best.yaml").read_text())
    for method in METHODS:
        lr = min(LR, key=lambda lr: loss(base, seeds, method, lr, 1.0))
        assert best["methods"][method]["local"]["lr"] == lr
        won = frame.filter(frame["best"], frame["method"] == method)
        assert set(won["local.lr"]) == {lr}
        if method != "central":
            eta = min(SERVER_LR, key=lambda eta: loss(base, seeds, method, lr, eta))
            assert best["methods"][method]["algorithm"]["server_lr"] == eta
            assert set(won["algorithm.server_lr"]) == {eta}
    # Three γ, then one more η than η = 1, for two methods; three γ for the other; two seeds each.
    assert len(frame) == 2 * (2 * (3 + 1) + 3)
    assert len(Sweep.load(tmp_path / "out" / "best.yaml").runs) == 3


def test_the_best_has_a_learning_curve_though_the_search_needs_none(sweep, tmp_path):
    strategy = {"type": "two-stage", "lr": [0.05], "server_lr": [1.0]}
    evaluation = {"every": 0, "clients": False}
    run_sweep(sweep(evaluation=evaluation, strategy=strategy), tmp_path / "out", workers=1)
    best = yaml.safe_load((tmp_path / "out" / "best.yaml").read_text())
    assert best["evaluation"] == {"clients": False}
    assert len(Sweep.load(tmp_path / "out" / "best.yaml").runs) == 1


def test_the_default_candidates_are_those_of_the_papers():
    powers = [10 ** (k / 4) for k in range(-8, 7)]
    both = [*TwoStage().lr, *TwoStage().server_lr]
    wanted = [*powers[:7], *powers[8:]]
    assert both == pytest.approx(wanted, rel=5e-4)


def test_a_repeated_search_executes_nothing(sweep, tmp_path, monkeypatch):
    strategy = {"type": "two-stage", "lr": [0.01, 0.05], "server_lr": [1.0, 2.0]}
    found = sweep(seeds=[1, 2], strategy=strategy)
    first = run_sweep(found, tmp_path / "out", workers=1)
    monkeypatch.setattr(
        "fedtide.sweep.sweep_runner.run_sequentially",
        lambda jobs, *_: (_ for _ in ()).throw(AssertionError(jobs)) if jobs else None,
    )
    assert run_sweep(found, tmp_path / "out", workers=1).equals(first)


def test_a_second_stage_that_is_worse_changes_nothing(sweep, tmp_path):
    """Without η = 1 among its values."""
    strategy = {"type": "two-stage", "lr": [0.05], "server_lr": [1e3, 1e30]}
    frame = run_sweep(sweep(strategy=strategy), tmp_path / "out", workers=1)
    best = yaml.safe_load((tmp_path / "out" / "best.yaml").read_text())
    assert next(iter(best["methods"].values()))["algorithm"]["server_lr"] == 1.0
    assert frame.filter(frame["best"])["algorithm.server_lr"].to_list() == [1.0]


def test_a_search_may_have_its_data_in_memory(base, tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 2))
    data = {"x": x, "y": (x[:, 0] > 0).astype(int), "client": np.arange(60) % 3}
    strategy = {"type": "two-stage", "lr": [0.05], "server_lr": [1.0]}
    changes = {"problem": ft.problems.Supervised(data), "strategy": strategy}
    frame = run_sweep(Sweep.from_dict(base | changes), tmp_path / "out", workers=1)
    assert frame["best"].to_list() == [True]
    best = yaml.safe_load((tmp_path / "out" / "best.yaml").read_text())
    assert best["problem"]["train"]["rows"] == 60  # which data they are, not the data
    again = Sweep.from_dict(best | {"problem": ft.problems.Supervised(data), "seeds": [1]})
    assert run_sweep(again, tmp_path / "again", workers=1)["status"].to_list() == ["done"]
