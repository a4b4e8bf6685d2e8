"""A Flower federation of real processes on this machine (Linux), which end with its context.

What waits, waits for a condition with a deadline; nothing sleeps for a fixed time.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from fedtide.errors import InvalidInputError
from fedtide.flower.demo import FAST_POLLING, free_port, listens
from fedtide.flower.ledger.ledger import read_rounds
from fedtide.simulation.checkpoint import load_newest

HOST, DEADLINE, STOP_TIMEOUT = "127.0.0.1", 600.0, 15.0  # seconds
APP = Path(__file__).parent / "app"
PROGRAMS = Path(sys.executable).parent
_MARK = "FEDTIDE_LOCAL_FEDERATION"
_spec = importlib.util.spec_from_file_location("script", APP / "script.py")
script = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(script)


class LocalFederation:
    """The processes of a federation on the loopback device; leaving the context ends them all.

    Every process has its own session and a mark in its environment, by which the processes that
    Flower starts in turn are found.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder.resolve(), free_port()
        self.address = f"{HOST}:{self.port}"
        self.started: list[subprocess.Popen[bytes]] = []
        (self.folder / "home").mkdir(parents=True)
        (self.folder / "home" / "config.toml").write_text(
            f'[superlink.here]\naddress = "{self.address}"\ninsecure = true\n'
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self.started:
            process.terminate()  # nginx, too, whose title replaces its environment
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline, signalled = time.monotonic() + STOP_TIMEOUT, set[int]()
            while (running := set(self.processes())) and time.monotonic() < deadline:
                for process in running - signalled:
                    with suppress(ProcessLookupError):
                        os.kill(process, number)
                signalled |= running
                time.sleep(0.1)

    def processes(self, program: str = "") -> list[int]:
        """Return the ids of this federation's processes whose command contains `program`."""
        for started in self.started:
            started.poll()  # removes ended processes from the system's list
        commands = find_processes(f"{_MARK}={self.folder}")
        return [process for process, command in commands.items() if program in command]

    def start_superlink(self) -> subprocess.Popen[bytes]:
        """Start the SuperLink, whose state is in a file, and wait until it listens."""
        options = ["--insecure", "--host", HOST, "--port", str(self.port), "--database"]
        options += [str(self.folder / "superlink.db"), "--disable-runtime-dependency-installation"]
        superlink = self.start("superlink", "flower-superlink", *options)
        wait_until(lambda: listens(self.port), "SuperLink")
        return superlink

    def start_node(self, name: str, client: int) -> subprocess.Popen[bytes]:
        """Start the SuperNode of a client."""
        options = ["--insecure", "--superlink", self.address, "--host", HOST]
        options += ["--port", str(free_port()), "--node-config", f'name="{name}" client={client}']
        return self.start(name, "flower-supernode", *options)

    def submit(self, **config: Any) -> subprocess.Popen[bytes]:
        """Submit the app with this config (_ in place of -); its log is the process's output."""
        pairs = {name.replace("_", "-"): value for name, value in config.items()}
        text = " ".join(
            f"{name}='{value}'" if isinstance(value, str | Path) else f"{name}={value}"
            for name, value in pairs.items()
        )
        words = [str(PROGRAMS / "flwr"), "run", str(APP), "here", "--stream", "--run-config", text]
        return self._start(words, subprocess.PIPE)

    def start(self, name: str, program: str, *options: str) -> subprocess.Popen[bytes]:
        """Start a program, which is installed next to Python, with a log of this name."""
        with (self.folder / f"{name}.log").open("ab") as log:
            return self._start([str(PROGRAMS / program), *options], log)

    def _start(self, words: list[str], out: Any) -> subprocess.Popen[bytes]:
        options = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(words, env=self.environment(), start_new_session=True, **options)
        self.started.append(process)
        return process

    def environment(self) -> dict[str, str]:
        """Return the environment in which Flower finds its programs and stays in this folder."""
        own = {
            "PATH": f"{PROGRAMS}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            _MARK: str(self.folder),
        }
        return os.environ | FAST_POLLING | own


def find_processes(mark: str) -> dict[int, str]:
    """Return the commands of the processes with `mark`, NAME=VALUE, in their environment, by id.

    Their descendants are included, as Flower hides the environment of some.
    """
    commands, parents, found = {}, {}, set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            process = int(entry.name)
            status, parent = (
                (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            )
            if status != "Z":
                command = (entry / "cmdline").read_text(errors="replace")
                commands[process], parents[process] = command.replace("\0", " "), int(parent)
                if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(process)
    while more := {n for n, parent in parents.items() if parent in found} - found:
        found |= more
    return {process: commands[process] for process in found}


def wait_until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(0.2)


class Row(NamedTuple):
    """What one client did in one round; `asked`: the round of the message that it answered."""

    round: int
    client: str
    stage: str
    asked: int


def rows(path: Path) -> list[Row]:
    """Return the rows of a ledger."""
    with sqlite3.connect(path) as connection:
        query = "SELECT round, client, stage, coalesce(asked, round) FROM participation"
        return sorted(Row(*row) for row in connection.execute(query))


def count_rounds(path: Path) -> int:
    """Return how many rounds a ledger has; 0 before it is written."""
    try:
        return len(read_rounds(f"sqlite:///{path}"))
    except InvalidInputError:  # its tables are being created
        return 0


def model_of(folder: Path, method: str) -> np.ndarray:
    """Return the model after the newest round."""
    return load_newest(folder / f"state-{method}").tensors["state.model"].numpy()
