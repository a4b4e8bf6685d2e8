"""Runs jobs on this machine: one after another, or in several worker processes.

The processes are those of loky, which comes with joblib: they import neither the user's script nor
a notebook, and get the classes defined there by value. A thread of this process serves each.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import Empty, Queue, SimpleQueue

import torch
from joblib.externals.loky.backend import get_context, reduction

from fedtide.errors import InvalidInputError, first_line
from fedtide.simulation.cluster.ray_cluster import RayCluster
from fedtide.simulation.early_end import Failure
from fedtide.simulation.process_settings import ProcessSettings
from fedtide.simulation.progress import Progress, RunStatus
from fedtide.spec import session
from fedtide.sweep.job import INTERRUPTED, MAX_ATTEMPTS, Job, OnFinished, Outcome

_POLL_SECONDS = 0.2  # between two checks whether to stop


def run_sequentially(
    jobs: Sequence[Job],
    progress: Progress,
    on_finished: OnFinished,
    stopped: Callable[[], bool],
    cluster: RayCluster | None = None,
) -> None:
    """Run the jobs one after another in this process; they share prepared tasks.

    With a cluster, its workers train the clients.
    """
    for job in jobs:
        if stopped():
            return
        progress.start(job.path)
        on_finished(job, job.run(partial(progress.set_status, job.path), cluster))


def run_in_processes(
    jobs: Sequence[Job],
    workers: int,
    threads: int,
    progress: Progress,
    on_finished: OnFinished,
    stopped: Callable[[], bool],
) -> None:
    """Run the jobs in worker processes, each with this number of threads.

    A run whose process is lost (killed because memory ran out, say) continues in a new process, up
    to `MAX_ATTEMPTS` attempts. Once `stopped` returns true, no further job starts, and the active
    runs are saved and ended; on Windows, where SIGTERM cannot be handled, they are killed and can
    be resumed from their last checkpoint.

    Raises:
        InvalidInputError: a job holds an object that cannot be sent to other processes.
    """
    waiting, events = deque(jobs), _Events()
    with _ctrl_c_ignored():
        pool = [_Worker(threads, waiting, events) for _ in range(workers)]
    for worker in pool:
        worker.start()
    unfinished = len(jobs)
    try:
        while unfinished:
            if stopped():
                while waiting:
                    with suppress(IndexError):  # a worker has just taken the last one
                        waiting.popleft()
                        unfinished -= 1
                for worker in pool:  # repeatedly, as a run listens only after its start
                    worker.stop()
            with suppress(Empty):
                job, event = events.get(timeout=_POLL_SECONDS)
                if isinstance(event, Exception):
                    raise event
                if event is None:
                    progress.start(job.path)
                elif isinstance(event, RunStatus):
                    progress.set_status(job.path, event)
                else:
                    unfinished -= 1
                    on_finished(job, event)
    finally:  # after an error, runs end at once, and can be resumed
        waiting.clear()
        for worker in pool:
            worker.close()


def _pickle(job: Job) -> bytes:
    try:
        return bytes(reduction.dumps(job))
    except Exception as error:  # an object of the user's may raise anything
        raise InvalidInputError(
            f"workers: an object of the experiment cannot be sent to worker processes "
            f"({first_line(error, with_type=True)}); give workers=1"
        ) from error


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """Start processes that ignore Ctrl-C, which reaches all, until they handle it themselves."""
    if threading.current_thread() is not threading.main_thread():  # which alone sets handlers
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_Events = Queue[tuple[Job, RunStatus | Outcome | Exception | None]]
"""What happens to jobs: one starts (None), its status, how it ends, or why it cannot be sent."""


class _Worker(threading.Thread):
    """A process that runs one waiting job after another, and the thread that serves it."""

    def __init__(self, threads: int, waiting: deque[Job], events: _Events) -> None:
        super().__init__(daemon=True)
        self._threads, self._waiting, self._events = threads, waiting, events
        self._is_stopping = self._has_begun = False
        self._start_process()

    def _start_process(self) -> None:
        self._pipe, theirs = Pipe()
        script = getattr(sys.modules["__main__"], "__file__", None)
        self._process = get_context("loky").Process(
            target=_worker_main,
            args=(theirs, self._threads, ProcessSettings.current(), script),
            daemon=True,
        )
        self._process.start()
        theirs.close()

    def run(self) -> None:
        """Serve the process until no job waits."""
        with suppress(IndexError):  # the deque is empty
            while True:
                job = self._waiting.popleft()
                self._events.put((job, None))
                try:
                    self._events.put((job, self._run_job(job)))
                except Exception as error:  # which ends the sweep
                    self._events.put((job, error))

    def stop(self) -> None:
        """Ask the active run to end; before it has begun, there is nothing to save."""
        self._is_stopping = True
        if self._has_begun:
            self._process.terminate()
        else:
            self._kill()

    def close(self) -> None:
        """End the process: it ends with its pipe."""
        self._is_stopping = True
        self._kill()
        self._process.join()

    def _kill(self) -> None:
        with suppress(OSError):  # it has ended
            os.kill(self._process.pid, getattr(signal, "SIGKILL", signal.SIGTERM))

    def _run_job(self, job: Job) -> Outcome:
        """Run a job; if its process is lost, in a new one."""
        content = _pickle(job)
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                self._start_process()
            self._has_begun = False
            with suppress(EOFError, OSError):
                self._pipe.send_bytes(content)
                while not isinstance(event := self._pipe.recv(), Outcome):
                    self._has_begun = True
                    self._events.put((job, event))
                return event
            self._process.join()
            if self._is_stopping:
                return INTERRUPTED
        return Outcome.lost(job, f"exit code {self._process.exitcode}")


def _worker_main(
    pipe: Connection, threads: int, settings: ProcessSettings, script: str | None
) -> None:
    """Run the jobs that arrive through the pipe until its other end closes.

    Args:
        pipe: the connection to the parent.
        threads: the number of PyTorch threads.
        settings: of the parent; modules in its working directory may define objects of a job.
        script: the file of the parent's main module, by which its classes are fingerprinted; None
            in a notebook.
    """
    torch.set_num_threads(threads)
    settings.apply()
    sys.path.insert(0, str(Path.cwd()))
    del sys.modules["__main__"].__file__  # loky's
    if script is not None:
        sys.modules["__main__"].__file__ = script
    for number in (signal.SIGINT, signal.SIGTERM):  # an active run installs its own handlers
        signal.signal(number, signal.SIG_IGN)
    jobs = SimpleQueue[bytes]()
    threading.Thread(target=_listen, args=(pipe, jobs), daemon=True).start()
    with session():  # the jobs of one sweep share their tasks
        while True:
            pipe.send(_run(jobs.get(), pipe))


def _listen(pipe: Connection, jobs: SimpleQueue[bytes]) -> None:
    """Pass on jobs; end this process with its parent: its run can be resumed."""
    with suppress(EOFError, OSError):
        while True:
            jobs.put(pipe.recv_bytes())
    os._exit(1)


def _run(content: bytes, pipe: Connection) -> Outcome:
    """Run a pickled job, reporting its status through the pipe."""
    try:
        job: Job = ForkingPickler.loads(content)
    except Exception as error:  # a module of the user's may raise anything
        return Outcome(Failure.of(error))

    def send(status: RunStatus) -> None:
        with suppress(OSError):  # the parent has died, which `_listen` notices
            pipe.send(status)

    return job.run(send)
