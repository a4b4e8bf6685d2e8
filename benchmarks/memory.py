"""The memory of methods that remember each client: MIFA with a million clients, d = 7,850.

Only 2,000 of them ever take part, so memory follows the clients seen, in RAM or in a file.

    python benchmarks/memory.py
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedtide.algorithms import MIFA, ClientUpdates, RoundDriver
from fedtide.population import Population
from measuring import Section, machine

CLIENTS, SIZE, SEEN, COHORT = 10**6, 7_850, 2_000, 100


def section() -> Section:
    """Measure RAM and file, each in a process of its own."""
    found = Section(
        "Methods that remember every client",
        f"MIFA with N = {CLIENTS:,} clients and d = {SIZE:,}; only {SEEN:,} of them ever take "
        f"part, {COHORT} a round. A table of all clients would take "
        f"{CLIENTS * SIZE * 4 / 2**30:.0f} GiB; the updates of those seen are "
        f"{SEEN * SIZE * 4 / 2**20:.0f} MiB. Resident memory that the process gained.",
        ("memory of", "gained MiB", "of which file-backed MiB", "ms per round"),
    )
    with TemporaryDirectory() as folder:
        for kind, path in (("RAM", ""), ("a memory-mapped file", folder)):
            command = [sys.executable, __file__, "measure", path]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found.rows.append((kind, *done.stdout.split()))
    return found


def measure(folder: str) -> None:
    """Print what was gained and the milliseconds per round."""
    import torch

    method = MIFA(memory_folder=folder or None)
    driver = RoundDriver(method, torch.zeros(SIZE), Population(CLIENTS))
    deltas = torch.randn(COHORT, SIZE)
    seen = np.random.default_rng(0).choice(CLIENTS, SEEN, replace=False)
    before, began, rounds = _resident(), time.perf_counter(), 0
    for _ in range(2):
        for cohort in np.sort(seen.reshape(-1, COHORT), axis=1):
            updates = ClientUpdates(
                clients=torch.from_numpy(cohort),
                weights=torch.full((COHORT,), 1 / COHORT),
                deltas=deltas,
                lr=0.1,
                steps=torch.ones(COHORT, dtype=torch.int64),
            )
            driver.absorb(updates)
            driver.step(lr=0.1)
            rounds += 1
    seconds = time.perf_counter() - began
    gained = [(b - a) / 2**20 for a, b in zip(before, _resident(), strict=True)]
    print(f"{gained[0]:.0f} {gained[1]:.0f} {1000 * seconds / rounds:.2f}")


def _resident() -> tuple[int, int]:
    """Return the bytes of resident memory, and how many of them belong to files."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    pairs = (line.split(":") for line in lines if line.endswith("kB"))
    sizes = {name: 1024 * int(text.split()[0]) for name, text in pairs}
    return sizes["VmRSS"], sizes["RssFile"]


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        measure(sys.argv[2])
    else:
        print(machine())
        print(section().markdown())
