"""Runs killed at random moments and resumed end with the results of an undisturbed run."""

import subprocess
import sys

import pytest

KILLER = '''
"""Run an experiment in forked processes and kill them at random moments."""
import json, os, random, select, signal, sys, torch, traceback
torch.set_num_threads(1)
from pathlib import Path
import fedtide as ft
from fedtide.errors import Interrupted
from fedtide.problems.datasets.catalogue import load
from fedtide.callbacks import Callback
from fedtide.simulation import execute

folder, number = Path(sys.argv[1]), getattr(signal, sys.argv[2])
experiment, kills = ft.Experiment.load(folder / "e.yaml"), int(sys.argv[3])
draw, run, killed = random.Random(sys.argv[2]), 0, []
load("digits")

class Count(Callback):
    def on_round_end(self, run):
        os.write(tell, b".")

while len(killed) < kills or not (folder / f"run-{run}" / "summary.json").exists():
    out = folder / f"run-{run}"
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hear)
        try:
            execute(experiment, out, resume=True, callbacks=[Count()])
        except Interrupted as error:
            os.write(2, f"{error}\\n".encode())
            os._exit(3)
        except BaseException:
            traceback.print_exc()
            os._exit(4)
        os._exit(0)
    os.close(tell)
    if len(killed) < kills:
        for _ in range(draw.randrange(8)):
            os.read(hear, 1)
        select.select([], [], [], draw.random() * 0.02)
        os.kill(child, number)
    _, status = os.waitpid(child, 0)
    os.close(hear)
    if os.waitstatus_to_exitcode(status) == 4:
        sys.exit("a run failed for another reason than its end")
    if status == 0:
        run += (out / "summary.json").exists() and len(killed) < kills
    else:
        killed.append(status)
print(json.dumps(killed))
'''

FIELDS = """
problem: {type: classification, dataset: digits, clients: 10, partition: iid}
participation: {type: markov, rates: 0.5, max_on: 0.3}
algorithm: {type: amplified, period: 3, factor: 1.2, inner: {type: mifa}}
local: {steps: 1, batch_size: 4, lr: 0.1}
rounds: 25
evaluation: {every: 5}
trainer: reference
checkpoint: {every: 1}
"""


def run_and_kill(folder, signal_name, times):
    (folder / "e.yaml").write_text(FIELDS)
    command = [sys.executable, "-c", KILLER, str(folder), signal_name, str(times)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=500)


@pytest.mark.process
@pytest.mark.parametrize(("signal_name", "times"), [("SIGKILL", 30), ("SIGTERM", 5), ("SIGINT", 5)])
def test_killed_and_resumed_runs_equal_an_undisturbed_one(
    signal_name, times, results, tmp_path, monkeypatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = run_and_kill(tmp_path, signal_name, times)
    runs = sorted(tmp_path.glob("run-*"))
    whole = tmp_path / "whole"
    code = "import sys, fedtide as ft; ft.run(sys.argv[1], out=sys.argv[2])"
    undisturbed = [sys.executable, "-c", code, str(tmp_path / "e.yaml"), str(whole)]
    subprocess.run(undisturbed, check=True)
    assert runs
    for run in runs:
        assert results(run) == results(whole)
        assert {file.name for file in run.rglob(".*")} <= {".lock"}
    if signal_name == "SIGTERM":
        messages = [line for line in done.stderr.splitlines() if line.startswith("interrupted")]
        assert all("resume=True" in line for line in messages)  # they come from Python
