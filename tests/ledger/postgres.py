"""A temporary PostgreSQL server for tests, on the loopback device."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from fedtide.flower.demo import free_port

POSTGRES = pytest.param("postgresql", marks=pytest.mark.process)
"""Parametrises tests that run on SQLite, too."""

HOST, USER = "127.0.0.1", "fedtide"
DEADLINE = 60.0


def find_programs() -> Path | None:
    """Return the folder of the newest PostgreSQL programs; None: not installed."""
    initdb = shutil.which("initdb")
    if initdb is not None:
        return Path(initdb).resolve().parent
    versions = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return max((path.parent for path in versions), key=lambda p: int(p.parent.name), default=None)


@contextmanager
def run_server(programs: Path) -> Iterator[Callable[[], str]]:
    """Run a server until the context is left; yields what makes a database and returns its URL.

    Args:
        programs: the folder with initdb, postgres and psql.
    """
    user = "nobody" if os.geteuid() == 0 else None
    folder, port, numbers = Path(tempfile.mkdtemp(prefix="fedtide-")), str(free_port()), count(1)
    if user is not None:
        shutil.chown(folder, user)
    options = {"user": user, "cwd": folder, "stdout": subprocess.DEVNULL, "stderr": None}
    setup = f"--auth=trust --encoding=UTF8 --no-sync --username={USER} --pgdata=data".split()
    subprocess.run([programs / "initdb", *setup], check=True, **options)
    settings = ["fsync=off", "unix_socket_directories=", f"listen_addresses={HOST}"]
    words = ["-D", "data", "-p", port, *(word for one in settings for word in ("-c", one))]
    process = subprocess.Popen([programs / "postgres", *words], **options)

    def query(statement: str) -> int:
        words = ["-h", HOST, "-p", port, "-U", USER, "-d", "postgres", "-qAt", "-c", statement]
        return subprocess.run([programs / "psql", *words], check=False, **options).returncode

    def create() -> str:
        name = f"ledger_{next(numbers)}"
        assert query(f"CREATE DATABASE {name}") == 0
        return f"postgresql+psycopg://{USER}@{HOST}:{port}/{name}"

    try:
        deadline = time.monotonic() + DEADLINE
        while query("SELECT 1"):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield create
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=DEADLINE)
        shutil.rmtree(folder, ignore_errors=True)
