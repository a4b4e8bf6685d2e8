"""Seeds that are run as one: the same results to rounding, each with its own fate."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from fedtide.errors import BadInput
from fedtide.problems import Regression
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.run import Run
from fedtide.simulation.simulate import execute
from fedtide.sweep import run_sweep
from fedtide.sweep.job import Job
from fedtide.sweep.stacks import one_by_one, seeds_together

DIGITS = {"type": "classification", "dataset": "digits", "partition": "iid", "clients": 5}
METHODS = {
    "fedavg": {"algorithm": "fedavg"},
    "fedau": {"algorithm": "fedau"},
    "fedprox": {"algorithm": {"type": "fedprox", "mu": 0.1}},
    "scaffold": {"algorithm": "scaffold"},
    "option-1": {"algorithm": {"type": "scaffold", "option": 1}},
    "amplified-scaffold": {"algorithm": {"type": "amplified-scaffold", "period": 4, "factor": 2.0}},
    "fedlaavg": {"algorithm": {"type": "fedlaavg"}},
    "central-sgd": {"algorithm": "central-sgd"},
}


def jobs_of(plain, seeds, **changes):
    return [
        Job(f"{changes}/{seed}", Experiment.of(plain | changes | {"seed": seed}), Path("nowhere"))
        for seed in seeds
    ]


def shapes(stacks):
    return [len(stack) for stack in stacks]


def test_what_is_put_together(base):
    slow, fast = (
        jobs_of(base, range(5), local={"steps": 2, "lr": lr, "batch_size": 4}) for lr in (0.1, 0.2)
    )
    mixed = [job for pair in zip(slow, fast, strict=True) for job in pair]
    assert seeds_together(mixed, workers=1) == [tuple(slow), tuple(fast)]
    assert one_by_one(mixed, workers=1) == [(job,) for job in mixed]
    assert seeds_together([], workers=4) == []


@pytest.mark.parametrize(
    ("workers", "sizes"), [(1, [5]), (2, [2, 3]), (3, [1, 2, 2]), (5, [1] * 5), (9, [1] * 5)]
)
def test_no_worker_stays_idle(base, workers, sizes):
    stacks = seeds_together(jobs_of(base, range(5)), workers)
    assert shapes(stacks) == sizes
    assert [job.experiment.seed for stack in stacks for job in stack] == list(range(5))


def test_many_seeds_are_several_stacks(base):
    assert shapes(seeds_together(jobs_of(base, range(50)), workers=1)) == [16, 17, 17]


def test_what_stays_alone(base):
    large = base["problem"] | {"features": 1000}
    for changes in (
        {"problem": large},
        {"problem": DIGITS},
        {"trainer": "reference"},
    ):
        assert shapes(seeds_together(jobs_of(base, range(3), **changes), workers=1)) == [1, 1, 1]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_to_rounding(sweep, tmp_path, workers):
    """In float64, over every way in which an algorithm asks for training."""
    found = sweep(seeds=[1, 2, 3, 4], methods=METHODS, rounds=12, dtype="float64")
    alone = run_sweep(found, tmp_path / "alone", workers=1)
    together = run_sweep(found, tmp_path / "together", workers=workers, stack_seeds=True)
    assert together["status"].to_list() == ["done"] * len(found.members)
    for name in alone.columns:
        if name in ("rounds_per_second", "folder"):
            continue
        if alone[name].dtype == pl.Float64:
            np.testing.assert_allclose(together[name], alone[name], rtol=1e-9)
        else:
            assert together[name].to_list() == alone[name].to_list()
    for one, other in zip(alone["folder"], together["folder"], strict=True):
        logs = [pl.read_parquet(Path(folder) / "participation.parquet") for folder in (one, other)]
        assert logs[0].equals(logs[1])


def test_one_that_diverges_ends_alone(sweep, tmp_path):
    """Of three seeds, those that fail alone fail together, and the others end as they would."""
    found = sweep(seeds=[1, 2, 3], rounds=42, local={"steps": 2, "lr": 2.0, "batch_size": 4})
    alone = run_sweep(found, tmp_path / "alone", workers=1)
    assert alone["status"].to_list() == ["failed", "failed", "done"]
    together = run_sweep(found, tmp_path / "together", workers=1, stack_seeds=True)
    assert together.select("status", "error").equals(alone.select("status", "error"))


def test_a_seed_that_cannot_be_prepared(sweep, tmp_path, monkeypatch):
    """It is noted, and the others go on."""
    prepare = Regression.prepare

    def broken(self, seed, *rest):
        if seed == 2:
            raise BadInput("seed: 2 is unlucky; take another")
        return prepare(self, seed, *rest)

    monkeypatch.setattr(Regression, "prepare", broken)
    frame = run_sweep(sweep(seeds=[1, 2, 3]), tmp_path / "out", workers=1, stack_seeds=True)
    assert frame["status"].to_list() == ["done", "failed", "done"]
    assert frame["error"].to_list() == [None, "problem.seed: 2 is unlucky; take another", None]


def test_under_strict_the_first_failure_ends_the_others(sweep, tmp_path, monkeypatch):
    advance = Run.round

    def broken(self):
        if self.experiment.seed == 2 and self.ended == 3:
            raise BadInput("round: 3 is unlucky")
        advance(self)

    monkeypatch.setattr(Run, "round", broken)
    found = sweep(seeds=[1, 2, 3], rounds=10**6)
    with pytest.raises(BadInput, match="3 is unlucky"):
        run_sweep(found, tmp_path / "out", workers=1, stack_seeds=True, strict=True)
    ended = [path.name for path in tmp_path.glob("out/*/seed-1/checkpoints/*.safetensors")]
    assert len(ended) > 1  # it was saved when it was asked to end


def test_finished_seeds_are_left_alone(sweep, tmp_path):
    whole = run_sweep(sweep(seeds=[1, 2, 3]), tmp_path / "whole", workers=1, stack_seeds=True)
    first = run_sweep(sweep(seeds=[1]), tmp_path / "grown", workers=1, stack_seeds=True)
    written = Path(first["folder"][0], "summary.json").stat().st_mtime_ns
    grown = run_sweep(sweep(seeds=[1, 2, 3]), tmp_path / "grown", workers=1, stack_seeds=True)
    assert Path(first["folder"][0], "summary.json").stat().st_mtime_ns == written
    np.testing.assert_allclose(grown["loss"], whole["loss"], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("kill", "workers"), [(signal.SIGINT, "1"), (signal.SIGKILL, "2")])
def test_an_interrupted_stack_goes_on(base, tmp_path, kill, workers):
    """All of its runs are saved, or go on from their last checkpoints."""
    rounds = 1500
    plain = {**base, "dtype": "float64", "rounds": rounds, "checkpoint": {"every": 200}}
    file, out = tmp_path / "sweep.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(plain | {"seeds": [1, 2, 3]}))
    command = [sys.executable, "-c", "from fedtide.cli import main; main()", "sweep", str(file)]
    command += ["--out", str(out), "--workers", workers, "--stack-seeds"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    end = time.monotonic() + 120
    while len(list(out.glob("*/*/checkpoints/*200.safetensors"))) != 3:
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(process.pid, kill)
    said = process.communicate(timeout=60)[1].decode()
    assert not list(out.glob("*/*/summary.json"))
    if kill == signal.SIGINT:
        assert process.returncode == 130
        assert "interrupted and saved" in said
    else:
        assert process.returncode == -signal.SIGKILL
        time.sleep(1)  # workers notice that their parent is gone
    done = subprocess.run(command, capture_output=True, timeout=180)
    assert done.returncode == 0, done.stderr
    frame = pl.read_parquet(out / "results.parquet")
    assert frame["rounds"].to_list() == [rounds] * 3
    experiments = [Experiment.of(plain | {"seed": seed}) for seed in (1, 2, 3)]
    alone = [execute(one).metrics["loss"][-1] for one in experiments]
    np.testing.assert_allclose(frame["loss"], alone, rtol=1e-9)
