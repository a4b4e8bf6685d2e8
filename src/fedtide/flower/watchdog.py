"""Runs one of Flower's programs, and ends it whole when a part of it has ended.

A SuperLink whose SuperExec has died starts no further run, and a SuperNode whose connection or
heartbeat has ended is offline for good. But their other threads live on, so that what restarts
programs (systemd, Docker, Kubernetes) restarts neither. `python -P -m fedtide.flower.watchdog
flower-superlink ...`, or `flower-supernode ...`, ends with status 1 when

- the program returns or raises, whatever threads of it still run,
- an exception ends one of its threads, such as the one that sends heartbeats,
- its SuperExec ends, which it starts as a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from importlib.metadata import entry_points
from typing import Any, NoReturn

_GRACE = 5.0  # seconds; a program that is told to end ends its SuperExec first


def main() -> None:
    """Run the program in this process's arguments."""
    del sys.argv[0]
    programs = entry_points(group="console_scripts", name=sys.argv[0]) if sys.argv else ()
    if not programs:
        sys.exit("usage: python -P -m fedtide.flower.watchdog PROGRAM [ARGUMENT ...]")
    threading.excepthook = _end_after_exception
    subprocess.Popen = _WatchedProcess  # type: ignore[assignment, misc]
    [program] = programs
    try:
        program.load()()
    except Exception:
        sys.excepthook(*sys.exc_info())
    _end("it has stopped")


class _WatchedProcess(subprocess.Popen[bytes]):
    """A process with which this one ends if it is the SuperExec."""

    def __init__(self, command: Any, *args: Any, **options: Any) -> None:
        super().__init__(command, *args, **options)
        if command[0] == "flower-superexec":
            threading.Thread(target=self._end_with_it, daemon=True).start()

    def _end_with_it(self) -> None:
        self.wait()
        time.sleep(_GRACE)
        _end("its SuperExec has ended")


def _end_after_exception(failure: threading.ExceptHookArgs) -> None:
    threading.__excepthook__(failure)
    _end("a thread of it has failed")


def _end(why: str) -> NoReturn:
    """End this process at once: threads that are no daemons would keep it."""
    print(f"{sys.argv[0]} ends, so that it is restarted: {why}", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    main()
