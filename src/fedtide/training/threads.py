"""Running a function on several threads, each on one core."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")


class CoreThreads:
    """Threads whose tensor operations use one core each; they live as long as this object.

    Small operations gain little from more cores, and lose much on busy ones, because cores wait
    for one another after each operation.

    Args:
        count: how many; with one, the calling thread does everything.

    >>> found = []
    >>> CoreThreads(2).map(found.append, [1, 2])
    >>> sorted(found)
    [1, 2]
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def map(self, do: Callable[[Item], None], items: Sequence[Item]) -> None:
        """Call `do` with each item; after an error, which is raised, no further call begins.

        The calling thread takes items like the others: to wake a thread may take as long as a call.
        """
        rest = iter(items)

        def work() -> None:
            try:
                for item in rest:  # each item goes to one thread
                    do(item)
            except BaseException:
                for _ in rest:
                    pass
                raise

        with single_threaded():
            others = min(self.count, len(items)) - 1
            calls = [self._threads().submit(work) for _ in range(others)]
            try:
                work()
            finally:
                wait([call for call in calls if not call.cancel()])
        for call in calls:
            if not call.cancelled():
                call.result()

    def _threads(self) -> ThreadPoolExecutor:
        """Return the pool; a forked process has none of its parent's threads."""
        if self._pool is None or self._process != os.getpid():
            self._process = os.getpid()
            self._pool = ThreadPoolExecutor(
                self.count - 1, initializer=torch.set_num_threads, initargs=(1,)
            )
        return self._pool


@contextmanager
def single_threaded() -> Iterator[None]:
    """Limit tensor operations to one core within the context."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
