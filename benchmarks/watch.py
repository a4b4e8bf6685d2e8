"""How long `fedtide watch` takes to answer, and how often it wrongly calls a client gone.

    python benchmarks/watch.py speed [--clients 10000] [--rounds 100] [--scrapes 300]
    python benchmarks/watch.py gone [--clients 100] [--rounds 1000] [--logs 10]

`speed` writes a ledger in which half of the clients are available and a tenth is used in a round,
starts `fedtide watch` on it, and prints the milliseconds that the metrics and the page take, from
connecting to the last byte. In the meantime a new round is committed every two seconds, so that the
figures include the cost of following the ledger. The metrics are measured without and with series
of single clients.

`gone` draws who is available. It prints the share of the clients that are ever called gone in
federations that nobody leaves, after how many rounds clients that leave half-way are called gone
(median, and the range of eight in ten), and the shares that the audit of the same rounds calls
gone after the last one.
"""

from __future__ import annotations

import argparse
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import polars as pl

from fedtide.auditing import ParticipationLog
from fedtide.auditing.statistics.churn import find_churn
from fedtide.auditing.statistics.pattern import find_pattern
from fedtide.auditing.statistics.rate_estimates import estimate_rates
from fedtide.flower.ledger.ledger import Entry, Ledger
from fedtide.monitoring.ledger_window import ClientTotals
from fedtide.monitoring.status import GONE, find_states
from fedtide.participation import (
    Availability,
    Bernoulli,
    Cyclic,
    DayNight,
    GroupCycle,
    Markov,
    Schedule,
    Sessions,
)
from fedtide.population import Population
from measuring import machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    speed, gone = commands.add_parser("speed"), commands.add_parser("gone")
    speed.add_argument("--clients", type=int, default=10_000)
    speed.add_argument("--rounds", type=int, default=100)
    speed.add_argument("--scrapes", type=int, default=300)
    gone.add_argument("--clients", type=int, default=100)
    gone.add_argument("--rounds", type=int, default=1000)
    gone.add_argument("--logs", type=int, default=10)
    options = parser.parse_args()
    measure_speed(options) if options.command == "speed" else count_gone(options)


