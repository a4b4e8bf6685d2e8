"""Running a function on several threads, each on one core."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event
from typing import TypeVar

import torch

Item = TypeVar("Item")
Job = Callable[[], None]


class CoreThreads:
    """Threads whose tensor operations use one core each; they live as long as this object.

    Small operations gain little from several cores, and lose much if these are busy, because the
    cores wait for one another after each operation.

    Args:
        count: the number of threads; with one, the calling thread does everything.

    >>> from functools import partial
    >>> found = []
    >>> CoreThreads(2).map(lambda item: partial(found.append, item), [1, 2])
    >>> sorted(found)
    [1, 2]
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def map(self, prepare: Callable[[Item], Job], items: Sequence[Item]) -> None:
        """Prepare a job for each item and run all; an error is raised, and no further job begins.

        The calling thread prepares the jobs in order while the others run those that are ready;
        then it runs jobs, too. Preparing is Python code, which only one thread can run at a time:
        if each thread prepared its own jobs, they would wait for one another at every operation.
        """
        if len(items) == 1:  # common with few small models, for which queues are slow
            with single_threaded():
                prepare(items[0])()
            return
        ready: SimpleQueue[Job | None] = SimpleQueue()
        failed = Event()

        def work() -> None:
            try:
                for job in iter(ready.get, None):
                    if not failed.is_set():
                        job()
            except BaseException:
                failed.set()
                raise
            finally:
                ready.put(None)  # ends the next thread

        threads = min(self.count, len(items))
        calls: list[Future[None]] = []
        with single_threaded():
            try:
                for prepared, item in enumerate(items, start=1):
                    if failed.is_set():
                        break
                    ready.put(prepare(item))
                    if prepared == threads:  # one for each
                        calls = [self._threads().submit(work) for _ in range(threads - 1)]
            except BaseException:
                failed.set()
                raise
            finally:
                ready.put(None)
                try:
                    work()
                finally:
                    begun = [call for call in calls if not call.cancel()]
                    errors = [call.exception() for call in begun]
        for error in filter(None, errors):
            raise error

    def _threads(self) -> ThreadPoolExecutor:
        """Return the pool; a forked process does not inherit its parent's threads."""
        if self._pool is None or self._process != os.getpid():
            self._process = os.getpid()
            self._pool = ThreadPoolExecutor(
                self.count - 1, initializer=torch.set_num_threads, initargs=(1,)
            )
        return self._pool


@contextmanager
def single_threaded() -> Iterator[None]:
    """Limit tensor operations to one core within the context."""
    with restored_threads():
        torch.set_num_threads(1)
        yield


@contextmanager
def restored_threads() -> Iterator[None]:
    """Undo changes of the number of cores for tensor operations at the end of the context."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
