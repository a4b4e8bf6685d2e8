"""Memory does not grow with the rounds of a run in a folder."""

import json
import subprocess
import sys

import pytest

RUN = """
import json, re, sys, torch
torch.set_num_threads(1)
from pathlib import Path
import fedtide as ft
from fedtide.callbacks import Callback
from fedtide.simulation import execute

seen = {}

class Measure(Callback):
    def on_round_end(self, run):
        if run.round in (10_000, 20_000):
            status = Path("/proc/self/status").read_text()
            seen[run.round] = int(re.search(r"RssAnon:\\s+(\\d+) kB", status)[1])

experiment = ft.Experiment.from_dict({
    "problem": {"type": "quadratic", "matrices": [[[1.0]]] * 3, "centers": [[0.0], [1.0], [2.0]]},
    "participation": {"type": "uniform", "size": 1},
    "algorithm": "fedau",
    "local": {"steps": 1, "lr": 0.1},
    "rounds": 20_000,
    "trainer": "stacked",
    "evaluation": {"every": 0},
    "checkpoint": {"every": 2000},
})
execute(experiment, sys.argv[1], callbacks=[Measure()])
print(json.dumps([seen[10_000], seen[20_000]]))
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_flat_over_20_000_rounds(tmp_path, monkeypatch):
    """Less than 100 bytes a round: no tensor, table or object is kept of a round.

    The allocator's own caches grow for some 8,000 rounds and then stay: counting begins later.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-c", RUN, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    early, late = json.loads(done.stdout)
    assert late - early < 1000, (early, late)
