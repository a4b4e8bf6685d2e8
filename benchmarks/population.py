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
        "parameters), clients by rule in a shared pool, without evaluation. Milliseconds per round "
        "and, in brackets, their ratio to those of N = 1,000; set-up and memory of the largest N.",
        ("process", *(f"N = {n:,}" for n in POPULATIONS), "set-up s", "bytes per client"),
    )
    measure("bernoulli", 10**3)  # so that modules loaded once are not counted
    for process in ("bernoulli", "markov", "cyclic"):
        measured = [measure(process, clients) for clients in POPULATIONS]
        first, (_, setup, size) = measured[0][0], measured[-1]
        times = (f"{ms:.2f} ({ms / first:.2f})" for ms, _, _ in measured)
        found.rows.append((process, *times, f"{setup:.2f}", f"{size:.1f}"))
    return found


if __name__ == "__main__":
    print(machine())
    print(section().markdown())
