"""What sweeps tell the choice of a trainer, which compiles where there is much to train."""

from collections import deque

import pytest

import fedtide as ft
from fedtide.simulation import local_round
from fedtide.sweep import run_sweep
from fedtide.training.trainers import select


@pytest.fixture
def updates(monkeypatch):
    """Collect how many client updates each choice of a trainer expects."""
    found = []

    def choose(name, task, local, clients, compile):
        found.append(clients)
        return original(name, task, local, clients, compile)

    original = local_round.choose_trainer
    monkeypatch.setattr(local_round, "choose_trainer", choose)
    return found


def test_runs_that_take_the_same_steps_are_counted_together(sweep, tmp_path, updates):
    """5 clients take part in half of 3 rounds; 2 seeds and 2 rates share their steps."""
    grid = {"local.lr": [0.1, 0.2], "local.batch_size": [2, 3]}
    run_sweep(sweep(seeds=[1, 2], grid=grid), tmp_path / "out", workers=1)
    assert updates == pytest.approx([4 * 5 * 0.5 * 3] * 8)


def test_workers_share_the_runs(sweep, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(
        "fedtide.sweep.sweep_runner.run_in_processes", lambda jobs, *_: given.extend(jobs)
    )
    run_sweep(sweep(seeds=[1, 2, 3, 4, 5]), tmp_path / "out", workers=2)
    assert [job.alike for job in given] == [2.5] * 5
    given.clear()
    run_sweep(sweep(grid={"local.steps": [1, 2]}), tmp_path / "two", workers=2)
    assert [job.alike for job in given] == [1, 1]


def test_a_resumed_sweep_counts_the_runs_that_have_ended(sweep, tmp_path, updates):
    run_sweep(sweep(seeds=[1, 2]), tmp_path / "out", workers=1)
    updates.clear()
    run_sweep(sweep(seeds=[1, 2, 3, 4]), tmp_path / "out", workers=1)
    assert updates == pytest.approx([4 * 5 * 0.5 * 3] * 2)


@pytest.mark.parametrize("measured", [1, 2])
def test_runs_that_take_the_same_steps_measure_once(base, measured, monkeypatch):
    """So they take the same trainer; other steps, and those of other data, are measured."""
    asked = []
    monkeypatch.setattr(select, "_measured", deque(maxlen=4))
    monkeypatch.setattr(
        select, "_seconds_per_client", lambda trainer, *_: asked.append(trainer.name) or 1.0
    )
    fields = {k: v for k, v in base.items() if k != "name"}
    local = fields.pop("local")
    fields["trainer"] = "auto"
    ft.simulate(**fields, local=local, seeds=[1, 2])
    other = {"lr": 2 * local["lr"]} if measured == 1 else {"batch_size": local["batch_size"] + 1}
    ft.simulate(**fields, local={**local, **other}, seeds=[3])
    assert asked == ["reference", "stacked"] * measured
