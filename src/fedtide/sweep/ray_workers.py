"""The same runs on a Ray cluster.

Every node must see the folder of the sweep (a shared file system) and have the same fedtide: a run
writes into its folder there as it would here, so one that is lost with its node goes on elsewhere
from its last checkpoint.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fedtide.atomic_io import make_folder, write_text
from fedtide.errors import InvalidInputError
from fedtide.simulation.task_cache import clear_task_cache
from fedtide.sweep.job import TRIES, Job, OnFinished, Outcome, perform
from fedtide.sweep.local_workers import after_a_loss, lost
from fedtide.sweep.sweep_progress import SweepProgress

_KNOCK_SECONDS = 4.0
_ANSWER_SECONDS = 12.0
_LOOK_SECONDS = 0.5
_PROBE = (
    "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"
)


def run_on_ray(
    jobs: Sequence[Job],
    address: str,
    workers: int | None,
    board: SweepProgress,
    over: OnFinished,
    stopped: Callable[[], bool],
) -> None:
    """Run the jobs on the cluster at `address`, one core each, as many at a time as it has cores.

    Args:
        jobs: what to run; their folders must mean the same on every node.
        address: HOST:PORT of the head, a ray:// address, or "auto".
        workers: how many at a time; None: as many as the cluster has cores.
        board: is told of what begins and ends; rounds are not reported.
        over: is told of every run that has ended.
        stopped: whether to end; what is under way is saved.

    Raises:
        InvalidInputError: Ray is missing, nobody answers at the address, or a node does not see the folder.
    """
    ray = _imported()
    if not ray.is_initialized():
        _connect(ray, address)
    try:
        if jobs:
            cluster = _Cluster(ray, board, over)
            workers = workers or cluster.cores()
            cluster.run([*map(_absolute, jobs)], workers, stopped)
    finally:
        ray.shutdown()


def _imported() -> Any:
    try:
        import ray
    except ImportError:
        raise InvalidInputError("ray: Ray is not installed; pip install 'fedtide[ray]'") from None
    return ray


def _absolute(job: Job) -> Job:
    return replace(job, folder=job.folder.resolve())


def _connect(ray: Any, address: str) -> None:
    """Connect to the cluster, or say within 20 seconds that there is none."""
    _knock(address)
    probe = [sys.executable, "-c", _PROBE, address]
    try:
        answered = subprocess.run(probe, capture_output=True, timeout=_ANSWER_SECONDS).returncode
    except subprocess.TimeoutExpired:
        answered = -1
    if answered != 0:
        raise InvalidInputError(f"ray: no Ray cluster answers at {address!r}; {_hint()}")
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")


def _knock(address: str) -> None:
    """Make sure that somebody listens at HOST:PORT."""
    if address == "auto":
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        raise InvalidInputError(f"ray: {address!r} is not HOST:PORT; {_hint()}")
    try:
        socket.create_connection((host, int(port)), timeout=_KNOCK_SECONDS).close()
    except (OSError, OverflowError):
        raise InvalidInputError(f"ray: nobody answers at {address!r}; {_hint()}") from None


def _hint() -> str:
    return "start a cluster with `ray start --head` and give the address that it prints"


@dataclass
class _Cluster:
    """The runs under way on a cluster."""

    ray: Any
    board: SweepProgress
    over: OnFinished
    running: dict[Any, Job] = field(default_factory=dict)
    asked: bool = False

    def run(self, jobs: Sequence[Job], workers: int, stopped: Callable[[], bool]) -> None:
        """Run all jobs."""
        clear_task_cache()
        remote = self.ray.remote(num_cpus=1, max_retries=0)(_work)
        token = _token(jobs[0].folder)
        waiting = deque(jobs)
        while waiting or self.running:
            if stopped():
                waiting.clear()
                self._cancel()
            places = workers - len(self.running)
            for _ in range(min(places, len(waiting))):
                job = waiting.popleft()
                self.running[remote.remote(job, token)] = job
                self.board.begun(job.path)
            ended, _ = self.ray.wait(list(self.running), timeout=_LOOK_SECONDS)
            for reference in ended:
                self._ended(reference, waiting)
        token.unlink(missing_ok=True)

    def cores(self) -> int:
        """Return how many the cluster has."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def _cancel(self) -> None:
        """Ask the runs under way to end, as Ctrl-C would: they are saved."""
        if not self.asked:
            self.asked = True
            for reference in self.running:
                self.ray.cancel(reference)

    def _ended(self, reference: Any, waiting: deque[Job]) -> None:
        job = self.running.pop(reference)
        try:
            found = self.ray.get(reference)
        except self.ray.exceptions.TaskCancelledError:
            found = _INTERRUPTED
        except self.ray.exceptions.RayError as error:  # our own errors come back as outcomes
            job = after_a_loss(job)
            if job.lost < TRIES and not self.asked:
                waiting.appendleft(job)
                return
            found = lost(job, type(error).__name__)
        if isinstance(found, _Unseen):
            raise InvalidInputError(found.sentence)
        self.over(job, found)


@dataclass(frozen=True)
class _Unseen:
    """What a node answers that does not see the folder of the sweep."""

    sentence: str


def _token(folder: Path) -> Path:
    """Return a file beside the runs by which a node knows that it sees the same folder."""
    parent = folder.parent
    make_folder(parent)
    token = parent / f".seen-{uuid.uuid4().hex}"
    write_text(token, "")
    return token


_INTERRUPTED = Outcome("interrupted", "interrupted")


def _work(job: Job, token: Path) -> Outcome | _Unseen:
    """Run a job on a node, and return what became of it."""
    if not token.exists():
        return _Unseen(
            f"out: the Ray node {socket.gethostname()} does not see {token.parent}; "
            "choose a folder that all nodes share"
        )
    torch.set_num_threads(1)
    with suppress(KeyboardInterrupt):
        return perform(job, lambda ended, loss: None)
    return _INTERRUPTED
