"""The trainer for small models: all clients of a chunk at once, stacked tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.algorithms.base import Instructions
from fedtide.problems.base import BatchPlan, Task
from fedtide.training import devices
from fedtide.training.local_training import LocalTraining
from fedtide.training.threads import CoreThreads
from fedtide.training.trainers.base import CohortResult, Trained, Trainer
from fedtide.training.trainers.block_runner import BlockRunner

Positions = NDArray[np.int64]

_BLOCK_STEPS = 8
"""Most steps captured together; those of recurrent networks are long and captured one by one."""
_SIZES = (1, 5, 10, 25, 100)
"""The sizes that chunks may have on a CPU: steps are captured once for each."""
_LARGE = 25
"""More clients in a chunk pay only if all of it fits into a core's cache."""
_CORE_BYTES = 400 * 2**10
"""Bytes of the models of a chunk that fit into one core's cache with all that they need."""
_CACHE_BYTES = 2**23
"""The same for the cache that all cores share."""
_OVERHEAD = 2**22
"""What a step of a further chunk costs besides its clients', in parameters times samples."""


class StackedTrainer(Trainer):
    """Takes each local step for a whole chunk of clients at once (`torch.func.vmap`, captured).

    Compiled chunks of models of which two fit into a core's cache run outside the interpreter's
    lock, each on one core; all others run one after another, each on all cores.

    How a cohort is cut into chunks: a chunk has as many clients as fit into a cache, and no more
    than its thread's share of the cohort; a cohort whose step costs less than a quarter of the
    overhead of a chunk stays on one thread, as waking another would take as long. The rest of a
    cohort fills the last chunk up to one of the few sizes for which steps are captured, with copies
    of its last client, as long as their steps cost less than that overhead; otherwise it is cut
    into smaller ones. So two measured numbers decide: the size of a cache, and the overhead.

    Args:
        task: what is learnt.
        local: what a client does in a round.
        compiled: whether to compile the local steps (needs a C++ compiler on CPU).
    """

    def __init__(self, task: Task, local: LocalTraining, compiled: bool = False) -> None:
        self.name = "compiled" if compiled else "stacked"
        self._task = task
        model = task.layout.size * task.start.element_size()
        self._is_cpu = is_cpu = devices.is_cpu(task.start)
        self.own_threads = compiled and is_cpu and model <= 2 * _CORE_BYTES
        self._threads = CoreThreads(torch.get_num_threads()) if self.own_threads else None
        if is_cpu:
            cache = _CORE_BYTES if self.own_threads else _CACHE_BYTES
            limits = {s: cache if s <= _LARGE else _CORE_BYTES for s in _SIZES}
            if self.own_threads:  # a large chunk would leave the other threads idle
                limits = {s: limit for s, limit in limits.items() if s <= _LARGE}
            sizes = [size for size, limit in limits.items() if size * model <= limit]
        else:
            memory = devices.stack_bytes(task.start, _CACHE_BYTES)
            sizes = [size for size in devices.chunk_sizes() if size * model <= memory]
        self._sizes = sizes or [1]
        self.chunk_sizes = len(self._sizes)
        largest = self._sizes[-1]
        self.chunk = (
            max(1, _CACHE_BYTES // model // largest) * largest if self.own_threads else largest
        )
        self._runner = BlockRunner(
            task,
            local,
            stacked=True,
            compiled=compiled,
            block_steps=1 if task.is_recurrent else _BLOCK_STEPS,
            sizes=self._sizes if is_cpu else (),
        )

    @torch.no_grad()
    def train(
        self,
        instructions: Instructions,
        plan: BatchPlan,
        lr: float,
        buffers: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Trained:
        groups = self._group(plan)
        if not groups:
            return self._train(instructions, plan, lr, buffers, weights)
        parts = [
            self._train(
                instructions.select(group),
                plan.select(group),
                lr,
                None if buffers is None else buffers[group],
            )
            for group in groups
        ]
        order = np.concatenate(groups)
        trained = Trained.join(parts).select(np.argsort(order))
        if weights is None:
            return trained
        found = CohortResult(instructions.model, buffers, len(order), weights, self.chunk)
        for rows, _ in self._cut(plan):
            found.put(rows.start, trained.select(rows))
        return found.trained

    def _train(
        self,
        instructions: Instructions,
        plan: BatchPlan,
        lr: float,
        buffers: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Trained:
        """Train clients in their order, chunk by chunk."""
        clients, chunks = len(plan.clients), list(self._cut(plan))
        steps = self._runner.start(instructions, plan, lr, buffers)
        if self._threads is None and weights is None and [size for _, size in chunks] == [clients]:
            return self._runner.prepare(steps)()  # nothing to collect or to copy
        found = CohortResult(instructions.model, buffers, clients, weights, self.chunk)

        def prepare(chunk: tuple[slice, int]) -> Callable[[], None]:
            rows, size = chunk
            own = rows.stop - rows.start
            which: slice | Positions = rows
            if size > own:  # copies of the last client
                which = np.arange(rows.start, rows.start + size).clip(max=rows.stop - 1)
            run = self._runner.prepare(steps.select(which))

            def train_chunk() -> None:
                with torch.no_grad():  # applies to the current thread only
                    found.put(rows.start, run().select(slice(own)))

            return train_chunk

        if self._threads is not None:
            self._threads.map(prepare, chunks)
        else:
            for chunk in chunks:
                prepare(chunk)()
        return found.trained

    def _group(self, plan: BatchPlan) -> list[Positions]:
        """Return groups of clients that train together, in order; empty: one, in the given order.

        If all take equally many steps, clients with minibatches of about the same width form a
        group. Otherwise all form one group, those with the most steps first, so that the clients
        that finish early are the last of each chunk.
        """
        if not self._is_cpu or (plan.mask is None and plan.active is None):
            return []
        widths, steps = plan.widths, plan.steps
        if widths is None or (np.diff(steps) != 0).any():  # with epochs, narrow means a single step
            widths = np.zeros_like(steps)
        widths = _merge(widths, self._task.layout.size)
        if not np.diff(widths).any() and (np.diff(steps) <= 0).all():
            return []
        order = np.lexsort((-steps, widths))
        return np.split(order, np.flatnonzero(np.diff(widths[order])) + 1)

    def _cut(self, plan: BatchPlan) -> Iterator[tuple[slice, int]]:
        """Yield the rows of each chunk, and the size up to which copies of the last one fill it."""
        samples = 1 if plan.positions is None else plan.positions.shape[2]
        cost = self._task.layout.size * samples if self._is_cpu else 0
        threads = 1 if self._threads is None else self._threads.count
        assert self.chunk is not None
        for group in range(0, len(plan.clients), self.chunk):
            first, end = group, min(group + self.chunk, len(plan.clients))
            for size in _cut(end - first, self._sizes, threads, cost):
                yield slice(first, min(first + size, end)), size
                first += size


def _cut(clients: int, sizes: Sequence[int], threads: int, cost: int) -> Iterator[int]:
    """Yield the sizes of the chunks into which a cohort is cut.

    Args:
        clients: how many there are.
        sizes: the sizes that chunks may have, in increasing order, starting with 1.
        threads: how many train chunks at the same time.
        cost: of a step of one client, in parameters times samples.

    >>> [list(_cut(13, (1, 5, 10, 25), threads, cost=10**6)) for threads in (1, 2)]
    [[10, 5], [10, 5]]
    >>> list(_cut(10, (1, 5, 10, 25), threads=2, cost=10**6))
    [5, 5]
    """
    if 4 * clients * cost < _OVERHEAD:  # waking another thread would take as long
        threads = 1
    share = -(-clients // threads)
    most = next((size for size in sizes if size >= share), sizes[-1])
    while clients > 0:
        size = next(size for size in sizes if size >= min(clients, most))
        if (size - clients) * cost > _OVERHEAD:
            size = max(size for size in sizes if size <= clients)
        yield size
        clients -= size


def _merge(widths: Positions, model_size: int) -> Positions:
    """Return the widths, shape (S,), raised to the next larger where padding is the cheaper choice.

    >>> _merge(np.array([32, 64, 64, 512]), model_size=10_000)
    array([ 64,  64,  64, 512])
    """
    merged = widths.copy()
    for own, wider in pairwise(np.unique(widths)):
        clients = merged == own
        if clients.sum() * (wider - own) * model_size < _OVERHEAD:
            merged[clients] = wider
    return merged
