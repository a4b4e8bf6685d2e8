"""Speed and accuracy of the audit.

    python benchmarks/audit.py speed [--rounds 10000] [--cohort 10000] [--clients 20000] [--times 1]
                                     [--csv]
    python benchmarks/audit.py truth [--logs 1000] [--rounds 500]
    python benchmarks/audit.py coverage [--logs 1000] [--only Markov] [--size 50 500 | --record]
    python benchmarks/audit.py false-alarms [--logs 1000] [--only Markov] [--size 50 500 | --record]
    python benchmarks/audit.py write

`speed` writes a Parquet or CSV log of rounds × cohort rows, audits it in a separate process, step
by step, and then prints the median time of the command, start-up included. `truth` draws logs of
known processes with N from 10 to 300 clients and prints, per family, how often the family was
recognised and the period exact, the share of the rates' intervals that cover the truth, and how
often drift was reported. `coverage` prints, for families of `participation_families`, the share of
the 95% intervals of rates, weights and the L1 skew that cover, and the share of logs without
intervals. `false-alarms` prints how often the verdicts on the pattern claim an effect that a
stationary process does not have, and how often drift is found. With `--record`, both write what
they measure into records/audit.json, and `write` puts that into docs/audit-methods.md.
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
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from audit_record import write
from false_alarms import tabulate_false_alarms, tabulate_power
from fedtide.auditing import ParticipationLog, audit
from fedtide.auditing.statistics.pattern import find_pattern
from fedtide.auditing.statistics.rate_estimates import estimate_rates
from fedtide.participation import (
    Bernoulli,
    Cyclic,
    GroupCycle,
    Markov,
    Permutation,
    Schedule,
    Uniform,
    Weighted,
)
from fedtide.population import Population
from interval_coverage import tabulate_coverage

ROWS = {
    "false alarms": [
        "Bernoulli, uneven rates",
        "four regions, each up in half of the rounds",
        "Markov, correlation 0.95, all 0.3",
        "Markov 0.9, server takes the 5 longest absent",
        "log-normal sessions",
        "two regimes of 80 rounds, common to all",
        "five regions, shocks of 40 rounds",
    ],
    "power": [
        "step: rates halve half-way",
        "step: rates halve after a quarter",
        "ramp: rates fall to half",
        "step: rates halve half-way, Markov of correlation 0.5",
        "step: rates halve half-way, Markov of correlation 0.75",
    ],
    "coverage": [
        "Bernoulli, uneven rates",
        "Bernoulli, all 0.2",
        "Markov, correlation 0.75, 0.2 and 0.4 by turns",
        "Markov, correlation 0.95 of a rare half (0.05), others 0.3",
        "Pareto(1.5) sessions",
        "log-normal sessions",
        "a tenth in sessions of 100 rounds",
        "memory without end, Hurst exponent 0.6",
        "memory without end, Hurst exponent 0.8",
        "back-off after failures",
        "pause of 24 rounds",
    ],
    "churn": [
        "Bernoulli, uneven rates",
        "Bernoulli, all 0.2",
        "Markov, correlation 0.75, all 0.2",
        "Weibull(0.6) sessions",
        "Pareto(1.5) sessions",
        "a tenth in sessions of 100 rounds",
        "bad rounds common to all",
    ],
    "selection": [
        "Bernoulli, uneven rates",
        "Weibull(0.6) sessions",
        "Bernoulli, uneven rates; kept for 10 rounds",
        "Weibull(0.6) sessions; kept for 10 rounds",
    ],
}
"""The rows of the tables of docs/audit-methods.md; those left out are like one of these."""

SIZE = [50, 500]
"""Clients and rounds of the recorded tables."""
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
    "markov": ("persistent", None, lambda n, s: Schedule(Markov(uneven(n, s)))),
    "markov, slow": ("persistent", None, lambda n, s: Schedule(Markov(0.4))),
    "cyclic 100": ("cyclic", 100, lambda n, s: Schedule(Cyclic(uneven(n, s), period=100))),
    "cyclic 24": ("cyclic", 24, lambda n, s: Schedule(Cyclic(uneven(n, s), period=24))),
    "groups in turn": ("cyclic", 60, lambda n, s: Schedule(GroupCycle(3, 20, on=0.5, off=0.05))),
    "permutation": ("regularized", None, lambda n, s: Schedule(Permutation(max(1, n // 10)))),
}


def draw(schedule: Schedule, clients: int, rounds: int, seed: int) -> ParticipationLog:
    stream = schedule.start(Population(clients), seed)
    ids = [stream.round(t).reported for t in range(rounds)]
    numbers = np.repeat(np.arange(rounds), [len(cohort) for cohort in ids])
    names = pl.Series("client", np.arange(clients))
    return ParticipationLog.from_entries(
        names, numbers, np.concatenate(ids).astype(np.int32), (0, rounds)
    )


def truth(logs: int, rounds: int) -> None:
    print(f"{'process':16} {'family':>7} {'period':>7} {'rates':>7} {'drift':>7}")
    for name, (family, period, make) in FAMILIES.items():
        right = exact = drifting = 0
        covered: list[float] = []
        for seed in range(logs):
            clients = SIZES[seed % len(SIZES)]
            schedule = make(clients, seed)
            log = draw(schedule, clients, rounds, seed)
            found = find_pattern(log)
            right += found.family == family
            drifting += found.family == "drifting"
            exact += found.period == period
            rates = schedule.known_rates(Population(clients), seed)
            got = estimate_rates(log, found)
            if rates is not None:
                inside = (got.low <= rates + 1e-12) & (rates <= got.high + 1e-12)
                covered.append(float(inside.mean()))
        cover = f"{np.mean(covered):7.3f}" if covered else "      -"
        shown = f"{exact / logs:7.3f}" if period else "      -"
        print(f"{name:16} {right / logs:7.3f} {shown} {cover} {drifting / logs:7.3f}", flush=True)


def speed(rounds: int, cohort: int, clients: int, times: int, as_csv: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("log.csv" if as_csv else "log.parquet")
        write_log(path, rounds, cohort, clients)
        size = path.stat().st_size / 1e6
        print(f"{rounds * cohort:,} rows, {size:.0f} MB of {'CSV' if as_csv else 'Parquet'}")
        subprocess.run([sys.executable, __file__, "one", str(path)], check=True)
        command = [
            sys.executable,
            "-c",
            "from fedtide.cli.main import main; main()",
            "audit",
            str(path),
        ]
        took = []
        for _ in range(times):
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            took.append(time.perf_counter() - began)
        spread = f"{min(took):.2f} to {max(took):.2f} s"
        print(
            f"{np.median(took):6.2f} s  the command, start-up included: median of {times}, {spread}"
        )


def write_log(path: Path, rounds: int, cohort: int, clients: int) -> None:
    random = np.random.default_rng(0)
    schema = pa.schema([("round", pa.int64()), ("client", pa.int64())])
    step = max(1, 2_000_000 // cohort)
    writer = pa_csv.CSVWriter if path.suffix == ".csv" else pq.ParquetWriter
    with writer(path, schema) as file:
        for low in range(0, rounds, step):
            numbers = np.arange(low, min(low + step, rounds))
            ids = [np.sort(random.choice(clients, cohort, replace=False)) for _ in numbers]
            columns = {"round": np.repeat(numbers, cohort), "client": np.concatenate(ids)}
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
    fast.add_argument("--times", type=int, default=1)
    fast.add_argument("--csv", action="store_true")
    right = commands.add_parser("truth")
    right.add_argument("--logs", type=int, default=1000)
    right.add_argument("--rounds", type=int, default=500)
    for name in ("coverage", "false-alarms"):
        table = commands.add_parser(name)
        table.add_argument("--logs", type=int, default=1000)
        table.add_argument("--only", default="")
        table.add_argument("--size", nargs=2, type=int, metavar=("CLIENTS", "ROUNDS"), default=SIZE)
        table.add_argument("--record", action="store_true")
    commands.add_parser("write")
    single = commands.add_parser("one")
    single.add_argument("path")
    given = parser.parse_args()
    if getattr(given, "record", False) and given.size != SIZE:
        parser.error("--record: only for the size of the tables; leave out --size")
    if given.command == "speed":
        speed(given.rounds, given.cohort, given.clients, given.times, given.csv)
    elif given.command == "truth":
        truth(given.logs, given.rounds)
    elif given.command == "coverage":
        tabulate_coverage(given.logs, *given.size, given.only, given.record)
    elif given.command == "false-alarms":
        tabulate_false_alarms(given.logs, *given.size, given.only, given.record)
        tabulate_power(given.logs, *given.size, given.only, given.record)
    elif given.command == "write":
        write(ROWS)
    else:
        one(given.path)


if __name__ == "__main__":
    main()
