"""The trainer for small models: all clients of a chunk at once, stacked tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.algorithms.base import Instructions
from fedtide.device_copies import to_device_of
from fedtide.problems.base import BatchPlan, Task
from fedtide.training import devices
from fedtide.training.local_training import LocalTraining
from fedtide.training.threads import CoreThreads
from fedtide.training.trainers.base import CohortResult, Trained, Trainer
from fedtide.training.trainers.block_runner import BlockRunner

_BLOCK_STEPS = (
    8  # most steps captured together; those of recurrent networks are long and captured one by one
)
_CHUNK_BYTES = 8 * 2**20  # most bytes of models absorbed together, where copying them pays
_CORE_BYTES = 2**19  # bytes of a chunk's models that fit into one core's cache with all they need
_FEWEST = 5  # fewest clients of a core's chunk, even if larger: each operation has a fixed cost
_CACHE_BYTES = 2**20  # largest model that fits into a core's cache
_SPLIT = 2**22  # cost of each step of an additional chunk, in parameters times samples
_CALL = 2  # cost of starting a chunk, in clients
_WAKE = 5 * 2**19  # cost of waking a thread, in parameters times samples that a client trains on
_MOST_WAKE = 5  # limit of the same in clients: even the smallest take some time


@dataclass(frozen=True)
class _Chunks:
    """How a cohort is divided into chunks.

    Args:
        sizes: the sizes that chunks may have, in increasing order, starting with 1.
        full: the least share of a chunk that must be clients; the rest repeats the last one.
    """

    sizes: tuple[int, ...]
    full: float

    def fill(self, clients: int, most: int) -> list[int]:
        """Return the sizes of chunks of at most `most` for this many clients."""
        chunks = []
        while clients > 0:
            sizes = [size for size in self.sizes if size <= most]
            enough = next((size for size in sizes if size >= clients), 0)
            fits = enough and clients >= self.full * enough
            chunks.append(enough if fits else max(size for size in sizes if size <= clients))
            clients -= chunks[-1]
        return chunks


@cache
def _divide(chunks: _Chunks, clients: int, threads: int, wake: int = 0) -> list[int]:
    """Return the sizes of the chunks with which the threads finish soonest.

    Args:
        chunks: the possible sizes.
        clients: S.
        threads: how many there are; the first is awake.
        wake: the cost of waking each other one, in clients.

    >>> chunks = _Chunks((1, 5, 10, 25), full=0.8)
    >>> _divide(chunks, 30, threads=1), _divide(chunks, 30, threads=2)
    ([25, 5], [5, 5, 5, 5, 5, 5])
    """
    if threads == 1:
        return chunks.fill(clients, chunks.sizes[-1])
    candidates = [chunks.fill(clients, most) for most in reversed(chunks.sizes)]
    return min(candidates, key=lambda sizes: _longest(sizes, threads, wake))


def _longest(sizes: list[int], threads: int, wake: int) -> int:
    """Return when the last thread finishes if each takes the next chunk as soon as it is free."""
    free = [0] + [wake] * (threads - 1)
    ends = 0
    for size in sizes:
        thread = free.index(min(free))
        free[thread] += size + _CALL
        ends = max(ends, free[thread])
    return ends


def _group(plan: BatchPlan, model_size: int) -> list[NDArray[np.int64]]:
    """Return groups of clients that train together, in order; empty: one group in the given order.

    If all take equally many steps, clients with minibatches of about the same width form a group.
    Otherwise all form one group, those with the most steps first, so that the clients that finish
    early are the last of each chunk.
    """
    if plan.mask is None and plan.active is None:
        return []
    widths, steps = plan.widths, plan.steps
    if (np.diff(steps) != 0).any():  # with epochs, narrow minibatches mean a single step
        widths = None
    widths = np.zeros_like(steps) if widths is None else _merge(widths, model_size)
    if not np.diff(widths).any() and (np.diff(steps) <= 0).all():
        return []
    order = np.lexsort((-steps, widths))
    return np.split(order, np.flatnonzero(np.diff(widths[order])) + 1)


def _merge(widths: NDArray[np.int64], model_size: int) -> NDArray[np.int64]:
    """Return the widths, shape (S,), raised to the next larger where padding is the cheaper choice.

    >>> _merge(np.array([32, 64, 64, 512]), model_size=10_000)
    array([ 64,  64,  64, 512])
    """
    merged = widths.copy()
    for own, wider in pairwise(np.unique(widths)):
        clients = merged == own
        if clients.sum() * (wider - own) * model_size < _SPLIT:
            merged[clients] = wider
    return merged


def _wake(plan: BatchPlan, model_size: int) -> int:
    """Return the cost of waking a thread, in clients that train as planned."""
    samples = 1 if plan.positions is None else plan.positions.shape[2]
    return min(_MOST_WAKE, _WAKE // max(1, model_size * samples * len(plan.step_index)))


_USUAL = _Chunks((1, 5, 10, 25), full=0.8)
_MEDIUM_BYTES = 64 * 2**10
_MEDIUM = _Chunks(_USUAL.sizes, full=1 / 3)
"""For models so small that training copies of a client costs less than an additional chunk."""
_SMALL_BYTES = 4 * 2**10
_SMALL = _Chunks((1, 5, 10, 25, 100), full=1 / 3)
"""For models so small that a step takes as long for 100 clients as for one."""


class StackedTrainer(Trainer):
    """Takes each local step for a whole chunk of clients at once (`torch.func.vmap`, captured).

    Compiled chunks of models of up to `_CACHE_BYTES` run outside the interpreter's lock, each on
    one core; all others run one after another, each on all cores.

    Args:
        task: what is learnt.
        local: what a client does in a round.
        compiled: whether to compile the local steps (needs a C++ compiler on CPU).
    """

    def __init__(self, task: Task, local: LocalTraining, compiled: bool = False) -> None:
        self.name = "compiled" if compiled else "stacked"
        self._task = task
        model = task.layout.size * task.start.element_size()
        parallel = compiled and devices.is_cpu(task.start) and model <= _CACHE_BYTES
        self._threads = CoreThreads(torch.get_num_threads()) if parallel else None
        self.own_threads = parallel
        chunks = _USUAL
        if model <= _MEDIUM_BYTES and not compiled:
            chunks = _SMALL if model <= _SMALL_BYTES else _MEDIUM
        if not devices.is_cpu(task.start):
            chunks = _Chunks(devices.chunk_sizes(), full=0.75)
        memory = _CORE_BYTES if parallel else devices.stack_bytes(task.start, _CHUNK_BYTES)
        few = parallel and _FEWEST * model <= _CACHE_BYTES
        fit = max(_FEWEST if few else 1, memory // model)
        self._cut = replace(chunks, sizes=tuple(size for size in chunks.sizes if size <= fit))
        self.chunk_sizes = len(self._cut.sizes)
        sizes = self._cut.sizes if devices.is_cpu(task.start) else ()
        self._runner = BlockRunner(
            task,
            local,
            stacked=True,
            compiled=compiled,
            block_steps=1 if task.is_recurrent else _BLOCK_STEPS,
            sizes=sizes,
        )
        largest = self._cut.sizes[-1]
        self.chunk = max(1, _CHUNK_BYTES // model // largest) * largest if parallel else largest

    @torch.no_grad()
    def train(
        self,
        instructions: Instructions,
        plan: BatchPlan,
        lr: float,
        buffers: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Trained:
        is_cpu = devices.is_cpu(instructions.model)
        groups = _group(plan, len(instructions.model)) if is_cpu else []
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
        for rows, _ in self._chunks(len(order), _wake(plan, len(instructions.model))):
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
        size, model = len(plan.clients), instructions.model
        if size == 0:
            return CohortResult(model, buffers, size, weights).trained
        inputs, correction = self._task.batch_inputs(plan), instructions.correction
        start = self._runner.start(instructions, len(plan.step_index), lr)
        if self._threads is None and size in self._cut.sizes and weights is None:
            return self._runner.prepare(start, plan, inputs, correction, buffers)()
        found = CohortResult(model, buffers, size, weights, self.chunk)

        def prepare(chunk: tuple[slice, Any]) -> Callable[[], None]:
            rows, which = chunk
            own = rows.stop - rows.start
            is_whole = which is rows and own == size
            there = which
            if which is not rows:
                there = to_device_of(torch.from_numpy(which), model)
            run = self._runner.prepare(
                start,
                plan if is_whole else plan.select(which),
                tuple(part[:, there] for part in inputs),
                None if correction is None else correction[there],
                None if buffers is None else buffers[there],
            )

            def train_chunk() -> None:
                with torch.no_grad():  # applies to the current thread only
                    found.put(rows.start, run().select(slice(own)))

            return train_chunk

        chunks = list(self._chunks(size, _wake(plan, len(model))))
        if self._threads is not None:
            self._threads.map(prepare, chunks)
        else:
            for chunk in chunks:
                prepare(chunk)()
        return found.trained

    def _chunks(self, clients: int, wake: int) -> Iterator[tuple[slice, Any]]:
        """Yield the rows of each chunk, and these padded with the last one to a possible size."""
        assert self.chunk is not None
        threads = 1 if self._threads is None else self._threads.count
        for group in range(0, clients, self.chunk):
            first, last = group, min(group + self.chunk, clients)
            for size in _divide(self._cut, last - group, threads, wake):
                rows = slice(first, min(first + size, last))
                full = rows.stop == first + size
                yield rows, rows if full else np.arange(first, first + size).clip(max=last - 1)
                first += size
