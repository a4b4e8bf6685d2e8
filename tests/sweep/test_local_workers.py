"""Sweeps in worker processes that are killed, one by one or all together."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
import yaml

from fedtide.simulation.progress import Progress
from fedtide.sweep import Sweep, run_sweep
from fedtide.sweep.job import INTERRUPTED, Job
from fedtide.sweep.local_workers import run_in_processes

COMMAND = [sys.executable, "-c", "from fedtide.cli.main import main; main()", "sweep"]


@pytest.fixture
def long(base):
    """Return a sweep of four runs of some hundred rounds."""
    return base | {
        "rounds": 400,
        "checkpoint": {"every": 20},
        "evaluation": {"every": 200},
        "grid": {"local.lr": [0.001, 0.002]},
        "seeds": [1, 2],
    }


def wait_for(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)


def find_workers(parent):
    """Return the child processes that have a run folder's lock open."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            lines = dict(line.split(":\t", 1) for line in status.read_text().splitlines())
            files = [link.readlink().name for link in status.parent.glob("fd/*")]
            if lines["PPid"] == str(parent) and ".lock" in files:
                found.add(int(status.parent.name))
    return found


def start(file, out):
    return subprocess.Popen(
        [*COMMAND, str(file), "--out", str(out), "--workers", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.process
def test_a_sweep_interrupted_while_its_workers_start_does_not_wait_for_them(sweep, tmp_path):
    """They would import, and begin a run, only to end it; importing may take half a minute."""
    runs = sweep(seeds=[1, 2]).runs
    jobs = [Job(run.path, run.experiment, tmp_path / run.path) for run in runs]
    progress, ended, answers = Progress(), {}, iter([False])
    for job in jobs:
        progress.add(job.path, 3)
    run_in_processes(
        jobs,
        2,
        1,
        progress,
        lambda job, outcome: ended.update({job.path: outcome}),
        lambda: next(answers, True),
    )
    assert ended == {job.path: INTERRUPTED for job in jobs}
    assert not any(job.folder.exists() for job in jobs)


@pytest.mark.process
def test_a_sweep_that_loses_a_worker_and_is_killed_resumes_with_the_same_results(
    long, results, tmp_path
):
    """Finished runs are not repeated."""
    whole = run_sweep(Sweep.from_dict(long), tmp_path / "whole", workers=1)
    file, out = tmp_path / "sweep.yaml", tmp_path / "killed"
    file.write_text(yaml.safe_dump(long))
    process = start(file, out)
    wait_for(
        lambda: list(out.glob("*/*/checkpoints/*40.safetensors")) and find_workers(process.pid)
    )
    os.kill(find_workers(process.pid).pop(), signal.SIGKILL)
    wait_for(lambda: list(out.glob("*/*/summary.json")))
    process.kill()
    process.wait()
    finished = {path: path.stat().st_mtime_ns for path in out.glob("*/*/summary.json")}
    assert 1 <= len(finished) <= len(whole)
    wait_for(lambda: not is_in_use(out))
    assert start(file, out).wait(timeout=180) == 0
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    found, times = pl.read_parquet(out / "results.parquet"), ["folder", "rounds_per_second"]
    assert whole.drop(times).equals(found.drop(times))
    for a, b in zip(whole["folder"], found["folder"], strict=True):
        assert results(a) == results(b)


def is_in_use(out):
    """Return whether a process still has a file below the folder open."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if link.readlink().is_relative_to(out):
                return True
    return False


@pytest.mark.process
def test_a_run_that_always_loses_its_process_fails_and_the_others_finish(
    base, tmp_path, monkeypatch
):
    """The model ends its process when it is built."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    (tmp_path / "deadly.py").write_text(
        "import os, multiprocessing as m\n"
        "from torch import nn\n"
        "def model():\n"
        "    if m.parent_process() is not None:\n"
        "        os._exit(7)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    digits = {"type": "classification", "dataset": "digits", "partition": "iid", "clients": 5}
    plain = base | {
        "problem": digits,
        "list": [
            {"name": "deadly", "problem.model": "deadly:model"},
            {"name": "good", "problem.model": "logistic"},
        ],
    }
    frame = run_sweep(Sweep.from_dict(plain), tmp_path / "out", workers=2)
    assert frame["status"].to_list() == ["failed", "done"]
    assert frame["error"][0].startswith("workers: deadly/seed-0 lost its process 3 times (exit")


SCRIPT = """
import sys
import threading

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedtide as ft
from fedtide.sweep import Sweep, run_sweep


class Rows(TensorDataset):
    pass


torch.manual_seed(0)
with open("started", "a") as file:
    file.write("x")
data = {"x": np.ones((12, 2)), "y": np.arange(12) % 2, "client": np.arange(12) // 4}
if sys.argv[1] != "plain":
    data = Rows(*map(torch.as_tensor, data.values()))
if sys.argv[1] == "lock":
    data.lock = threading.Lock()
problem = ft.problems.Supervised(data, model=nn.Linear(2, 2))
fields = {"participation": "full", "algorithm": "fedavg", "trainer": "reference", "rounds": 2}
fields |= {"problem": problem, "local": {"steps": 1, "lr": 0.1}, "seeds": [1, 2]}
SCRIPT_END
"""
RUN = "print(run_sweep(Sweep.from_dict(fields), 'out', workers=2)['status'].to_list())"


def run_script(folder, kind, end):
    script = folder / "script.py"
    script.write_text(SCRIPT.replace("SCRIPT_END", end))
    command = [sys.executable, str(script), kind]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.process
def test_workers_get_the_classes_of_a_script_and_do_not_run_it_again(tmp_path):
    for _ in range(2):  # the second time, the runs are compared with those in the folder
        run = run_script(tmp_path, "own", RUN)
        assert run.stdout.strip() == "['done', 'done']", run.stderr
        assert (tmp_path / "started").read_text() == "x"
        (tmp_path / "started").unlink()


NUMERIC = """
torch.set_default_dtype(torch.float64)
fields["problem"] = ft.problems.Supervised(data, model="network:Net")
frames = [run_sweep(Sweep.from_dict(fields), f"out{n}", workers=n) for n in (1, 2)]
print([frame["loss"].to_list() for frame in frames])
"""


@pytest.mark.process
def test_settings_that_change_numbers_reach_the_workers(tmp_path):
    """By default, single precision decides how an initial network is drawn."""
    (tmp_path / "network.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Linear):\n    def __init__(self):\n"
        "        super().__init__(2, 2)\n"
    )
    run = run_script(tmp_path, "plain", NUMERIC)
    alone, workers = json.loads(run.stdout or "[0, 1]")
    assert alone == workers, run.stderr
    assert alone[0] != alone[1]


@pytest.mark.process
def test_workers_import_modules_of_the_working_directory(tmp_path):
    """Which is not on Python's path where the command `fedtide` runs."""
    (tmp_path / "own.yaml").write_text(
        "problem: {type: quadratic, matrices: [[[1.0]], [[2.0]]], centers: [[0.0], [1.0]]}\n"
        "participation: full\nalgorithm: {type: 'own:Own'}\nlocal: {steps: 1, lr: 0.1}\n"
        "rounds: 2\nseeds: [1, 2]\n"
    )
    (tmp_path / "own.py").write_text(
        "from dataclasses import dataclass\nimport fedtide as ft\n\n\n"
        "@dataclass(frozen=True)\nclass Own(ft.algorithms.FedAvg):\n    pass\n"
    )
    command = [sys.executable, "-P", *COMMAND[1:], "own.yaml", "--out", "out", "--workers", "2"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert len([*tmp_path.glob("out/**/summary.json")]) == 2


@pytest.mark.process
def test_an_object_that_workers_cannot_get_is_refused(tmp_path):
    run = run_script(tmp_path, "lock", RUN)
    assert "InvalidInputError: workers: an object of the experiment cannot be sent" in run.stderr
    assert "give workers=1" in run.stderr
