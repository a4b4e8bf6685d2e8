"""Runs side by side, each in one of a few processes of this machine."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

import torch

from fedtide.simulation.task_cache import clear_task_cache
from fedtide.sweep.job import TRIES, Job, OnFinished, Outcome, perform
from fedtide.sweep.sweep_progress import SweepProgress

_LEAVE_SECONDS = 5.0
_TELL_SECONDS = 0.2  # between two reports of a worker, and between two looks at whether to stop


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def run_here(
    jobs: Sequence[Job], board: SweepProgress, over: OnFinished, stopped: Callable[[], bool]
) -> None:
    """Run the jobs one after another in this process; the tasks of one are kept for the next."""
    for job in jobs:
        if stopped():
            return
        board.begun(job.path)
        over(job, perform(job, partial(board.moved, job.path)))


def run_in_processes(
    jobs: Sequence[Job],
    workers: int,
    board: SweepProgress,
    over: OnFinished,
    stopped: Callable[[], bool],
) -> None:
    """Run the jobs in so many processes that share the cores.

    A run whose process is lost (killed for its memory, say) goes on in a new one, `TRIES` times in
    all. When `stopped` says so, no job begins any more, and those under way are saved and ended.
    """
    clear_task_cache()  # the workers prepare their own
    crew = _Crew(max(1, cores() // workers), board, over)
    try:
        crew.run(deque(jobs), workers, stopped)
    finally:
        crew.dismiss()


class _Worker:
    """A process that runs one job at a time.

    Attributes:
        job: what it runs; None: nothing.
    """

    def __init__(self, threads: int) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=_work, args=(theirs, threads), daemon=True
        )
        self.process.start()
        theirs.close()
        self.job: Job | None = None

    def give(self, job: Job) -> None:
        self.job = job
        self.pipe.send(job)

    def leave(self) -> None:
        """Ask it to end, if it has not done so already."""
        with suppress(OSError):
            self.pipe.send(None)


class _Crew:
    """The workers and what they are at."""

    def __init__(self, threads: int, board: SweepProgress, over: OnFinished) -> None:
        self._threads, self._board, self._over = threads, board, over
        self._workers: list[_Worker] = []

    def run(self, waiting: deque[Job], size: int, stopped: Callable[[], bool]) -> None:
        """Run all jobs that wait."""
        while True:
            stop = stopped()
            busy = [worker for worker in self._workers if worker.job is not None]
            if stop:
                for worker in busy:  # one that is only preparing hears it later
                    worker.process.terminate()
            else:
                self._employ(waiting, size - len(busy))
                busy = [worker for worker in self._workers if worker.job is not None]
            if not busy:
                return
            self._hear(busy, waiting)

    def dismiss(self) -> None:
        """End all workers, those that are idle in good order."""
        for worker in self._workers:
            if worker.job is not None:
                worker.process.kill()
            else:
                worker.leave()
        for worker in self._workers:
            worker.process.join(_LEAVE_SECONDS)
            worker.process.kill()
            worker.process.join()

    def _employ(self, waiting: deque[Job], places: int) -> None:
        for _ in range(min(places, len(waiting))):
            idle = [worker for worker in self._workers if worker.job is None]
            if not idle:
                idle = [_Worker(self._threads)]
                self._workers += idle
            job = waiting.popleft()
            idle[0].give(job)
            self._board.begun(job.path)

    def _hear(self, busy: list[_Worker], waiting: deque[Job]) -> None:
        by_pipe = {worker.pipe: worker for worker in busy}
        for pipe in connection.wait(list(by_pipe), timeout=_TELL_SECONDS):
            worker = by_pipe[pipe]  # type: ignore[index]
            job = worker.job
            assert job is not None
            try:
                said = worker.pipe.recv()
            except (EOFError, OSError):
                self._lost(worker, job, waiting)
                continue
            if isinstance(said, Outcome):
                worker.job = None
                self._over(job, said)
            else:
                self._board.moved(job.path, *said)

    def _lost(self, worker: _Worker, job: Job, waiting: deque[Job]) -> None:
        worker.process.join()
        self._workers.remove(worker)
        job = after_a_loss(job)
        if job.lost < TRIES:
            waiting.appendleft(job)
        else:
            self._over(job, lost(job, f"exit code {worker.process.exitcode}"))


def after_a_loss(job: Job) -> Job:
    """Return the job as it is tried once more, unless it has been lost `TRIES` times."""
    return replace(job, resume=True, lost=job.lost + 1)


def lost(job: Job, how: str) -> Outcome:
    """Return the outcome of a job that has lost its process too often."""
    sentence = (
        f"workers: {job.path} lost its process {job.lost} times ({how}); is there too little "
    )
    return Outcome("failed", sentence + "memory? give fewer workers")


def _work(pipe: Connection, threads: int) -> None:
    """Run what comes through the pipe, until nothing can come any more."""
    torch.set_num_threads(threads)
    for number in (signal.SIGINT, signal.SIGTERM):  # the loop of a run listens to the parent
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while (job := pipe.recv()) is not None:
        pipe.send(perform(job, _Teller(pipe).tell))


class _Teller:
    """Tells the parent now and then how far the run is."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._last = 0.0

    def tell(self, ended: int, loss: float | None) -> None:
        now = time.monotonic()
        if now - self._last > _TELL_SECONDS:
            self._last = now
            self._pipe.send((ended, loss))


def _end_with_parent() -> None:
    """End this process once its parent is gone; whatever it was running can be resumed."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
