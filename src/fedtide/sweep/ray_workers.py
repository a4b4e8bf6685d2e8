"""Runs jobs on a Ray cluster.

Every node must see the sweep's folder (on a shared file system) and have the same version of
fedtide. A run writes to its folder as it would locally, so if its node is lost, it continues on
another one from its last checkpoint.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from fedtide.atomic_io import make_folder
from fedtide.errors import InvalidInputError
from fedtide.simulation.cluster.ray_connection import connect_ray
from fedtide.simulation.early_end import Failure
from fedtide.simulation.process_settings import ProcessSettings
from fedtide.simulation.progress import Progress
from fedtide.sweep.job import INTERRUPTED, MAX_ATTEMPTS, Job, OnFinished, Outcome

_POLL_SECONDS = 0.5


def run_on_ray(
    jobs: Sequence[Job],
    address: str,
    workers: int | None,
    progress: Progress,
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
        InvalidInputError: Ray is not installed, no cluster answers at the address, or it lacks a
            GPU that the runs need.
    """
    with connect_ray(address) as ray:
        has = ray.cluster_resources()
        if any(map(_needs_gpu, jobs)) and not has.get("GPU"):
            raise InvalidInputError(
                "ray: no node of the cluster has a GPU, which runs with device: cuda need; start "
                "it with --num-gpus, or use device: cpu"
            )
        task = ray.remote(num_cpus=1, max_retries=MAX_ATTEMPTS - 1)(_run_on_node)
        settings, size = ProcessSettings.current(), workers or max(1, int(has.get("CPU", 1)))
        waiting, running = deque(jobs), dict[Any, Job]()
        is_cancelled = False
        while waiting or running:
            if stopped() and not is_cancelled:
                is_cancelled = True
                waiting.clear()
                for reference in running:  # as Ctrl-C would: the runs are saved
                    ray.cancel(reference)
            while waiting and len(running) < size:
                job = waiting.popleft()
                job = replace(job, folder=job.folder.resolve())
                make_folder(job.folder)  # by which a node shows that it sees the same files
                gpus = int(_needs_gpu(job))
                running[task.options(num_gpus=gpus).remote(job, settings)] = job
                progress.start(job.path)
            for reference in ray.wait(list(running), timeout=_POLL_SECONDS)[0]:
                job = running.pop(reference)
                try:
                    outcome: Outcome = ray.get(reference)
                except ray.exceptions.TaskCancelledError:
                    outcome = INTERRUPTED
                except ray.exceptions.RayError as error:  # our own errors come back as outcomes
                    outcome = Outcome.lost(job, type(error).__name__)
                on_finished(job, outcome)


def _run_on_node(job: Job, settings: ProcessSettings) -> Outcome:
    """Run a job on a node of the cluster."""
    if not job.folder.is_dir():
        return Outcome(
            Failure(
                f"out: the Ray node {socket.gethostname()} does not see {job.folder}; choose a "
                "folder that all nodes share"
            )
        )
    torch.set_num_threads(1)
    settings.apply()
    with suppress(KeyboardInterrupt):
        return job.run(lambda status: None)
    return INTERRUPTED


def _needs_gpu(job: Job) -> bool:
    return job.experiment.device.startswith("cuda")
