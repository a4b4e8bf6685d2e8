"""Runs jobs on this machine: one after another, or in several worker processes."""

from __future__ import annotations

import io
import math
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from multiprocessing import connection, get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import torch

from fedtide.content_hash import hash_once
from fedtide.errors import InvalidInputError, first_line
from fedtide.simulation.cluster.ray_cluster import RayCluster
from fedtide.simulation.process_settings import ProcessSettings
from fedtide.simulation.run_folder import Failure
from fedtide.simulation.task_cache import clear_task_cache
from fedtide.sweep.job import (
    INTERRUPTED,
    MAX_ATTEMPTS,
    Job,
    OnFinished,
    Outcome,
    RunStatus,
    lost_worker,
    run_job,
)
from fedtide.sweep.sweep_progress import SweepProgress

_LARGE = (np.ndarray, torch.Tensor, pl.DataFrame, pl.Series, pa.Table, pa.Array, pa.ChunkedArray)
"""Types that the search for the script's objects skips: they may be large, and contain none."""

_CONTROL_GROUP = Path("/sys/fs/cgroup")
"""The folder in which a container finds the limits of its own control group."""

_MOST_ON_WINDOWS = 61
"""The number of processes that Python can wait for on Windows, less the pipes of its own pool."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_EXIT_SECONDS = 5.0
_POLL_SECONDS = 0.2  # between two checks whether to stop


def available_cores() -> int:
    """Return the number of cores that this process, or its container, may use.

    At most 61 on Windows, where a process cannot wait for more processes.
    """
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        cores = len(os.sched_getaffinity(0))
    else:
        process_cpu_count = getattr(os, "process_cpu_count", os.cpu_count)  # Python 3.13
        cores = process_cpu_count() or 1
    if sys.platform == "win32":
        cores = min(cores, _MOST_ON_WINDOWS)
    return max(1, math.ceil(min(cores, _container_quota())))


def _container_quota() -> float:
    """Return how many cores a container may keep busy (`docker run --cpus`); inf without a limit.

    Linux limits the total CPU time of a container, but its processes see all cores.
    """
    with suppress(OSError, ValueError):  # no control groups of version 2, or "max"
        quota, period = (_CONTROL_GROUP / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    with suppress(OSError, ValueError):
        folder = _CONTROL_GROUP / "cpu"
        quota, period = (
            (folder / f"cpu.cfs_{name}_us").read_text(encoding="ascii")
            for name in ("quota", "period")
        )
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    return math.inf


def run_sequentially(
    jobs: Sequence[Job],
    progress: SweepProgress,
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
    progress: SweepProgress,
    on_finished: OnFinished,
    stopped: Callable[[], bool],
) -> None:
    """Run the jobs in worker processes that share the cores.

    A run whose process is lost (killed because memory ran out, say) continues in a new process, up
    to `MAX_ATTEMPTS` attempts. Once `stopped` returns true, no further job starts, and the active
    runs are saved and ended; on Windows, where SIGTERM cannot be handled, they are killed and can
    be resumed from their last checkpoint.

    Raises:
        InvalidInputError: the jobs hold objects that cannot be sent to other processes, or whose
            classes are defined in a notebook, from which processes cannot import them.
    """
    clear_task_cache()  # the workers prepare their own tasks
    threads = max(1, available_cores() // workers)
    pool = _WorkerPool(threads, _needs_main_module(jobs), progress, on_finished)
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

    def __init__(self, threads: int, imports_main: bool) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=_worker_main,
            args=(theirs, threads, ProcessSettings.current()),
            daemon=True,
        )
        with _signals_blocked(), nullcontext() if imports_main else _main_module_hidden():
            self.process.start()
        theirs.close()
        self.job: Job | None = None
        self.has_begun = False

    def assign(self, job: Job) -> None:
        self.job, self.has_begun = job, False
        self.pipe.send(job)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Start processes with signals blocked, until they are ready to handle them.

    Ctrl-C in a terminal reaches all processes, even those that are still importing modules.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    # Up to Python 3.12, starting the first process also starts the resource tracker, which then
    # unblocks the signals, so that the worker would not inherit them as blocked.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Keep processes that start here from running the user's script again.

    A script may lack `if __name__ == "__main__"`, and do more than start the sweep.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _needs_main_module(jobs: Sequence[Job]) -> bool:
    """Return whether jobs hold an object whose class the script defines, such as a network.

    Raises:
        InvalidInputError: they do, but the class is defined in a notebook or an interactive
            session; or an object cannot be sent to other processes.
    """
    search = _MainModuleSearch(io.BytesIO())
    try:
        search.dump(list(jobs))
    except Exception as error:  # an object of the user's may raise anything
        raise InvalidInputError(
            f"workers: an object of the experiment cannot be sent to worker processes "
            f"({first_line(error, with_type=True)}); give workers=1"
        ) from error
    if not search.found:
        return False
    if not hasattr(sys.modules["__main__"], "__file__"):
        raise InvalidInputError(
            "workers: worker processes cannot import the classes that a notebook defines; move "
            "them to a module (a .py file that is imported), or give workers=1"
        )
    return True


class _MainModuleSearch(ForkingPickler):
    """Pickles objects, skipping numbers and tables, to find those that the script defines.

    Attributes:
        found: whether an object, or its class, is defined by the script.
    """

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.found = False

    def persistent_id(self, thing: Any) -> str | None:
        place = getattr(thing, "__module__", None)
        self.found |= "__main__" in (
            type(thing).__module__,
            place if isinstance(place, str) else "",
        )
        holds_objects = isinstance(thing, np.ndarray) and thing.dtype.hasobject
        return "data" if isinstance(thing, _LARGE) and not holds_objects else None


class _WorkerPool:
    """Worker processes and their jobs."""

    def __init__(
        self, threads: int, imports_main: bool, progress: SweepProgress, on_finished: OnFinished
    ) -> None:
        self._threads, self._imports_main = threads, imports_main
        self._progress, self._on_finished = progress, on_finished
        self._workers: list[_Worker] = []

    def run(self, waiting: deque[Job], size: int, stopped: Callable[[], bool]) -> None:
        """Run all waiting jobs on at most `size` workers."""
        while True:
            stopping = stopped()
            if stopping:
                for worker in self._busy():  # repeatedly: a run listens only after its start
                    end = worker.process.terminate if worker.has_begun else worker.process.kill
                    end()
            else:
                self._assign_jobs(waiting, size)
            if not self._busy():
                return
            self._receive(waiting, stopping)

    def close(self) -> None:
        """End all workers; idle ones exit by themselves, busy ones are killed."""
        for worker in self._workers:
            if worker.job is not None:
                worker.process.kill()
            with suppress(OSError):
                worker.pipe.send(None)
        for worker in self._workers:
            worker.process.join(_EXIT_SECONDS)
            worker.process.kill()
            worker.process.join()

    def _busy(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.job is not None]

    def _assign_jobs(self, waiting: deque[Job], size: int) -> None:
        self._workers = [one for one in self._workers if one.job or one.process.is_alive()]
        while waiting and len(self._busy()) < size:
            idle = next((worker for worker in self._workers if worker.job is None), None)
            if idle is None:
                idle = _Worker(self._threads, self._imports_main)
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
        job = job.retry()
        if stopping:
            self._on_finished(job, INTERRUPTED)
        elif job.losses < MAX_ATTEMPTS:
            waiting.appendleft(job)
        else:
            self._on_finished(job, lost_worker(job, f"exit code {worker.process.exitcode}"))


def _worker_main(pipe: Connection, threads: int, settings: ProcessSettings) -> None:
    """Run the jobs that arrive through the pipe until it delivers None, or its other end closes.

    Args:
        pipe: the connection to the parent.
        threads: the number of PyTorch threads.
        settings: of the parent; modules in its working directory may define objects of a job.
    """
    torch.set_num_threads(threads)
    settings.apply()
    for number in _SIGNALS:  # an active run installs its own handlers
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    with hash_once(), suppress(EOFError):  # the jobs of one sweep share their tasks
        while (job := _receive_job(pipe, settings.folder)) is not None:
            pipe.send(
                job if isinstance(job, Outcome) else run_job(job, partial(_send_status, pipe))
            )


def _receive_job(pipe: Connection, folder: str) -> Job | Outcome | None:
    """Return the next job, None at the end, or the failure of a job that cannot be unpickled."""
    sys.path.insert(0, folder)  # while the job is unpickled, as `import_object` does
    try:
        job: Job | None = pipe.recv()
    except EOFError:
        raise
    except Exception as error:  # an object of the user's may raise anything
        why = first_line(error, with_type=True)
        sentence = f"workers: a worker process cannot read the run ({why}); give workers=1"
        return Outcome(Failure(sentence))
    finally:
        sys.path.remove(folder)
    return job


def _send_status(pipe: Connection, status: RunStatus) -> None:
    """Send a status to the parent; if it has died, end this process without failing the run."""
    try:
        pipe.send(status)
    except OSError:
        os._exit(1)


def _exit_with_parent() -> None:
    """End this process when its parent has died; its run can be resumed."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
