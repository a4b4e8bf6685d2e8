"""Shared by the tests with Flower's own processes: their app, waiting, ledgers, models.

Everything waits for a condition, with a deadline; nothing sleeps for a fixed time.
"""

import importlib.util
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from fedtide.errors import InvalidInputError
from fedtide.flower.ledger.ledger import read_rounds
from fedtide.simulation.checkpoint import Checkpoint, load_newest

DEADLINE = 600.0
APP = Path(__file__).parent / "app"


def _load_app_module(name: str) -> ModuleType:
    """Return a module of the app, which is not part of this package."""
    spec = importlib.util.spec_from_file_location(name, APP / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script, METHODS = _load_app_module("script"), _load_app_module("methods").METHODS


class Row(NamedTuple):
    """What one client did in one round; `asked`: the round of the message that it answered."""

    round: int
    client: str
    stage: str
    asked: int


def time_startup() -> float:
    """Return the seconds that a client process takes to start now; a busy machine needs more."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import flwr.supernode.cli"], check=False)
    return time.monotonic() - began


def wait_until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(0.2)


def is_running(process: int) -> bool:
    """Return whether a process exists and has not ended (a zombie has)."""
    command = ["ps", "-o", "stat=", "-p", str(process)]
    status = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return status.strip()[:1] not in ("", "Z")


def collect_log(run: subprocess.Popen) -> list[str]:
    """Return a list that grows by each line that a run logs."""
    lines: list[str] = []

    def listen() -> None:
        lines.extend(line.decode(errors="replace") for line in run.stdout)

    threading.Thread(target=listen, daemon=True).start()
    return lines


def count_rounds(path: Path) -> int:
    """Return how many rounds a ledger has."""
    try:
        return len(read_rounds(f"sqlite:///{path}"))
    except InvalidInputError:  # not written yet
        return 0


def rows(path: Path, client: str = "", stages: str = "") -> list[Row]:
    """Return the rows of a ledger, optionally of one client or of some stages only."""
    with sqlite3.connect(path) as connection:
        query = "SELECT round, client, stage, coalesce(asked, round) FROM participation"
        found = [Row(*row) for row in connection.execute(query)]
    return [
        row
        for row in sorted(found)
        if client in ("", row.client) and row.stage in (stages or row.stage).split()
    ]


def replay(method: str, path: Path, sites: list[str], rounds: int) -> np.ndarray:
    """Return the model of "fedavg" or "mifa", written out, for the updates used in a ledger."""
    used = rows(path, stages="used")
    history, memory = [np.zeros(3)], np.zeros((len(sites), 3))
    for t in range(rounds):
        step, now = np.zeros(3), [row for row in used if row.round == t]
        for row in now:
            client = sites.index(row.client)
            memory[client] = script.update_of(client, history[row.asked])
            step = step + memory[client] / len(now)
        history.append(history[-1] + (step if method == "fedavg" else memory.mean(axis=0)))
    return history[-1]


def load_state(folder: Path, method: str) -> Checkpoint:
    """Return the state after the newest round."""
    return load_newest(folder / f"state-{method}")
