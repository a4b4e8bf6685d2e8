"""A temporary PostgreSQL server for tests, on the loopback device."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

POSTGRES = pytest.param("postgresql", marks=pytest.mark.process)
"""Parametrises tests that run on SQLite, too."""

HOST, USER = "127.0.0.1", "fedtide"
DEADLINE = 60.0
_OPTIONS = ["-c", "fsync=off", "-c", "unix_socket_directories=", "-c", f"listen_addresses={HOST}"]


def find_programs() -> Path | None:
    """Return the folder of the newest PostgreSQL programs; None: not installed."""
    initdb = shutil.which("initdb")
    if initdb is not None:
        return Path(initdb).resolve().parent
    versions = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return max((path.parent for path in versions), key=lambda p: int(p.parent.name), default=None)


class Server:
    """A running server.

    Args:
        programs: the folder with initdb and postgres.
        folder: for its files, writable by `user`.
        user: the user that runs it, not root; None: the current user.
    """

    def __init__(self, programs: Path, folder: Path, user: str | None) -> None:
        self._programs, self._user = programs, user
        self._folder, self._databases = folder, count(1)
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self.port = probe.getsockname()[1]
        options = f"--auth=trust --encoding=UTF8 --no-sync --username={USER} --pgdata=data"
        command = [programs / "initdb", *options.split()]
        subprocess.run(command, check=True, user=user, cwd=folder, capture_output=True)
        self.start()

    def start(self) -> None:
        command = [self._programs / "postgres", "-D", self._folder / "data", "-p", str(self.port)]
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *_OPTIONS], user=self._user, cwd=self._folder, stdout=log, stderr=log
            )
        deadline = time.monotonic() + DEADLINE
        while subprocess.run(self._psql("SELECT 1"), capture_output=True, check=False).returncode:
            assert self.process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def stop(self, number: int) -> None:
        """Send a signal (SIGINT: orderly shutdown, SIGQUIT: crash) and wait for the end."""
        self.process.send_signal(number)
        self.process.wait(timeout=DEADLINE)

    def database(self) -> str:
        """Return the URL of a new database."""
        name = f"ledger_{next(self._databases)}"
        self.run(f"CREATE DATABASE {name}")
        return f"postgresql+psycopg://{USER}@{HOST}:{self.port}/{name}"

    def run(self, statement: str, database: str = "postgres") -> str:
        done = subprocess.run(
            self._psql(statement, database), capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def _psql(self, statement: str, database: str = "postgres") -> list[str]:
        options = ["-h", HOST, "-p", str(self.port), "-U", USER, "-d", database]
        return [str(self._programs / "psql"), *options, "-qAt", "-c", statement]


@contextmanager
def run_server(programs: Path) -> Iterator[Server]:
    """Run a server until the context is left."""
    user = "nobody" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="fedtide-postgres-"))
    if user is not None:
        shutil.chown(folder, user)
    running = None
    try:
        running = Server(programs, folder, user)
        yield running
    finally:
        if running is not None and running.process.poll() is None:
            running.stop(signal.SIGINT)
        shutil.rmtree(folder, ignore_errors=True)
