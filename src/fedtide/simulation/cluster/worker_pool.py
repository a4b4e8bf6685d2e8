"""The workers of a run on a Ray cluster, and the chunks that they train."""

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

_logger = logging.getLogger("fedtide")

MAX_ATTEMPTS = 3
"""How often a chunk may lose its worker, and a starting worker its process."""
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
    """An actor.

    Args:
        actor: its handle.
        ready: a reference that resolves once it is prepared.
        chunks: the chunks that it has, by the references to its results.
    """

    actor: Any
    ready: Any
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
        self._ray, self._setup = ray, _put_setup(ray, setup)
        gpus = 0 if setup.experiment.device.startswith("cpu") else 1
        self._needs = {"CPU": setup.threads, "GPU": gpus}
        self._actor_class = ray.remote(
            num_cpus=setup.threads, num_gpus=gpus, max_restarts=0, scheduling_strategy="SPREAD"
        )(_WorkerActor)
        room = _count_room(ray, self._needs)
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
        self._starting = [self._new_worker() for _ in range(self.size)]
        self._workers: list[_Worker] = []
        self._failed_starts = 0
        self.training_seconds = 0.0

    def close(self) -> None:
        """End all workers."""
        for worker in (*self._starting, *self._workers):
            self._ray.kill(worker.actor)
        self._starting, self._workers = [], []

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
                self._send(waiting)
                if given in trained:
                    yield trained.pop(given)
                    given += 1
                elif given < drawn:
                    trained |= self._receive(waiting)
                else:
                    return
        finally:  # after an error, no one waits for the chunks that are left
            for worker in self._workers:
                worker.chunks.clear()

    def _send(self, waiting: deque[_PendingChunk]) -> None:
        """Send chunks to the workers that have the fewest."""
        while waiting and self._workers:
            worker = min(self._workers, key=lambda worker: len(worker.chunks))
            if len(worker.chunks) >= _QUEUED:
                return
            chunk = waiting.popleft()
            worker.chunks[worker.actor.train.remote(chunk.start, chunk.order)] = chunk
            chunk.attempts += 1

    def _receive(self, waiting: deque[_PendingChunk]) -> dict[int, TrainedChunk]:
        """Wait for any worker to answer; return the chunks that have been trained, by number."""
        if not self._workers:
            with activity(STARTING_WORKERS):
                self._await_worker()
            return {}
        references = [r for worker in self._workers for r in worker.chunks]
        starting = [worker.ready for worker in self._starting]
        ready, _ = self._ray.wait([*references, *starting], timeout=_POLL_SECONDS)
        found = {}
        for reference in ready:
            if reference in starting:
                self._welcome(reference)
                continue
            worker = next((w for w in self._workers if reference in w.chunks), None)
            if worker is None:  # lost with another of its chunks
                continue
            try:
                trained: TrainedChunk = self._ray.get(reference)
            except self._ray.exceptions.RayTaskError as error:
                raise _cause(self._ray, error) from error
            except self._ray.exceptions.RayError as error:
                self._replace(worker, waiting, error)
                continue
            self.training_seconds += trained.seconds
            found[worker.chunks.pop(reference).number] = trained
        return found

    def _await_worker(self) -> None:
        """Wait until a worker is prepared."""
        end = time.monotonic() + _START_SECONDS
        while not self._workers:
            if time.monotonic() > end:
                raise InvalidInputError(
                    f"cluster: no worker has started within {_START_SECONDS:.0f} seconds; the "
                    "cores may be in use (see `ray status`)"
                )
            starting = [worker.ready for worker in self._starting]
            for reference in self._ray.wait(starting, timeout=_POLL_SECONDS)[0]:
                self._welcome(reference)

    def _welcome(self, reference: Any) -> None:
        """Add a worker that reports that it is prepared, or replace it if it was lost.

        If it reports an error, it still counts as starting, so that `close` ends it.
        """
        worker = next(worker for worker in self._starting if worker.ready == reference)
        try:
            self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise _cause(self._ray, error) from error
        except self._ray.exceptions.RayError as error:
            if "No module named 'fedtide'" in str(error):
                raise InvalidInputError(
                    "cluster: a node has no fedtide; install it on all nodes"
                ) from None
            if "error raised in its creation task" in str(error):
                raised = str(error).rstrip().rpartition("\n")[2]
                raise InvalidInputError(
                    f"cluster: a node cannot load fedtide ({raised:.150}); install the same on all "
                    "nodes"
                ) from None
            self._failed_starts += 1
            if self._failed_starts >= MAX_ATTEMPTS:
                raise InvalidInputError(
                    f"cluster: workers end while they start ({first_line(error)}); check the "
                    "memory of the nodes"
                ) from None
            self._starting.remove(worker)
            self._ray.kill(worker.actor)
            self._starting.append(self._new_worker())
            return
        self._starting.remove(worker)
        self._failed_starts = 0
        self._workers.append(worker)

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
        self._starting.append(self._new_worker())
        _logger.warning("cluster: a worker was lost and is replaced")

    def _new_worker(self) -> _Worker:
        actor = self._actor_class.remote()
        return _Worker(actor, actor.prepare.remote(self._setup))


class _WorkerActor:
    """A worker as Ray runs it; problems at the start are raised by `prepare`."""

    def prepare(self, setup: WorkerSetup) -> None:
        """Prepare the problem."""
        with _errors_that_travel():
            self._worker = ChunkWorker(setup)

    def train(self, start: Any, order: ChunkOrder) -> TrainedChunk:
        """Train a chunk."""
        with _errors_that_travel():
            return self._worker.train(start, order)


@contextmanager
def _errors_that_travel() -> Iterator[None]:
    """Raise an error that cannot be pickled, such as a user's own, as a RuntimeError.

    Otherwise Ray would report the worker as lost.
    """
    from ray import cloudpickle

    try:
        yield
    except Exception as error:
        try:
            cloudpickle.loads(cloudpickle.dumps(error))
        except Exception:
            alike = RuntimeError(f"{type(error).__name__}: {error}")
            raise alike.with_traceback(error.__traceback__) from None
        raise


def _count_room(ray: Any, needs: dict[str, int]) -> int:
    """Return how many workers with these needs the nodes of the cluster have room for."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(
        min(int(node.get(name, 0) // need) for name, need in needs.items() if need)
        for node in nodes
    )


def _put_setup(ray: Any, setup: WorkerSetup) -> Any:
    """Return a reference to the setup.

    Raises:
        InvalidInputError: a user's object in it cannot be pickled.
    """
    try:
        return ray.put(setup)
    except ray.exceptions.RayError:  # such as a store without room
        raise
    except Exception as error:  # Ray's own message contains all data
        raise InvalidInputError(
            "cluster: the model, the loss or the data cannot be sent to the workers "
            f"({first_line(error.__cause__ or error, 150)}); leave out what cannot be pickled, "
            "such as locks and open files"
        ) from None


def _cause(ray: Any, error: Any) -> BaseException:
    """Return the error raised in a worker, without Ray's wrapping."""
    cause = error.cause
    if isinstance(cause, ray.exceptions.RaySystemError):
        reason = first_line(cause).removeprefix("System error: ")
        return InvalidInputError(
            f"cluster: a node cannot read what the run sends to it ({reason}); copy modules of "
            "your own to all nodes, where Python finds them"
        )
    return cause if isinstance(cause, BaseException) else error
