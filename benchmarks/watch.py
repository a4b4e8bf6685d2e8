"""How long `fedtide watch` takes to answer, and how often it calls a client gone wrongly.

    python benchmarks/watch.py speed [--clients 10000] [--rounds 100] [--scrapes 300]
    python benchmarks/watch.py gone [--clients 100] [--rounds 1000]

`speed` writes a ledger in which half of the clients are available and a tenth is used in a round,
starts `fedtide watch` on it, and prints the milliseconds that the metrics and the page take, from
connecting to the last byte. A new round is committed every two seconds meanwhile, so that the
figures contain what following the ledger costs. The metrics are measured without and with series of
single clients. `gone` draws who is available from processes in which nobody leaves, and prints the
share of the clients that are ever called gone, and of the rounds in which a client is.
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
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from fedtide.monitoring.ledger_window import ClientTotals
from fedtide.monitoring.status import GONE, find_states
from fedtide.participation import Bernoulli, Cyclic, GroupCycle, Markov, Schedule
from fedtide.participation.log.ledger import Entry, Ledger
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


def count_gone(options: argparse.Namespace) -> None:
    """Print how often clients that come again are called gone."""
    size = options.clients
    rates = np.clip(np.random.default_rng(0).gamma(1.0, 0.3, size), 0.02, 0.95).tolist()
    processes = {
        "independent rounds": Bernoulli(rates),
        "sessions (Markov, off to on at most 0.05)": Markov(rates),
        "a cycle of 100 rounds": Cyclic(rates, 100),
        "five groups that take turns of 20 rounds": GroupCycle(5, 20, on=0.7, off=0.05),
    }
    print("| who is available | clients ever called gone | rounds in which a client is |")
    print("|---|---|---|")
    for name, process in processes.items():
        stream = Schedule(process).start(Population(size), seed=0)
        totals, ever, rounds = ClientTotals.empty(size), np.zeros(size, dtype=bool), 0
        for t in range(options.rounds):
            there = stream.round(t).available
            totals.add(there, t, np.zeros(len(there)), there[:0])
            gone = find_states(totals, 0, t) == GONE
            ever, rounds = ever | gone, rounds + int(gone.sum())
        print(f"| {name} | {ever.mean():.0%} | {rounds / options.rounds / size:.2%} |")


if __name__ == "__main__":
    main()
