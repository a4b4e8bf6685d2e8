"""An audit of a long SQLite ledger while the federation is writing it.

    python benchmarks/ledger.py [--rows 3000000] [--cohort 300] [--clients 2000] [--pause 0.05]

Writes a ledger, starts a process that commits a round every `pause` seconds, and runs `fedtide
audit` on the ledger in the meantime. Prints JSON: how long the audit took and its peak memory; how
long the commits took before and during it, in milliseconds; and the rounds that the audit saw,
beside those in the ledger when it began and when it ended.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import select
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from fedtide.flower.ledger.ledger import Entry, Ledger

START = 1_700_000_000.0
COMMAND_LINE = "from fedtide.cli.entry import main; main()"
WARM_UP = 20
"""Commits before the audit begins."""


def write_rounds(path: Path, rounds: int, cohort: int, clients: int) -> None:
    """Write rounds of which each has `cohort` clients; every fourth of them does not reply."""
    Ledger(f"sqlite:///{path}").close()  # creates the tables
    draws = random.Random(0)
    with closing(sqlite3.connect(path)) as connection, connection:
        insert_round = "INSERT INTO rounds VALUES ('default', ?, ?)"
        insert_rows = "INSERT INTO participation VALUES ('default', ?, ?, ?, ?, ?, ?, ?)"
        for t in range(rounds):
            connection.execute(insert_round, (t, START + t))
            rows = [(t, *vars(entry).values()) for entry in draw_entries(draws, cohort, clients)]
            connection.executemany(insert_rows, rows)


def draw_entries(draws: random.Random, cohort: int, clients: int) -> list[Entry]:
    """Return a round in which three of four clients are used."""
    chosen = [f"site-{n:06}" for n in sorted(draws.sample(range(clients), cohort))]
    used = cohort - len(range(0, cohort, 4))
    return [
        Entry(name, "used", 1 / used) if i % 4 else Entry(name, "selected", reason="no reply")
        for i, name in enumerate(chosen)
    ]


def commit_rounds(path: Path, cohort: int, clients: int, pause: float) -> None:
    """Commit a round every `pause` seconds until stdin ends; print how long each commit took."""
    ledger, draws = Ledger(f"sqlite:///{path}"), random.Random(1)
    while not select.select([sys.stdin], [], [], pause)[0]:
        entries = draw_entries(draws, cohort, clients)
        began = time.perf_counter()
        ledger.commit(ledger.ended, entries, START)
        print(1000 * (time.perf_counter() - began), flush=True)


def count_rounds(path: Path) -> int:
    """Return the number of rounds in the ledger."""
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM rounds").fetchone()[0])


def measure(rows: int, cohort: int, clients: int, pause: float) -> dict[str, Any]:
    """Return the measurements that the module's docstring lists."""
    with tempfile.TemporaryDirectory(prefix="fedtide-") as folder:
        path, document = Path(folder) / "ledger.db", Path(folder) / "audit.json"
        write_rounds(path, rows // cohort, cohort, clients)
        arguments = [str(path), str(cohort), str(clients), str(pause)]
        command = [sys.executable, __file__, "--write", *arguments]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdin is not None
            assert writer.stdout is not None
            before = [float(writer.stdout.readline()) for _ in range(WARM_UP)]
            first, began = count_rounds(path), time.perf_counter()
            url, options = f"sqlite:///{path}", ["--json", str(document)]
            command = [sys.executable, "-c", COMMAND_LINE, "audit", url, *options]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds, last = time.perf_counter() - began, count_rounds(path)
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
            journal = Path(f"{path}-wal").stat().st_size
            writer.stdin.close()
            during = [float(line) for line in writer.stdout]
        audit = json.loads(document.read_text())
    return {
        "rows": rows,
        "audit_seconds": round(seconds, 1),
        "audit_peak_mib": peak // 1024,
        "write_ahead_log_mib": journal // 2**20,
        "commits_before": describe(before),
        "commits_during": describe(during),
        "writer_status": writer.returncode,
        "rounds_at_start": first,
        "rounds_at_end": last,
        "rounds_of_audit": audit["rounds"],
        "empty_rounds_of_audit": audit["coverage"]["empty_rounds"],
        "cohorts_of_audit": audit["coverage"]["cohort"],
    }


def describe(milliseconds: list[float]) -> dict[str, float]:
    """Return the number of commits, and the median and longest duration."""
    return {
        "count": len(milliseconds),
        "median": round(statistics.median(milliseconds), 1),
        "longest": round(max(milliseconds), 1),
    }


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["--write"]:
        path, cohort, clients, pause = sys.argv[2:]
        commit_rounds(Path(path), int(cohort), int(clients), float(pause))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--cohort", type=int, default=300)
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--pause", type=float, default=0.05)
    given = parser.parse_args()
    print(json.dumps(measure(given.rows, given.cohort, given.clients, given.pause), indent=1))


if __name__ == "__main__":
    main()
