"""A Ray cluster from the perspective of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedtide.errors import InvalidInputError
from fedtide.simulation.cluster.chunk_worker import WorkerSetup
from fedtide.simulation.cluster.ray_connection import connect_ray
from fedtide.simulation.cluster.worker_pool import WorkerPool
from fedtide.simulation.experiment import Experiment
from fedtide.training.trainers.select import TrainerName
from fedtide.validation import require_at_least


class RayCluster:
    """A connection to a cluster, on which one run at a time has workers.

    Args:
        ray: the module, connected.
        workers: how many a run has; None: as many as the cluster has room for.
    """

    def __init__(self, ray: Any, workers: int | None) -> None:
        self._ray, self._workers = ray, workers
        self._pool: WorkerPool | None = None
        self._key: Any = None

    def start_workers(self, experiment: Experiment, trainer: TrainerName) -> WorkerPool:
        """Return workers that use this trainer.

        The workers of the previous run are reused if they can train this one; otherwise they end.

        Raises:
            InvalidInputError: no node has room for a worker.
        """
        setup = WorkerSetup.of_run(experiment, trainer)
        if self._pool is None or self._key != setup.key:
            self.close()
            self._pool, self._key = WorkerPool(self._ray, setup, self._workers), setup.key
        return self._pool

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


@contextmanager
def open_cluster(address: str | None, workers: int | None) -> Iterator[RayCluster | None]:
    """Yield the cluster at an address, or None without one; its workers end with the context.

    Raises:
        InvalidInputError: `workers` is given without a cluster, Ray is not installed, or no cluster
            answers.
    """
    if workers is not None:
        require_at_least("workers", workers, 1)
    if address is None:
        if workers is not None:
            raise InvalidInputError("workers: there is no cluster; give its address as cluster")
        yield None
        return
    with connect_ray(address, "cluster") as ray:
        cluster = RayCluster(ray, workers)
        try:
            yield cluster
        finally:
            cluster.close()
