"""A Ray cluster as a run sees it: its workers, and the chunks that they train."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from fedtide.activity import STARTING_WORKERS, activity
from fedtide.errors import InvalidInputError, first_line, quantify
from fedtide.simulation.cluster.chunk_worker import (
    ChunkOrder,
    ChunkWorker,
    TrainedChunk,
    WorkerSetup,
)
from fedtide.simulation.cluster.ray_connection import connect_ray
from fedtide.simulation.experiment import Experiment
from fedtide.training.trainers.select import TrainerName
from fedtide.validation import require_at_least

_logger = logging.getLogger("fedtide")

MAX_ATTEMPTS = 3
"""How often a chunk may lose its worker."""
_QUEUED = 2  # chunks per worker: one in training, and one that arrives meanwhile
_AHEAD = 4  # chunks per worker that may wait for an earlier one
_START_SECONDS = 180.0  # within which some worker must answer
_POLL_SECONDS = 1.0


@dataclass
class _PendingChunk:
    """A chunk that has not been returned yet.

    Args:
        number: its position in the order in which chunks were drawn.
        start: the reference to the `RoundStart`.
        order: the chunk.
        attempts: how often it was sent to a worker.
    """

    number: int
    start: Any
    order: ChunkOrder
    attempts: int = 0


@dataclass(eq=False)
class _Worker:
    """An actor, and the chunks that it has, by the references to its results."""

    actor: Any
    chunks: dict[Any, _PendingChunk] = field(default_factory=dict)


class WorkerPool:
    """Workers of a cluster, which train chunks; a lost one is replaced.

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
        if workers is not None and workers > room:
            _logger.warning(
                "cluster: it has room for %s, not %d", quantify(room, "worker"), workers
            )
        try:
            self._setup = ray.put(setup)
        except TypeError as error:  # Ray's own message contains all data
            raise InvalidInputError(
                "cluster: the model, the loss or the data cannot be sent to the workers "
                f"({first_line(error.__cause__ or error, 150)}); leave out what cannot be pickled"
            ) from None
        self._actor_class = ray.remote(
            num_cpus=setup.threads, num_gpus=gpus, max_restarts=0, scheduling_strategy="SPREAD"
        )(_WorkerActor)
        self._starting: dict[Any, _Worker] = {}  # by the references that say that they are ready
        self._workers: list[_Worker] = []
        self.training_seconds = 0.0
        for _ in range(self.size):
            self._start_worker()

    def close(self) -> None:
        """End all workers."""
        for worker in (*self._starting.values(), *self._workers):
            self._ray.kill(worker.actor)
        self._starting, self._workers = {}, []

    def put(self, thing: Any) -> Any:
        """Return a reference to an object that all workers may read; each node gets it once."""
        return self._ray.put(thing)

    def train(self, orders: Iterator[tuple[Any, ChunkOrder]]) -> Iterator[TrainedChunk]:
        """Yield the trained chunks in the order of `orders`, whichever worker has trained them.

        Args:
            orders: references to a `RoundStart`, and chunks; drawn a few chunks ahead.

        Raises:
            InvalidInputError: a worker cannot train this run, a chunk has lost its worker three
                times, or no worker answers.
        """
        waiting: deque[_PendingChunk] = deque()
        trained: dict[int, TrainedChunk] = {}
        drawn = given = 0
        try:
            while True:
                room = min(_AHEAD * self.size - (drawn - given), self.size - len(waiting))
                for start, order in islice(orders, max(0, room)):
                    waiting.append(_PendingChunk(drawn, start, order))
                    drawn += 1
                if given == drawn:
                    return
                self._send(waiting)
                if given in trained:
                    yield trained.pop(given)
                    given += 1
                else:
                    trained |= self._receive(waiting)
        finally:  # after an error, no one waits for the chunks that are left
            for worker in self._workers:
                worker.chunks.clear()

    def _send(self, waiting: deque[_PendingChunk]) -> None:
        """Send chunks to the workers that have the fewest."""
        if not self._workers:
            self._await_worker()
        while waiting:
            worker = min(self._workers, key=lambda worker: len(worker.chunks))
            if len(worker.chunks) >= _QUEUED:
                return
            chunk = waiting.popleft()
            worker.chunks[worker.actor.train.remote(chunk.start, chunk.order)] = chunk
            chunk.attempts += 1

    def _receive(self, waiting: deque[_PendingChunk]) -> dict[int, TrainedChunk]:
        """Wait for any worker to answer; return the chunks that have been trained, by number."""
        found = {}
        references = [r for worker in self._workers for r in worker.chunks]
        for reference in self._wait(references):
            worker = next((w for w in self._workers if reference in w.chunks), None)
            if worker is None:  # lost with another of its chunks
                continue
            try:
                trained: TrainedChunk = self._get(reference)
            except self._ray.exceptions.RayError as error:
                self._replace(worker, waiting, error)
                continue
            self.training_seconds += trained.seconds
            found[worker.chunks.pop(reference).number] = trained
        return found

    def _wait(self, references: list[Any]) -> list[Any]:
        """Wait a moment for any of these references or a new worker; return those that are ready.

        A worker that reports an error still counts as starting, so that `close` ends it.
        """
        both = [*references, *self._starting]
        ready, _ = self._ray.wait(both, num_returns=1, timeout=_POLL_SECONDS)
        for reference in self._starting.keys() & set(ready):
            try:
                self._get(reference)
            except self._ray.exceptions.RayError as error:
                reason = str(error).rstrip().rpartition("\n")[2]
                raise InvalidInputError(
                    f"cluster: a worker cannot start ({reason:.150}); install the same on all "
                    "nodes, and check their memory"
                ) from None
            self._workers.append(self._starting.pop(reference))
        return [reference for reference in ready if reference in references]

    def _get(self, reference: Any) -> Any:
        """Return a result; an error in a worker is raised without Ray's wrapping."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error

    def _await_worker(self) -> None:
        """Wait until a worker is prepared."""
        end = time.monotonic() + _START_SECONDS
        with activity(STARTING_WORKERS):
            while not self._workers:
                if time.monotonic() > end:
                    raise InvalidInputError(
                        f"cluster: no worker has started within {_START_SECONDS:.0f} seconds; the "
                        "cores may be in use (see `ray status`)"
                    )
                self._wait([])

    def _replace(self, worker: _Worker, waiting: deque[_PendingChunk], error: Exception) -> None:
        """Start another worker in place of a lost one, whose chunks are trained again."""
        lost = sorted(worker.chunks.values(), key=lambda chunk: chunk.number)
        if any(chunk.attempts >= MAX_ATTEMPTS for chunk in lost):
            raise InvalidInputError(
                f"cluster: a chunk has lost its worker {MAX_ATTEMPTS} times "
                f"({type(error).__name__}); if memory is short, give fewer workers or a smaller "
                "chunk"
            ) from None
        waiting.extendleft(reversed(lost))
        self._workers.remove(worker)
        self._ray.kill(worker.actor)
        self._start_worker()
        _logger.warning("cluster: a worker was lost and is replaced")

    def _start_worker(self) -> None:
        actor = self._actor_class.remote()
        self._starting[actor.prepare.remote(self._setup)] = _Worker(actor)


class _WorkerActor:
    """A worker as Ray runs it; problems at the start are raised by `prepare`."""

    def prepare(self, setup: WorkerSetup) -> None:
        """Prepare the problem."""
        self._worker = ChunkWorker(setup)

    def train(self, start: Any, order: ChunkOrder) -> TrainedChunk:
        """Train a chunk."""
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
