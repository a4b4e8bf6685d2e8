"""How long commands with little training take: start-up, the example `digits`, a short sweep.

python benchmarks/commands.py
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from measuring import Section, machine

REPEATS = 5
WORKERS = 2
RUNS = 100
COMMAND = (sys.executable, "-m", "fedtide")
SHORT = f"""
seeds: {list(range(RUNS))}
rounds: 100
problem: {{type: classification, dataset: digits, clients: 100, partition: iid}}
participation: {{type: bernoulli, rates: 0.1}}
local: {{steps: 5, batch_size: 16, lr: 0.1}}
algorithm: fedavg
"""


def section() -> Section:
    """Measure processes from outside, and read the timings that runs leave."""
    found = Section(
        "Commands",
        "Seconds from the start of a process to its end, files read before. Training: the share "
        f"of the workers' time in which they train or evaluate, {WORKERS} of them; the rest is "
        "starting, preparing the data, capturing steps and choosing how to train, writing "
        f"results, and the figure. Short runs: logistic models on the digits, {RUNS} seeds, 10 of "
        "100 clients a round, 100 rounds each.",
        ("command", "runs", "rounds", "s", "training"),
    )
    script = (sys.executable, "-c", "import fedtide")
    found.rows.append(("`import fedtide`", "", "", f"{_median(script):.2f}", ""))
    found.rows.append(("`fedtide --help`", "", "", f"{_median((*COMMAND, '--help')):.2f}", ""))
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "short.yaml").write_text(SHORT, encoding="utf-8")
        for title, arguments in (
            ("`fedtide run digits`", ("run", "digits")),
            (f"`fedtide sweep` of {RUNS} short runs", ("sweep", "short.yaml")),
        ):
            out = folder / arguments[0]
            workers = ("--workers", str(WORKERS), "--out", str(out))
            seconds = _seconds((*COMMAND, *arguments, *workers), folder)
            found.rows.append((title, *_sweep_row(out, seconds)))
    return found


def _median(command: Sequence[str]) -> float:
    return statistics.median(_seconds(command) for _ in range(REPEATS + 1))


def _seconds(command: Sequence[str], folder: Path | None = None) -> float:
    began = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return time.perf_counter() - began


def _sweep_row(out: Path, seconds: float) -> tuple[str, ...]:
    timings = [json.loads(file.read_bytes()) for file in out.rglob("timings.json")]
    rounds = sum(each["rounds"] for each in timings)
    spent = sum(each["training_seconds"] + each["evaluation_seconds"] for each in timings)
    share = spent / (WORKERS * seconds)
    return f"{len(timings)}", f"{rounds:,}", f"{seconds:.1f}", f"{100 * share:.0f} %"


if __name__ == "__main__":
    print(machine())
    print(section().markdown())
