"""Runs side by side, each in one of a few processes of this machine."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

import torch

from fedtide.simulation.tasks import forget_prepared
from fedtide.sweep.board import Board
from fedtide.sweep.job import TRIES, Job, Outcome, Over
from fedtide.sweep.stacks import Stack, perform_all

_LEAVE_SECONDS = 5.0
_TELL_SECONDS = 0.2  # between two reports of a worker, and between two looks at whether to stop


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def run_here(
    stacks: Sequence[Stack], board: Board, over: Over, stopped: Callable[[], bool]
) -> None:
    """Run the stacks one after another in this process; the tasks of one are kept for the next."""
    for stack in stacks:
        if stopped():
            return
        for job in stack:
            board.begun(job.path)
        perform_all(stack, board.moved, over, stopped)


def run_in_processes(
    stacks: Sequence[Stack], workers: int, board: Board, over: Over, stopped: Callable[[], bool]
) -> None:
    """Run the stacks in so many processes that share the cores.

    A run whose process is lost (killed for its memory, say) goes on in a new one, `TRIES` times in
    all. When `stopped` says so, no job begins any more, and those under way are saved and ended.
    """
    forget_prepared()  # the workers prepare their own
    crew = _Crew(max(1, cores() // workers), board, over)
    try:
        crew.run(deque(stacks), workers, stopped)
    finally:
        crew.dismiss()


class _Worker:
    """A process that runs one stack at a time.

    Attributes:
        jobs: those of its stack that have not ended, by their paths.
    """

    def __init__(self, threads: int) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=_work, args=(theirs, threads), daemon=True
        )
        self.process.start()
        theirs.close()
        self.jobs: dict[str, Job] = {}

    def give(self, stack: Stack) -> None:
        self.jobs = {job.path: job for job in stack}
        self.pipe.send(stack)

    def leave(self) -> None:
        """Ask it to end, if it has not done so already."""
        with suppress(OSError):
            self.pipe.send(())


class _Crew:
    """The workers and what they are at."""

    def __init__(self, threads: int, board: Board, over: Over) -> None:
        self._threads, self._board, self._over = threads, board, over
        self._workers: list[_Worker] = []

    def run(self, waiting: deque[Stack], size: int, stopped: Callable[[], bool]) -> None:
        """Run all stacks that wait."""
        while True:
            stop = stopped()
            busy = [worker for worker in self._workers if worker.jobs]
            if stop:
                for worker in busy:  # one that is only preparing hears it later
                    worker.process.terminate()
            else:
                self._employ(waiting, size - len(busy))
                busy = [worker for worker in self._workers if worker.jobs]
            if not busy:
                return
            self._hear(busy, waiting)

    def dismiss(self) -> None:
        """End all workers, those that are idle in good order."""
        for worker in self._workers:
            if worker.jobs:
                worker.process.kill()
            else:
                worker.leave()
        for worker in self._workers:
            worker.process.join(_LEAVE_SECONDS)
            worker.process.kill()
            worker.process.join()

    def _employ(self, waiting: deque[Stack], places: int) -> None:
        for _ in range(min(places, len(waiting))):
            idle = [worker for worker in self._workers if not worker.jobs]
            if not idle:
                idle = [_Worker(self._threads)]
                self._workers += idle
            stack = waiting.popleft()
            idle[0].give(stack)
            for job in stack:
                self._board.begun(job.path)

    def _hear(self, busy: list[_Worker], waiting: deque[Stack]) -> None:
        by_pipe = {worker.pipe: worker for worker in busy}
        for pipe in connection.wait(list(by_pipe), timeout=_TELL_SECONDS):
            worker = by_pipe[pipe]  # type: ignore[index]
            try:
                path, said = worker.pipe.recv()
            except (EOFError, OSError):
                self._lost(worker, waiting)
                continue
            if isinstance(said, Outcome):
                self._over(worker.jobs.pop(path), said)
            else:
                self._board.moved(path, *said)

    def _lost(self, worker: _Worker, waiting: deque[Stack]) -> None:
        worker.process.join()
        self._workers.remove(worker)
        again, given_up = after_a_loss(worker.jobs.values())
        if again:
            waiting.appendleft(again)
        for job in given_up:
            self._over(job, lost(job, f"exit code {worker.process.exitcode}"))


def after_a_loss(jobs: Iterable[Job]) -> tuple[Stack, Stack]:
    """Return those of the jobs that are tried once more, and those that were lost too often."""
    counted = [replace(job, resume=True, lost=job.lost + 1) for job in jobs]
    again = tuple(job for job in counted if job.lost < TRIES)
    return again, tuple(job for job in counted if job.lost >= TRIES)


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
    while stack := pipe.recv():
        perform_all(stack, _Teller(pipe).tell, lambda job, said: pipe.send((job.path, said)))


class _Teller:
    """Tells the parent now and then how far each run is."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._last: dict[str, float] = {}

    def tell(self, path: str, ended: int, loss: float | None) -> None:
        now = time.monotonic()
        if now - self._last.get(path, 0.0) > _TELL_SECONDS:
            self._last[path] = now
            self._pipe.send((path, (ended, loss)))


def _end_with_parent() -> None:
    """End this process once its parent is gone; whatever it was running can be resumed."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
