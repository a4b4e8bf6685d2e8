"""Refuses to compute in a forked process in which Polars would wait forever.

A fork has none of its parent's threads. If the parent has used Polars, which keeps a pool of
threads, the first computation of Polars in the fork never ends.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from fedtide.errors import InvalidInputError

_THREADS = Path("/proc/self/task")  # on Linux, the only system on which programs usually fork
_POOL = re.compile(r"polars-\d+\n")


class _Fork:
    """What is known about this process.

    Attributes:
        lacks_threads: whether it is a fork of a process that had used Polars.
        is_pool_running: whether Polars had been used when the process was last forked.
    """

    lacks_threads = False
    is_pool_running = False

    def before(self) -> None:
        """Note whether Polars has threads, which only the parent can see."""
        self.is_pool_running = False
        with suppress(OSError):  # no such folder, or a thread that ends
            names = (file.read_text() for file in _THREADS.glob("*/comm"))
            self.is_pool_running = any(map(_POOL.fullmatch, names))

    def after_in_child(self) -> None:
        """Note that the threads are missing."""
        self.lacks_threads = self.lacks_threads or self.is_pool_running


_fork = _Fork()


def watch_forks() -> None:
    """From now on, note in every fork of this process whether it lacks threads of Polars."""
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(before=_fork.before, after_in_child=_fork.after_in_child)


def refuse_fork_without_threads() -> None:
    """Check that Polars can be used in this process.

    Raises:
        InvalidInputError: it was forked after its parent had used Polars.
    """
    if _fork.lacks_threads:
        raise InvalidInputError(
            "process: it was forked after fedtide or Polars had been used, and would wait forever "
            "for threads that a fork does not have; use the start method spawn, as "
            'multiprocessing.get_context("spawn"), or fedtide.sweep.run_sweep(..., workers=...)'
        )