def measure_speed(options: argparse.Namespace) -> None:
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'ledger.db'}"
        ledger = Ledger(url)
        for _ in range(options.rounds):
            add_round(ledger, options.clients)
        print("| what | bytes | median ms | 95% | most |")
        print("|---|---|---|---|---|")
        for series in (0, options.clients):
            with watching(url, series) as address, committing(ledger, options.clients):
                name = "metrics" if series == 0 else f"metrics, {series:,} clients' series"
                report(name, address, "/metrics", options.scrapes)
                if series == 0:
                    report("page", address, "/", options.scrapes // 10)


def add_round(ledger: Ledger, clients: int) -> None:
    """Commit a round in which half of the clients are available and a tenth is used."""
    t, now = ledger.ended, time.time()
    draws = np.random.default_rng([1, t]).random(clients)
    count = int((draws < 0.1).sum())
    entries = [
        Entry(f"client-{n}", "used", 1 / count, now)
        if draws[n] < 0.1
        else Entry(f"client-{n}", "available", None, now)
        for n in np.flatnonzero(draws < 0.5)
    ]
    ledger.commit(t, entries, now)


@contextmanager
def watching(url: str, series: int) -> Iterator[str]:
    """Run `fedtide watch`; return its address once it has read the ledger."""
    code = "from fedtide.cli.entry import main; main()"
    command = [sys.executable, "-c", code, "watch", url, "--port", "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*command, "--client-series", str(series)], stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().decode().split()[1].rstrip(",")
        try:
            began = time.perf_counter()
            while b"fedtide_rounds_total" not in get(address, "/metrics"):
                time.sleep(0.05)
            print(f"reading the ledger: {time.perf_counter() - began:.1f} s", file=sys.stderr)
            yield address
        finally:
            process.terminate()


@contextmanager
def committing(ledger: Ledger, clients: int) -> Iterator[None]:
    """Commit a round every two seconds."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(2.0):
            add_round(ledger, clients)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def get(address: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request("GET", path)
    content = connection.getresponse().read()
    connection.close()
    return content


def report(name: str, address: str, path: str, scrapes: int) -> None:
    """Measure one address, ten times a second."""
    times, size = [], 0
    for _ in range(scrapes):
        began = time.perf_counter()
        size = len(get(address, path))
        times.append(1000 * (time.perf_counter() - began))
        time.sleep(0.1)
    high = statistics.quantiles(times, n=20)[-1]
    cells = f"{statistics.median(times):.1f} | {high:.1f} | {max(times):.1f}"
    print(f"| {name} | {size:,} | {cells} |", flush=True)


@dataclass
class Watched:
    """The observations of one federation, round by round.

    Args:
        gone: the clients that `fedtide watch` has ever called gone, as a mask, shape (N,).
        since: for how many rounds those that left had been silent when they were called gone; ∞:
            they were not.
        audit: those that the audit calls gone after the last round, as a mask, (N,).
    """

    gone: np.ndarray
    since: list[float]
    audit: np.ndarray


def watch(process: Availability, size: int, rounds: int, seed: int, left: np.ndarray) -> Watched:
    """Follow a federation whose clients `left` are last there before the middle of its rounds."""
    stream = Schedule(process).start(Population(size), seed=seed)
    totals, half = ClientTotals.empty(size), rounds // 2
    called, seen = np.full(size, np.inf), []
    for t in range(rounds):
        there = stream.round(t).available
        there = there if t < half else np.setdiff1d(there, left)
        seen.append(there)
        totals.add(there, t, np.zeros(len(there)), there[:0])
        gone = find_states(totals, max(0, t - 99), t) == GONE
        if t < half:
            gone[left] = False  # they have not left yet
        called[gone] = np.minimum(called[gone], t)
    log = ParticipationLog.from_entries(
        pl.Series([str(n) for n in range(size)]),
        np.repeat(np.arange(rounds), [len(some) for some in seen]),
        np.concatenate(seen).astype(np.int32),
        (0, rounds),
    )
    audit = np.zeros(size, dtype=bool)
    audit[find_churn(log, estimate_rates(log, find_pattern(log))).gone] = True
    since = (called[left] - totals.last[left]).tolist()
    return Watched(np.isfinite(called), since, audit)


def count_gone(options: argparse.Namespace) -> None:
    """Print how often clients that return are called gone, and how soon those that left are."""
    size, rounds, logs = options.clients, options.rounds, options.logs
    leavers = np.arange(0, size, 10)
    print(f"{logs} federations of {size} clients, {rounds} rounds; in {logs} more, a tenth of the")
    print(f"clients leave before round {rounds // 2}\n")
    print(
        "| who is available | called gone wrongly | by the audit | found | after rounds | audit |"
    )
    print("|---|---|---|---|---|---|")
    for name, process in make_processes(size).items():
        stay = [watch(process, size, rounds, seed, leavers[:0]) for seed in range(logs)]
        left = [watch(process, size, rounds, seed, leavers) for seed in range(logs, 2 * logs)]
        wrong = np.array([one.gone.mean() for one in stay])
        error = wrong.std(ddof=1) / np.sqrt(logs)
        audit = np.mean([one.audit.mean() for one in stay])
        since = np.concatenate([one.since for one in left])
        found, by_audit = (
            np.isfinite(since).mean(),
            np.mean([o.audit[leavers].mean() for o in left]),
        )
        low, middle, high = np.quantile(since, [0.1, 0.5, 0.9], method="inverted_cdf")
        delays = f"{middle:.0f} ({low:.0f} to {high:.0f})".replace("inf", "never")
        print(
            f"| {name} | {100 * wrong.mean():.1f} ± {100 * error:.1f} % | {100 * audit:.1f} % "
            f"| {100 * found:.0f} % | {delays} | {100 * by_audit:.0f} % |",
            flush=True,
        )


def make_processes(size: int) -> dict[str, Availability]:
    """Return processes in which nobody leaves."""
    rates = np.clip(np.random.default_rng(0).gamma(1.0, 0.3, size), 0.02, 0.95).tolist()
    one_zone = np.zeros(size, dtype=np.int64)
    return {
        "always": Bernoulli(1.0),
        "independent rounds, rates 0.02 to 0.95": Bernoulli(rates),
        "independent rounds, rate 0.2": Bernoulli(0.2),
        "Markov chains, off to on at most 0.05, the same rates": Markov(rates),
        "sessions of 10 rounds, rate 0.2 (Weibull, shape 0.6)": Sessions(0.2, 10.0),
        "sessions of 60 rounds, rate 0.5 (Weibull, shape 0.6)": Sessions(0.5, 60.0),
        "sessions of 10 rounds, rate 0.2 (log-normal, σ = 1)": Sessions(
            0.2, 10.0, "log-normal", 1.0
        ),
        "cycles of 100 rounds, own phases, the same rates": Cyclic(rates, 100),
        "cycles of 100 rounds, own phases, nights of 80": Cyclic(0.2, 100),
        "day and night of 100 rounds, one zone": DayNight(0.8, 0.0, 100, 0.0),
        "day and night of 100 rounds, all zones": DayNight(0.8, 0.0, 100, 1.0),
        "nights of 70 of 100 rounds, all at once": GroupCycle(one_zone, [30, 70], on=0.8),
        "two groups, turns of 100 rounds": GroupCycle(2, 100, on=0.7),
        "three groups, turns of 30 rounds": GroupCycle(3, 30, on=0.8),
        "five groups, turns of 20 rounds": GroupCycle(5, 20, on=0.7, off=0.05),
        "five groups, turns of 20 rounds, nobody else": GroupCycle(5, 20),
    }


if __name__ == "__main__":
    main()
