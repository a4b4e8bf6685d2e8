"""The clients' part of a round on the workers of a cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from fedtide.algorithms import ClientUpdates, Instructions
from fedtide.algorithms.base import WeightedTotal
from fedtide.algorithms.driver import Chunk
from fedtide.problems import Task
from fedtide.simulation.buffers import Buffers
from fedtide.simulation.cluster.chunk_worker import (
    ChunkOrder,
    Floats,
    RoundStart,
    TrainedChunk,
    to_array,
)
from fedtide.simulation.cluster.ray_cluster import WorkerPool
from fedtide.simulation.local_round import ChunkResult
from fedtide.simulation.round_plan import RoundPlan, without_deltas
from fedtide.training.minibatches import MinibatchPlanner

_SHARED = [field.name for field in fields(Instructions) if field.name != "correction"]


class ClusterRound:
    """Trains the chunks of a round on workers, with the same results as `LocalRound`, bit for bit.

    Args:
        task: what is learnt.
        planner: of the run's minibatches; it counts the steps that clients take on the workers.
        pool: the workers.
    """

    def __init__(self, task: Task, planner: MinibatchPlanner, pool: WorkerPool) -> None:
        self._task, self._planner, self._pool = task, planner, pool

    def train_chunks(
        self, chunks: Iterator[Chunk], plan: RoundPlan, lr: float, buffers: Buffers | None
    ) -> Iterator[ChunkResult]:
        """Train chunks, several at a time; yield their updates, or their sums, in order.

        Args:
            chunks: the instructions and the cohort of each chunk.
            plan: says which chunks may come back as sums.
            lr: γ_t.
            buffers: of the run; None: there are none.
        """
        sent: deque[_Sent] = deque()
        for trained in self._pool.train(self._orders(chunks, plan, lr, buffers, sent)):
            chunk = sent.popleft()
            moved = None if trained.buffers is None else chunk.tensor(trained.buffers)
            yield chunk.result(trained), moved

    def _orders(
        self,
        chunks: Iterator[Chunk],
        plan: RoundPlan,
        lr: float,
        buffers: Buffers | None,
        sent: deque[_Sent],
    ) -> Iterator[tuple[Any, ChunkOrder]]:
        """Yield what is sent to the workers; add to `sent` what is needed when it comes back."""
        shares_buffers = buffers is not None and buffers.values.dim() == 1
        shared = to_array(buffers.values) if buffers is not None and shares_buffers else None
        first: Instructions | None = None
        start: Any = None
        for instructions, cohort in chunks:
            if first is None or not _is_alike(instructions, first):
                first = instructions
                start = self._pool.put(RoundStart(_to_plain(instructions), lr, shared))
            clients = cohort.clients.numpy()
            steps_taken = self._planner.steps_taken[clients]
            updates = without_deltas(self._task, cohort, lr, self._planner.skip(clients))
            weights = None if plan.weigh is None else plan.weigh(updates)
            own = None if buffers is None or shares_buffers else buffers.of(cohort.clients)
            sent.append(_Sent(updates, weights))
            yield (
                start,
                ChunkOrder(
                    clients,
                    steps_taken,
                    weights=to_array(weights),
                    correction=to_array(instructions.correction),
                    buffers=to_array(own),
                ),
            )


@dataclass(frozen=True)
class _Sent:
    """What is known of a chunk before it has trained.

    Args:
        updates: the updates without deltas.
        weights: a_n if Σ a_n Δ_n is asked for; None: the updates are.
    """

    updates: ClientUpdates
    weights: Tensor | None

    def result(self, trained: TrainedChunk) -> ClientUpdates | WeightedTotal:
        """Return the chunk's updates, or their sum."""
        if trained.total is not None:
            assert self.weights is not None
            total = self.tensor(trained.total)
            return WeightedTotal(self.updates.clients, self.weights, total)
        assert trained.deltas is not None
        gradients = None if trained.gradients is None else self.tensor(trained.gradients)
        return replace(self.updates, deltas=self.tensor(trained.deltas), gradients=gradients)

    def tensor(self, array: Floats) -> Tensor:
        """Return a copy on the device of the run: arrays from Ray cannot be written to."""
        return torch.tensor(array, device=self.updates.deltas.device)


def _is_alike(instructions: Instructions, first: Instructions) -> bool:
    """Return whether the instructions of two chunks differ in nothing but their corrections."""
    return all(
        getattr(instructions, name) is getattr(first, name)
        if name == "model"
        else getattr(instructions, name) == getattr(first, name)
        for name in _SHARED
    )


def _to_plain(instructions: Instructions) -> dict[str, Any]:
    """Return the part of the instructions that chunks share, with the model as an array."""
    plain = {name: getattr(instructions, name) for name in _SHARED}
    return plain | {"model": to_array(instructions.model)}
