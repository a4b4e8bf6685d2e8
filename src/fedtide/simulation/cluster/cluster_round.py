"""The clients' part of a round on the workers of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from fedtide.algorithms.driver import Chunk
from fedtide.problems import Task
from fedtide.simulation.buffers import Buffers
from fedtide.simulation.cluster.chunk_worker import ChunkOrder, RoundStart
from fedtide.simulation.cluster.ray_cluster import WorkerPool
from fedtide.simulation.local_round import ChunkResult
from fedtide.simulation.round_plan import RoundPlan, without_deltas
from fedtide.training.minibatches import MinibatchPlanner


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
        """Train chunks, several at a time; yield their results in order (see `TrainChunks`)."""
        return self._pool.train(self._orders(chunks, plan, lr, buffers))

    def _orders(
        self, chunks: Iterator[Chunk], plan: RoundPlan, lr: float, buffers: Buffers | None
    ) -> Iterator[tuple[Any, ChunkOrder]]:
        """Yield what is sent to the workers."""
        shared = None if buffers is None or buffers.values.dim() > 1 else buffers.values
        model: Tensor | None = None
        start: Any = None
        for instructions, cohort in chunks:
            if instructions.model is not model:
                model = instructions.model
                # a copy, as a view would be sent with all of its storage
                start = self._pool.put(RoundStart(model.clone(), lr, shared))
            clients = cohort.clients.numpy()
            steps_taken = self._planner.steps_taken[clients]
            updates = without_deltas(self._task, cohort, lr, self._planner.skip(clients))
            own = None if buffers is None or shared is not None else buffers.of(cohort.clients)
            yield (
                start,
                ChunkOrder(
                    replace(instructions, model=model.new_empty(0)),
                    cohort,
                    steps_taken,
                    weights=None if plan.weigh is None else plan.weigh(updates),
                    buffers=own,
                ),
            )
