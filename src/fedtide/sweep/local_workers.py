"""Runs jobs on this machine: one after another, or in several worker processes.

The processes are those of loky, which comes with joblib: they import neither the user's script nor
a notebook, and get the classes defined there by value.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import Pipe, connection
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import SimpleQueue

import torch
from joblib.externals.loky.backend import get_context, reduction

from fedtide.errors import InvalidInputError, first_line
from fedtide.simulation.cluster.ray_cluster import RayCluster
from fedtide.simulation.early_end import Failure
from fedtide.simulation.process_settings import ProcessSettings
from fedtide.simulation.run_progress import Progress, RunStatus
from fedtide.simulation.task_cache import clear_task_cache
from fedtide.spec import session
from fedtide.sweep.job import (
    INTERRUPTED,
    MAX_ATTEMPTS,
    Job,
    OnFinished,
    Outcome,
    lost_worker,
    run_job,
)

_EXIT_SECONDS = 5.0
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
        on_finished(job, run_job(job, partial(progress.set_status, job.path), cluster))


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
    clear_task_cache()  # the workers prepare their own tasks
    pool = _WorkerPool(threads, progress, on_finished)
    try:
        pool.run(deque(jobs), workers, stopped)
    finally:
        pool.close()


class _Worker:
    """A process that runs one job at a time.

    Attributes:
        job: the active job; None while idle.
        has_begun: whether the job has reported a status; before that, there is nothing to save.
    """

    def __init__(self, threads: int) -> None:
        self.pipe, theirs = Pipe()
        script = getattr(sys.modules["__main__"], "__file__", None)
        self.process = get_context("loky").Process(
            target=_worker_main,
            args=(theirs, threads, ProcessSettings.current(), script),
            daemon=True,
        )
        with _ctrl_c_ignored():
            self.process.start()
        theirs.close()
        self.job: Job | None = None
        self.has_begun = False

    def assign(self, job: Job) -> None:
        """Send a job."""
        try:
            content = reduction.dumps(job)
        except Exception as error:  # an object of the user's may raise anything
            raise InvalidInputError(
                f"workers: an object of the experiment cannot be sent to worker processes "
                f"({first_line(error, with_type=True)}); give workers=1"
            ) from error
        self.pipe.send_bytes(content)
        self.job, self.has_begun = job, False


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


class _WorkerPool:
    """Worker processes and their jobs."""

    def __init__(self, threads: int, progress: Progress, on_finished: OnFinished) -> None:
        self._threads, self._progress, self._on_finished = threads, progress, on_finished
        self._workers: list[_Worker] = []
        self._losses = Counter[str]()

    def run(self, waiting: deque[Job], size: int, stopped: Callable[[], bool]) -> None:
        """Run all waiting jobs on at most `size` workers."""
        while True:
            stopping = stopped()
            if stopping:
                self._stop()
            else:
                self._assign_jobs(waiting, size)
            if not self._busy():
                return
            self._receive(waiting, stopping)

    def close(self) -> None:
        """End all workers: idle ones exit, and busy ones, whose pipe closes, exit at once."""
        for worker in self._workers:
            with suppress(OSError):
                worker.pipe.send_bytes(b"") if worker.job is None else worker.pipe.close()
        for worker in self._workers:
            worker.process.join(_EXIT_SECONDS)
            worker.pipe.close()

    def _busy(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.job is not None]

    def _stop(self) -> None:
        """Ask active runs to end; called repeatedly, as a run listens only after its start."""
        for worker in self._busy():
            worker.process.terminate()
            if not worker.has_begun:
                self._workers.remove(worker)
                worker.pipe.close()
                assert worker.job is not None
                self._on_finished(worker.job, INTERRUPTED)

    def _assign_jobs(self, waiting: deque[Job], size: int) -> None:
        while waiting and len(self._busy()) < size:
            idle = next((worker for worker in self._workers if worker.job is None), None)
            if idle is None:
                idle = _Worker(self._threads)
                self._workers.append(idle)
            job = waiting.popleft()
            idle.assign(job)
            self._progress.start(job.path)

    def _receive(self, waiting: deque[Job], stopping: bool) -> None:
        """Handle the workers' messages, after waiting a moment for the first."""
        by_pipe = {worker.pipe: worker for worker in self._busy()}
        for pipe in connection.wait(list(by_pipe), timeout=_POLL_SECONDS):
            worker = by_pipe[pipe]  # type: ignore[index]
            job = worker.job
            assert job is not None
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):
                self._replace(worker, job, waiting, stopping)
                continue
            if isinstance(message, Outcome):
                worker.job = None
                self._on_finished(job, message)
            else:
                worker.has_begun = True
                self._progress.set_status(job.path, message)

    def _replace(self, worker: _Worker, job: Job, waiting: deque[Job], stopping: bool) -> None:
        """Drop a worker whose process has ended; retry its job, or record it as failed."""
        worker.process.join()
        self._workers.remove(worker)
        self._losses[job.path] += 1
        if stopping:
            self._on_finished(job, INTERRUPTED)
        elif self._losses[job.path] < MAX_ATTEMPTS:
            waiting.appendleft(job)
        else:
            self._on_finished(job, lost_worker(job, f"exit code {worker.process.exitcode}"))


def _worker_main(
    pipe: Connection, threads: int, settings: ProcessSettings, script: str | None
) -> None:
    """Run the jobs that arrive through the pipe until an empty one comes, or its other end closes.

    Args:
        pipe: the connection to the parent.
        threads: the number of PyTorch threads.
        settings: of the parent; modules in its working directory may define objects of a job.
        script: the file of the parent's main module, by which its classes are fingerprinted; None
            in a notebook.
    """
    torch.set_num_threads(threads)
    settings.apply()
    del sys.modules["__main__"].__file__  # loky's
    if script is not None:
        sys.modules["__main__"].__file__ = script
    for number in (signal.SIGINT, signal.SIGTERM):  # an active run installs its own handlers
        signal.signal(number, signal.SIG_IGN)
    jobs = SimpleQueue[bytes]()
    threading.Thread(target=_listen, args=(pipe, jobs), daemon=True).start()
    with session():  # the jobs of one sweep share their tasks
        while content := jobs.get():
            pipe.send(_run(content, pipe))


def _listen(pipe: Connection, jobs: SimpleQueue[bytes]) -> None:
    """Pass on jobs; end this process with its parent: its run can be resumed."""
    with suppress(EOFError, OSError):
        while True:
            jobs.put(pipe.recv_bytes())
    os._exit(1)


def _run(content: bytes, pipe: Connection) -> Outcome:
    """Run a pickled job, reporting its status through the pipe."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)  # while the job is unpickled, as `import_object` does
    try:
        job: Job = ForkingPickler.loads(content)
    except Exception as error:  # a module of the user's may raise anything
        return Outcome(Failure.of(error))
    finally:
        sys.path.remove(folder)

    def send(status: RunStatus) -> None:
        with suppress(OSError):  # the parent has died, which `_listen` notices
            pipe.send(status)

    return run_job(job, send)
