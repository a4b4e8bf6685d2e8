"""Finds the processes of a local federation, and kills them when their owner has ended.

It also runs as a program, with only Python's standard library: `process_guard.py NAME=VALUE` waits
until its standard input is closed, which the system does however the owner ends, and kills every
process with this mark in its environment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_PATIENCE = 30.0  # seconds after which processes that cannot be killed are left alone


def start_guard(mark: str) -> subprocess.Popen[bytes]:
    """Start a guard of the processes with `mark`; they are killed once its `stdin` is closed.

    It has its own session, so that whatever ends this process and its terminal does not reach it.
    """
    return subprocess.Popen(
        [sys.executable, "-IS", __file__, mark], stdin=subprocess.PIPE, start_new_session=True
    )


def find_processes(mark: str) -> dict[int, str]:
    """Return the commands of the processes with `mark`, NAME=VALUE, in their environment, by id.

    Their descendants are included, as Flower hides the environment of some. Processes of other
    users are not found. On Linux they are read from /proc, on macOS from `ps`.
    """
    if not Path("/proc/self/environ").exists():
        return _find_with_ps(mark)
    commands, parents, found = {}, {}, set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            process, state = int(entry.name), (entry / "stat").read_text(errors="replace")
            name, _, rest = state.partition("(")[2].rpartition(")")
            status, parent = rest.split()[:2]
            if status == "Z":
                continue
            command = (entry / "cmdline").read_text(errors="replace").replace("\0", " ")
            commands[process] = f"{name} {command}"  # a fork has a name of its own
            parents[process] = int(parent)
            with suppress(PermissionError):  # another user's, or hidden
                if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(process)
    return {process: commands[process] for process in _with_descendants(found, parents)}


def _find_with_ps(mark: str) -> dict[int, str]:
    commands = _list_with_ps("-axww", "command=")
    with_environment = _list_with_ps("-axEww" if sys.platform == "darwin" else "axeww", "command=")
    parents = {process: int(n) for process, n in _list_with_ps("-axww", "ppid=").items()}
    found = {n for n, text in with_environment.items() if f" {mark} " in f"{text} "}
    return {n: commands[n] for n in _with_descendants(found, parents) if n in commands}


def _list_with_ps(options: str, column: str) -> dict[int, str]:
    """Return what `ps` prints for each process, by id; nothing without `ps`."""
    listing = ["ps", options, "-o", f"pid=,{column}"]
    try:
        # any process may have bytes in its environment that are not text
        said = subprocess.run(listing, capture_output=True, text=True, errors="replace", check=True)
    except (OSError, subprocess.CalledProcessError):
        return {}
    fields = (line.strip().partition(" ") for line in said.stdout.split("\n"))
    return {int(number): text.strip() for number, _, text in fields if number.isdecimal()}


def _with_descendants(found: set[int], parents: dict[int, int]) -> set[int]:
    """Return these processes and all that descend from them."""
    while more := {n for n, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _kill_all(mark: str) -> None:
    """Kill all processes with the mark, and those that they start in the meantime."""
    deadline = time.monotonic() + _PATIENCE
    while (running := find_processes(mark)) and time.monotonic() < deadline:
        for process in running:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.1)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    _kill_all(sys.argv[1])
