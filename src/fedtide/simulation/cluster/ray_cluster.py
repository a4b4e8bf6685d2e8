"""A Ray cluster as a run sees it: its workers, and the chunks that they train."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from fedtide.activity import STARTING_WORKERS, activity
from fedtide.errors import InvalidInputError, first_line
from fedtide.simulation.cluster.chunk_worker import ChunkOrder, ChunkWorker, WorkerSetup
from fedtide.simulation.cluster.ray_connection import connect_ray
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.local_round import ChunkResult
from fedtide.training.trainers.select import TrainerName
from fedtide.validation import require_at_least

_ATTEMPTS = 3  # how often a chunk may lose its worker
_QUEUED = 2  # chunks per worker: one in training, and one that arrives meanwhile
_AHEAD = 4  # chunks per worker that may wait for an earlier one
_START_SECONDS = 180.0  # within which some worker must answer


class WorkerPool:
    """Workers of a cluster, which train chunks; Ray restarts a lost one, and its chunks.

    Args:
        ray: the module, connected.
        setup: what is trained, and how.
        workers: how many; None: as many as fit into the cluster.

    Attributes:
        training_seconds: the time that chunks have trained, summed over the workers.

    Raises:
        InvalidInputError: no node has room for a worker, or the problem cannot be sent to one.
    """

    def __init__(self, ray: Any, setup: WorkerSetup, workers: int | None) -> None:
        self._ray = ray
        gpus = 0 if setup.experiment.device.startswith("cpu") else 1
        room = _count_room(ray, {"CPU": setup.threads, "GPU": gpus})
        if room == 0:
            raise InvalidInputError(
                f"cluster: no node has the {setup.threads} cores{' and the GPU' * gpus} of a "
                "worker; a worker has as many cores as PyTorch uses threads here, so set "
                "OMP_NUM_THREADS to a smaller number"
            )
        self.size = min(workers or room, room)
        try:
            self._setup = [ray.put(setup)]
        except TypeError as error:  # Ray's own message contains all data
            raise InvalidInputError(
                "cluster: the model, the loss or the data cannot be sent to the workers "
                f"({first_line(error.__cause__ or error, 150)}); leave out what cannot be pickled"
            ) from None
        options = {"num_cpus": setup.threads, "num_gpus": gpus, "scheduling_strategy": "SPREAD"}
        actor_class = ray.remote(**options, max_restarts=-1, max_task_retries=_ATTEMPTS - 1)(
            _WorkerActor
        )
        self._actors = [actor_class.remote() for _ in range(self.size)]
        # by the references that say that they are ready
        self._starting = {actor.prepare.remote(self._setup): actor for actor in self._actors}
        self._free: list[Any] = []  # every worker once for each chunk that it may get
        self.training_seconds = 0.0

    def close(self) -> None:
        """End all workers."""
        for actor in self._actors:
            self._ray.kill(actor)

    def put(self, thing: Any) -> Any:
        """Return a reference to an object that all workers may read; each node gets it once."""
        return self._ray.put(thing)

    def train(self, orders: Iterator[tuple[Any, ChunkOrder]]) -> Iterator[ChunkResult]:
        """Yield the results of chunks in the order of `orders`, whichever worker has trained them.

        Args:
            orders: references to a `RoundStart`, and chunks; drawn a few chunks ahead.

        Raises:
            InvalidInputError: a worker cannot train this run, a chunk has lost its worker three
                times, or no worker answers.
        """
        running: dict[Any, Any] = {}  # the worker of each chunk
        results: deque[Any] = deque()  # references, in the order of the chunks
        try:
            for order in orders:
                self._await_room(running)
                actor = self._free.pop(0)
                results.append(actor.train.remote(self._setup, *order))
                running[results[-1]] = actor
                while results and (results[0] not in running or len(results) == _AHEAD * self.size):
                    yield self._take(results.popleft(), running)
            while results:
                yield self._take(results.popleft(), running)
        finally:  # after an error, no one waits for the chunks that are left
            self._free += running.values()

    def _take(self, reference: Any, running: dict[Any, Any]) -> ChunkResult:
        """Return the result of a chunk."""
        trained: ChunkResult
        trained, seconds = self._get(reference)
        if reference in running:
            self._free.append(running.pop(reference))
        self.training_seconds += seconds
        return trained

    def _await_room(self, running: dict[Any, Any]) -> None:
        """Wait until a worker may get a chunk, and look for workers that have started."""
        if self._starting:
            self._greet()
        if not self._free:
            for reference in self._ray.wait([*running])[0]:
                self._free.append(running.pop(reference))

    def _greet(self) -> None:
        """Let workers that have started take chunks; wait for the first of them."""
        is_first = len(self._starting) == self.size
        with activity(STARTING_WORKERS) if is_first else nullcontext():
            timeout = _START_SECONDS if is_first else 0
            ready, _ = self._ray.wait([*self._starting], timeout=timeout)
        if is_first and not ready:
            raise InvalidInputError(
                f"cluster: no worker has started within {_START_SECONDS:.0f} seconds; the cores "
                "may be in use (see `ray status`)"
            )
        for reference in ready:
            self._get(reference)
            self._free += [self._starting.pop(reference)] * _QUEUED

    def _get(self, reference: Any) -> Any:
        """Return a result; an error in a worker is raised without Ray's wrapping."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self._ray.exceptions.RayError as error:
            reason = str(error).rstrip().rpartition("\n")[2]
            raise InvalidInputError(
                f"cluster: a worker was lost {_ATTEMPTS} times or cannot start ({reason:.150}); if "
                "memory is short, give fewer workers or a smaller chunk; install the same on all "
                "nodes"
            ) from None


class _WorkerActor:
    """A worker as Ray runs it; after a restart, it prepares the problem again.

    The setup comes as a list with a reference to it, so that Ray does not fetch it with every call.
    """

    _worker: ChunkWorker | None = None

    def prepare(self, setup: list[Any]) -> None:
        """Prepare the problem."""
        if self._worker is None:
            import ray

            self._worker = ChunkWorker(ray.get(setup[0]))

    def train(self, setup: list[Any], start: Any, order: ChunkOrder) -> tuple[ChunkResult, float]:
        """Train a chunk."""
        self.prepare(setup)
        assert self._worker is not None
        return self._worker.train(start, order)


def _count_room(ray: Any, needs: dict[str, int]) -> int:
    """Return how many workers with these needs the nodes of the cluster have room for."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(
        min(int(node.get(name, 0) // need) for name, need in needs.items() if need)
        for node in nodes
    )


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
