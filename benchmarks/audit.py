"""How fast an audit is, and how often it is right.

    python benchmarks/audit.py speed [--rounds 10000] [--cohort 10000] [--clients 20000]
    python benchmarks/audit.py truth [--logs 1000] [--rounds 500]

`speed` writes a Parquet log of rounds × cohort rows and audits it in a process of its own. `truth`
draws logs of known processes with N from 10 to 300 clients and prints, per family, how often it was
recognised, how often the period was exact, and which share of the rates' intervals and of the
L1 skew's covers the truth.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from fedtide.audit import audit
from fedtide.audit.attendance import Attendance, attend
from fedtide.audit.noise import Noise
from fedtide.audit.objective import find_objectives
from fedtide.audit.pattern import find_pattern
from fedtide.audit.rates import estimate_rates
from fedtide.participation import (
    Bernoulli,
    Cyclic,
    GroupCycle,
    Markov,
    Permutation,
    Schedule,
    Uniform,
    Weighted,
    participation_weights,
    skew,
)
from fedtide.population import Population

SIZES = (10, 20, 50, 100, 300)


def uneven(clients: int, seed: int) -> list[float]:
    draws = np.random.default_rng(seed).gamma(1.0, 0.15, clients)
    return np.clip(draws, 0.02, 0.9).tolist()


FAMILIES: dict[str, tuple[str, int | None, Callable[[int, int], Schedule]]] = {
    "bernoulli": ("independent", None, lambda n, s: Schedule(Bernoulli(uneven(n, s)))),
    "uniform": ("independent", None, lambda n, s: Schedule(Uniform(max(1, n // 10)))),
    "weighted": (
        "independent",
        None,
        lambda n, s: Schedule(Weighted(max(1, n // 10), np.exp(-np.arange(n) * 10 / n).tolist())),
    ),
    "markov": ("markov", None, lambda n, s: Schedule(Markov(uneven(n, s)))),
    "markov, slow": ("markov", None, lambda n, s: Schedule(Markov(0.4))),
    "cyclic 100": ("cyclic", 100, lambda n, s: Schedule(Cyclic(uneven(n, s), period=100))),
    "cyclic 24": ("cyclic", 24, lambda n, s: Schedule(Cyclic(uneven(n, s), period=24))),
    "groups in turn": ("cyclic", 60, lambda n, s: Schedule(GroupCycle(3, 20, on=0.5, off=0.05))),
    "permutation": ("regularized", None, lambda n, s: Schedule(Permutation(max(1, n // 10)))),
}


def draw(schedule: Schedule, clients: int, rounds: int, seed: int) -> Attendance:
    running = schedule.start(Population(clients), seed)
    ids = [running.round(t).reported for t in range(rounds)]
    numbers = np.repeat(np.arange(rounds), [len(cohort) for cohort in ids])
    names = pl.Series("client", np.arange(clients))
    return attend(names, numbers, np.concatenate(ids).astype(np.int32), (0, rounds))


def truth(logs: int, rounds: int) -> None:
    print(f"{'process':16} {'family':>7} {'period':>7} {'rates':>7} {'drift':>7}")
    for name, (family, period, make) in FAMILIES.items():
        right = exact = drifts = 0
        covered: list[float] = []
        for seed in range(logs):
            clients = SIZES[seed % len(SIZES)]
            schedule = make(clients, seed)
            log = draw(schedule, clients, rounds, seed)
            found = find_pattern(log)
            right += found.family == family
            drifts += found.family == "drifting"
            exact += found.period == period
            rates = schedule.known_rates(Population(clients), seed)
            got = estimate_rates(log, found)
            if rates is not None:
                inside = (got.low <= rates + 1e-12) & (rates <= got.high + 1e-12)
                covered.append(float(inside.mean()))
        cover = f"{np.mean(covered):7.3f}" if covered else "      -"
        shown = f"{exact / logs:7.3f}" if period else "      -"
        print(f"{name:16} {right / logs:7.3f} {shown} {cover} {drifts / logs:7.3f}", flush=True)
    skews(logs, rounds)


def skews(logs: int, rounds: int) -> None:
    """The law of paper 004, whose exact L1 skew is 1.289078, and uniform selection, 0."""
    weights = np.exp(-np.arange(100) / 10)
    for name, process in (("weighted", Weighted(10, weights.tolist())), ("uniform", Uniform(10))):
        population = Population(100)
        exact = skew(participation_weights(process, population))
        covered = 0
        for seed in range(logs):
            log = draw(Schedule(process), 100, rounds, seed)
            pattern = find_pattern(log)
            rates = estimate_rates(log, pattern)
            noise = Noise(log, pattern, rates)
            found = find_objectives(log, noise, rates, np.full(100, 0.01), 50)
            low, high = found.plain.interval
            covered += low <= exact + 1e-9 and exact <= high
        print(f"L1 skew {exact:.6f} of {name}: in the interval in {covered / logs:.3f} of the logs")


def speed(rounds: int, cohort: int, clients: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        write_log(path, rounds, cohort, clients)
        size = path.stat().st_size / 1e6
        print(f"{rounds * cohort:,} rows, {size:.0f} MB of Parquet")
        subprocess.run([sys.executable, __file__, "one", str(path)], check=True)


def write_log(path: Path, rounds: int, cohort: int, clients: int) -> None:
    random = np.random.default_rng(0)
    schema = pa.schema([("round", pa.int64()), ("client", pa.int64())])
    step = max(1, 2_000_000 // cohort)
    with pq.ParquetWriter(path, schema) as file:
        for low in range(0, rounds, step):
            held = np.arange(low, min(low + step, rounds))
            ids = [np.sort(random.choice(clients, cohort, replace=False)) for _ in held]
            columns = {"round": np.repeat(held, cohort), "client": np.concatenate(ids)}
            file.write_table(pa.table(columns, schema=schema))


def one(path: str) -> None:
    began, last = time.perf_counter(), [""]

    def watch(task: str, share: float) -> None:
        if task != last[0]:
            print(f"{time.perf_counter() - began:6.1f} s  {task}", flush=True)
            last[0] = task

    found = audit(path, watch=watch)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{time.perf_counter() - began:6.1f} s  done; peak memory {peak:.2f} GB")
    print(f"pattern {found.pattern.family}, L1 skew {found.objectives.plain.l1_skew:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fast = commands.add_parser("speed")
    fast.add_argument("--rounds", type=int, default=10_000)
    fast.add_argument("--cohort", type=int, default=10_000)
    fast.add_argument("--clients", type=int, default=20_000)
    right = commands.add_parser("truth")
    right.add_argument("--logs", type=int, default=1000)
    right.add_argument("--rounds", type=int, default=500)
    single = commands.add_parser("one")
    single.add_argument("path")
    given = parser.parse_args()
    if given.command == "speed":
        speed(given.rounds, given.cohort, given.clients)
    elif given.command == "truth":
        truth(given.logs, given.rounds)
    else:
        one(given.path)


if __name__ == "__main__":
    main()
