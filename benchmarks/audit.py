"""Speed and accuracy of the audit.

    python benchmarks/audit.py speed [--rounds 10000] [--cohort 10000] [--clients 20000] [--times 1]
                                     [--csv]
    python benchmarks/audit.py truth [--logs 1000] [--rounds 500]
    python benchmarks/audit.py skews [--logs 1000] [--only Markov]

`speed` writes a Parquet or CSV log of rounds × cohort rows, audits it in a separate process, step
by step, and then prints the median time of the command, start-up included. `truth` draws logs of
known processes with N from 10 to 300 clients and prints, per family, how often the family was
recognised and the period exact, the share of the rates' intervals that cover the truth, and how
often drift was reported. `skews` prints the coverage of the L1 skew's interval.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedtide.auditing import ParticipationLog, audit
from fedtide.auditing.statistics.influence import compare_objectives
from fedtide.auditing.statistics.pattern import find_pattern
from fedtide.auditing.statistics.rate_estimates import estimate_rates
from fedtide.auditing.statistics.variance import VarianceModel
from fedtide.participation import (
    Bernoulli,
    Cyclic,
    GroupCycle,
    Markov,
    Permutation,
    Schedule,
    Uniform,
    Weighted,
    l1_skew,
    participation_weights,
)
from fedtide.population import Population

Numbers = NDArray[np.float64]
Present = NDArray[np.bool_]

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


@dataclass(frozen=True)
class KnownProcess:
    """A process of known L1 skew.

    Args:
        skew: the exact L1 skew.
        family: the true family.
        draw: samples participation, shape (T, N), from a generator and T.
    """

    skew: float
    family: str
    draw: Callable[[np.random.Generator, int], Present]


def chains(rates: Numbers, correlations: Numbers | float = 0.0) -> KnownProcess:
    """Independent clients, each a stationary two-state chain."""
    stay = rates + (1 - rates) * correlations
    back = rates * (1 - correlations)

    def draw(random: np.random.Generator, rounds: int) -> Present:
        draws = random.random((rounds, len(rates)))
        present = draws < rates
        for t in range(1, rounds if np.any(correlations) else 0):
            present[t] = draws[t] < np.where(present[t - 1], stay, back)
        return present

    return KnownProcess(
        independent_skew(rates), "markov" if np.any(correlations) else "independent", draw
    )


def independent_skew(rates: Numbers) -> float:
    """Exact skew of independent clients: w_n ∝ p_n E[1 / (1 + others present)]."""
    weights = []
    for n, own in enumerate(rates):
        distribution = np.ones(1)
        for rate in np.delete(rates, n):
            distribution = np.convolve(distribution, [1 - rate, rate])
        weights.append(own * float((distribution / np.arange(1, len(distribution) + 1)).sum()))
    return l1_skew(np.array(weights) / sum(weights))


def successive(weights: Numbers) -> KnownProcess:
    """A tenth of the clients, drawn one after another by weight (exponential clocks)."""
    clients, size = len(weights), len(weights) // 10

    def draw(random: np.random.Generator, rounds: int) -> Present:
        clocks = random.exponential(size=(rounds, clients)) / weights
        present = np.zeros((rounds, clients), dtype=bool)
        first = np.argpartition(clocks, size - 1, axis=1)[:, :size]
        np.put_along_axis(present, first, True, axis=1)
        return present

    exact = l1_skew(participation_weights(Weighted(size, weights.tolist()), Population(clients)))
    return KnownProcess(exact, "independent", draw)


def bursts(rates: Numbers) -> KnownProcess:
    """P(off → on) at most 0.05, as in `Markov`: rarer clients are less correlated."""
    off_on = np.minimum(0.05, rates / (1 - rates))
    return chains(rates, 1 - off_on / rates)


def evenly(low: float, high: float, clients: int) -> Numbers:
    return np.linspace(low, high, clients)


PROCESSES: dict[str, Callable[[int], KnownProcess]] = {
    "Bernoulli, uneven rates": lambda n: chains(np.array(uneven(n, 0))),
    "Bernoulli, rates 0.15 to 0.3": lambda n: chains(evenly(0.15, 0.3, n)),
    "Bernoulli, all 0.2": lambda n: chains(np.full(n, 0.2)),
    "uniform, a tenth a round": lambda n: successive(np.ones(n)),
    "paper 004's weights, stretched to N clients": lambda n: successive(
        np.exp(-np.arange(n) * 10 / n)
    ),
    "every second client of threefold weight": lambda n: successive(1.0 + 2 * (np.arange(n) % 2)),
    "weights from 1 to 2": lambda n: successive(evenly(1, 2, n)),
    "Markov, correlation 0.3, uneven rates": lambda n: chains(np.array(uneven(n, 0)), 0.3),
    "Markov, correlation up to 0.95, uneven rates": lambda n: bursts(np.array(uneven(n, 0))),
    "Markov, correlation 0.67 to 0.83, rates 0.15 to 0.3": lambda n: bursts(evenly(0.15, 0.3, n)),
    "Markov, correlation 0.75, all 0.2": lambda n: chains(np.full(n, 0.2), 0.75),
    "Markov, correlation 0.75, 0.2 and 0.4 by turns": lambda n: chains(
        np.where(np.arange(n) % 2, 0.4, 0.2), 0.75
    ),
}
SHAPES = ((10, 500), (50, 200), (50, 500), (200, 500))


def skews(logs: int, only: str) -> None:
    """Print the coverage of the 95% interval of the L1 skew, as a Markdown table."""
    print("| process | exact skew | " + " | ".join(f"{n}, {t}" for n, t in SHAPES) + " |")
    print("|---|---|" + "---|" * len(SHAPES))
    for name, make in PROCESSES.items():
        if only in name:
            known = {clients: make(clients) for clients, _ in SHAPES}
            exact = sorted(process.skew for process in known.values())
            shares = [coverage(known[clients], clients, rounds, logs) for clients, rounds in SHAPES]
            cells = " | ".join(f"{share:.3f}" for share in shares)
            print(f"| {name} | {exact[0]:.2f} to {exact[-1]:.2f} | {cells} |", flush=True)


def coverage(process: KnownProcess, clients: int, rounds: int, logs: int) -> float:
    """Return the share of intervals that cover, among logs whose family is recognised."""
    found = []
    for seed in range(logs):
        present = process.draw(np.random.default_rng(seed), rounds)
        numbers, ids = np.nonzero(present)
        names = pl.Series("client", np.arange(clients))
        log = ParticipationLog.from_entries(names, numbers, ids.astype(np.int32), (0, rounds))
        pattern = find_pattern(log)
        if pattern.family == process.family:
            rates = estimate_rates(log, pattern)
            variances, wanted = VarianceModel(log, pattern, rates), np.full(clients, 1 / clients)
            low, high = compare_objectives(log, variances, rates, wanted, 50).plain.interval
            found.append(low <= process.skew + 1e-9 and process.skew <= high)
    return float(np.mean(found))


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
    even = commands.add_parser("skews")
    even.add_argument("--logs", type=int, default=1000)
    even.add_argument("--only", default="")
    single = commands.add_parser("one")
    single.add_argument("path")
    given = parser.parse_args()
    if given.command == "speed":
        speed(given.rounds, given.cohort, given.clients, given.times, given.csv)
    elif given.command == "truth":
        truth(given.logs, given.rounds)
    elif given.command == "skews":
        skews(given.logs, given.only)
    else:
        one(given.path)


if __name__ == "__main__":
    main()
