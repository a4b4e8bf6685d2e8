"""The cost of a round as the population grows: FedAU with 100 clients a round.

Logistic regression on the digits, clients by rule in a shared pool, full runs of the simulator
without evaluation. Prints milliseconds per round, their ratio to N = 1000, the seconds of set-up,
and the bytes per client that the run keeps.

    python benchmarks/population.py
"""

from __future__ import annotations

import gc
import os
import statistics
import time

from fedtide.simulation.experiment import Experiment
from fedtide.simulation.loop import Run
from measuring import Section, machine

COHORT, ROUNDS, REPEATS = 100, 40, 7
POPULATIONS = (10**3, 10**5, 10**7)


def experiment(process: str, clients: int) -> Experiment:
    """Return the experiment; `process` takes part with rate 100 / N."""
    rate = COHORT / clients
    participation = {"type": process, "rates": rate}
    if process == "cyclic":
        participation["period"] = max(100, round(1 / rate))
    return Experiment.from_dict(
        {
            "rounds": 10**6,
            "problem": {
                "type": "classification",
                "dataset": "digits",
                "clients": clients,
                "partition": {"type": "shared-pool", "samples": 60},
            },
            "participation": participation,
            "algorithm": "fedau",
            "local": {"steps": 5, "batch_size": 16, "lr": 0.1},
            "evaluation": {"every": 0, "clients": False},
            "trainer": "stacked",
        }
    )


def resident() -> int:
    """Return the bytes of memory that the process holds."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(process: str, clients: int) -> tuple[float, float, float]:
    """Return milliseconds per round, seconds of set-up, and bytes per client."""
    gc.collect()
    before, began = resident(), time.perf_counter()
    run = Run(experiment(process, clients))
    run.round()
    setup = time.perf_counter() - began
    for _ in range(20):
        run.round()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        for _ in range(ROUNDS):
            run.round()
        times.append((time.perf_counter() - began) / ROUNDS)
    return 1000 * statistics.median(times), setup, (resident() - before) / clients


def section() -> Section:
    """Measure every process at every population."""
    found = Section(
        "Population",
        f"FedAU with {COHORT} clients a round, logistic regression on the digits (650 "
        "parameters), clients by rule in a shared pool, without evaluation. Ratio: of milliseconds "
        "per round to N = 1,000.",
        ("process", "N", "ms per round", "ratio", "set-up s", "bytes per client"),
    )
    measure("bernoulli", 10**3)  # so that modules loaded once are not counted
    for process in ("bernoulli", "markov", "cyclic"):
        first = 0.0
        for clients in POPULATIONS:
            ms, setup, size = measure(process, clients)
            first = first or ms
            shown = f"{size:.1f}" if clients == POPULATIONS[-1] else ""
            found.rows.append(
                (process, f"{clients:,}", f"{ms:.2f}", f"{ms / first:.2f}", f"{setup:.2f}", shown)
            )
    return found


if __name__ == "__main__":
    print(machine())
    print(section().markdown())
