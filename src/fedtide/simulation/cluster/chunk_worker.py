"""The messages between a run and its workers, and what a worker does with them.

A worker prepares the problem once. In each round it gets what all clients share (`RoundStart`,
mainly the model) and, for each chunk, who trains and from which step on (`ChunkOrder`). It plans
the minibatches itself, since they are a function of the seed, the client and the step.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.algorithms import Cohort, FedAvg, Instructions
from fedtide.errors import InvalidInputError
from fedtide.participation import Full
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.inputs import fingerprint_experiment, prepare_task
from fedtide.simulation.local_round import ChunkResult, LocalRound
from fedtide.simulation.process_settings import ProcessSettings
from fedtide.spec import key, session
from fedtide.training.trainers.select import TrainerName


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker needs to know before the first round.

    Args:
        experiment: the part of the run's experiment that `training_part` returns.
        trainer: the trainer's name; never "auto", since all workers must compute alike.
        threads: the number of PyTorch threads in the process of the run.
        process: other settings of that process.
        versions: of Python and the libraries there.
        data: the fingerprint of the data there.
    """

    experiment: Experiment
    trainer: TrainerName
    threads: int
    process: ProcessSettings
    versions: Mapping[str, str]
    data: str | None

    @property
    def key(self) -> Any:
        """A key that is equal for runs whose chunks the same workers can train."""
        return key(self.experiment), self.trainer, self.threads, self.process

    @classmethod
    def of_run(cls, experiment: Experiment, trainer: TrainerName) -> WorkerSetup:
        """Return the setup with which a worker computes the same as this process."""
        part = training_part(experiment)
        threads, data = torch.get_num_threads(), fingerprint_experiment(part)["data"]
        process = ProcessSettings.current()
        return cls(part, trainer, threads, process, installed_versions(), data)


@dataclass(frozen=True)
class RoundStart:
    """What the chunks of a round share.

    Args:
        model: x, shape (d,).
        lr: γ_t.
        buffers: the initial buffers of all clients, shape (d_b,); None: they share none.
    """

    model: Tensor
    lr: float
    buffers: Tensor | None


@dataclass(frozen=True)
class ChunkOrder:
    """A chunk to train.

    Args:
        instructions: how it trains; the model is that of `RoundStart`.
        cohort: who trains.
        steps_taken: how many local steps each client has taken before, shape (S,).
        weights: a_n, shape (S,), to return Σ a_n Δ_n; None: return each Δ_n.
        buffers: each client's own initial buffers, shape (S, d_b); None: none of their own.
    """

    instructions: Instructions
    cohort: Cohort
    steps_taken: NDArray[np.int32]
    weights: Tensor | None = None
    buffers: Tensor | None = None


class ChunkWorker:
    """Trains chunks with the same results, bit for bit, as the process of the run would.

    Args:
        setup: what is trained, and how.

    Raises:
        InvalidInputError: the node has other versions or data than the process of the run, lacks
            the data, or has no compiler although the run compiles.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        torch.set_num_threads(setup.threads)
        setup.process.apply()
        try:
            with session():
                self._local = _prepare(setup)
        except InvalidInputError as error:
            node = socket.gethostname()
            raise InvalidInputError(f"cluster: on the node {node}: {error}") from None

    def train(self, start: RoundStart, order: ChunkOrder) -> tuple[ChunkResult, float]:
        """Train a chunk; return its result, with the sum if that is finite, and the seconds."""
        began = time.perf_counter()
        clients, weights = order.cohort.clients, order.weights
        self._local.planner.steps_taken[clients.numpy()] = order.steps_taken
        if weights is not None:
            weights = weights.to(start.model.device)
        shared = start.buffers
        trained = self._local.train(
            replace(order.instructions, model=start.model),
            order.cohort,
            start.lr,
            order.buffers if shared is None else shared.expand(len(clients), -1),
            lambda _: weights,
        )
        return trained, time.perf_counter() - began


def _prepare(setup: WorkerSetup) -> LocalRound:
    """Return what trains chunks.

    Raises:
        InvalidInputError: as for `ChunkWorker`.
    """
    experiment = setup.experiment
    if (here := installed_versions()) != setup.versions:
        raise InvalidInputError(
            f"it has {here}, and the run {setup.versions}; install the same on all nodes"
        )
    task = prepare_task(experiment)
    if fingerprint_experiment(experiment)["data"] != setup.data:
        raise InvalidInputError("its data differ from those of the run; copy them to all nodes")
    local = LocalRound(
        task, experiment.local, experiment.seed, setup.trainer, 0, experiment.compile
    )
    if local.trainer.name != setup.trainer:
        raise InvalidInputError(
            f"it cannot compile, but the run's trainer is {setup.trainer}; install g++ on all "
            "nodes, or set compile: false"
        )
    return local


def training_part(experiment: Experiment) -> Experiment:
    """Return an experiment that keeps only the fields that affect how a chunk trains."""
    return Experiment(
        problem=experiment.problem,
        participation=Full(),
        algorithm=FedAvg(),
        local=experiment.local,
        rounds=1,
        seed=experiment.seed,
        objective=experiment.objective,
        dtype=experiment.dtype,
        device=experiment.device,
        compile=experiment.compile,
    )


def installed_versions() -> dict[str, str]:
    """Return the versions on which the bits of a result depend."""
    python = ".".join(map(str, sys.version_info[:2]))
    return {"Python": python, **{name: version(name) for name in ("fedtide", "torch", "numpy")}}
