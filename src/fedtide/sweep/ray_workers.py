"""Runs jobs on a Ray cluster.

Every node must see the sweep's folder (on a shared file system) and have the same version of
fedtide. A run writes to its folder as it would locally, so if its node is lost, it continues on
another one from its last checkpoint.
"""

from __future__ import annotations

import socket
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
from fedtide.simulation.cluster.ray_connection import connect_ray
from fedtide.simulation.process_settings import ProcessSettings
from fedtide.simulation.task_cache import clear_task_cache
from fedtide.sweep.job import (
    INTERRUPTED,
    MAX_ATTEMPTS,
    Job,
    OnFinished,
    Outcome,
    SweepProgress,
    lost_worker,
    run_job,
)

_POLL_SECONDS = 0.5


def run_on_ray(
    jobs: Sequence[Job],
    address: str,
    workers: int | None,
    progress: SweepProgress,
    on_finished: OnFinished,
    stopped: Callable[[], bool],
) -> None:
    """Run the jobs on the cluster at `address`, one core each.

    Args:
        jobs: the jobs; their folders must be the same on every node.
        address: HOST:PORT of the head, a ray:// address, or "auto".
        workers: how many run at a time; None: as many as the cluster has cores.
        progress: is told which runs start and end; rounds are not reported.
        on_finished: called with every run that has ended.
        stopped: returns whether to stop; active runs are then saved.

    Raises:
        InvalidInputError: Ray is not installed, no cluster answers at the address, or a node does
            not see the folder.
    """
    with connect_ray(address) as ray:
        if jobs:
            cluster = _Cluster(ray, progress, on_finished)
            absolute = [replace(job, folder=job.folder.resolve()) for job in jobs]
            cluster.run(absolute, workers or cluster.count_cores(), stopped)


@dataclass
class _Cluster:
    """The active jobs on a cluster, by their Ray references."""

    ray: Any
    progress: SweepProgress
    on_finished: OnFinished
    running: dict[Any, Job] = field(default_factory=dict)
    cancelled: bool = False

    def run(self, jobs: Sequence[Job], workers: int, stopped: Callable[[], bool]) -> None:
        """Run all jobs, at most `workers` at a time."""
        clear_task_cache()
        on_cpu, on_gpu = (
            self.ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_run_on_node)
            for gpus in (0, 1)
        )
        if any(map(_needs_gpu, jobs)) and not self.ray.cluster_resources().get("GPU"):
            raise InvalidInputError(
                "ray: no node of the cluster has a GPU, which runs with device: cuda need; start "
                "it with --num-gpus, or use device: cpu"
            )
        marker = _write_marker(jobs[0].folder.parent)
        settings = ProcessSettings.current()
        waiting = deque(jobs)
        try:
            while waiting or self.running:
                if stopped():
                    waiting.clear()
                    self._cancel()
                while waiting and len(self.running) < workers:
                    job = waiting.popleft()
                    remote = on_gpu if _needs_gpu(job) else on_cpu
                    self.running[remote.remote(job, marker, settings)] = job
                    self.progress.start(job.path)
                ended, _ = self.ray.wait(list(self.running), timeout=_POLL_SECONDS)
                for reference in ended:
                    self._finish(reference, waiting)
        finally:
            marker.unlink(missing_ok=True)

    def count_cores(self) -> int:
        """Return the number of cores of the cluster."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def _cancel(self) -> None:
        """Interrupt the active jobs as Ctrl-C would: their runs are saved."""
        if not self.cancelled:
            self.cancelled = True
            for reference in self.running:
                self.ray.cancel(reference)

    def _finish(self, reference: Any, waiting: deque[Job]) -> None:
        job = self.running.pop(reference)
        try:
            outcome = self.ray.get(reference)
        except self.ray.exceptions.TaskCancelledError:
            outcome = INTERRUPTED
        except self.ray.exceptions.RayError as error:  # our own errors come back as outcomes
            job = job.retry()
            if job.losses < MAX_ATTEMPTS and not self.cancelled:
                waiting.appendleft(job)
                return
            outcome = lost_worker(job, type(error).__name__)
        if isinstance(outcome, _FolderNotShared):
            raise InvalidInputError(outcome.message)
        self.on_finished(job, outcome)


@dataclass(frozen=True)
class _FolderNotShared:
    """The answer of a node that does not see the sweep's folder."""

    message: str


def _write_marker(folder: Path) -> Path:
    """Create a file that shows a node that it sees the same folder."""
    make_folder(folder)
    marker = folder / f".seen-{uuid.uuid4().hex}"
    write_text(marker, "")
    return marker


def _run_on_node(job: Job, marker: Path, settings: ProcessSettings) -> Outcome | _FolderNotShared:
    """Run a job on a node of the cluster."""
    if not marker.exists():
        return _FolderNotShared(
            f"out: the Ray node {socket.gethostname()} does not see {marker.parent}; "
            "choose a folder that all nodes share"
        )
    torch.set_num_threads(1)
    own = ProcessSettings.current()
    settings.apply()
    try:
        with suppress(KeyboardInterrupt):
            return run_job(job, lambda status: None)
        return INTERRUPTED
    finally:  # the process may run other tasks of the user's program next
        own.apply()


def _needs_gpu(job: Job) -> bool:
    return job.experiment.device.startswith("cuda")
