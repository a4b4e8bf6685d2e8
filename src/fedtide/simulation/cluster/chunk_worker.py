"""The messages between a run and its workers, and what a worker does with them.

A worker prepares the problem once. In each round it gets what all clients share (`RoundStart`,
mainly the model) and, for each chunk, who trains and from which step on (`ChunkOrder`). It plans
the minibatches itself, since they are a function of the seed, the client and the step.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.algorithms import Cohort, FedAvg, Instructions
from fedtide.algorithms.base import WeightedTotal
from fedtide.content_hash import hash_once
from fedtide.errors import InvalidInputError
from fedtide.participation import Full
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.fingerprints import fingerprint_experiment
from fedtide.simulation.local_round import LocalRound
from fedtide.simulation.process_settings import ProcessSettings
from fedtide.simulation.task_cache import content_key, prepare_task
from fedtide.training.trainers.select import TrainerName

Floats = NDArray[np.floating[Any]]


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
        return content_key(self.experiment), self.trainer, self.threads, self.process

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
        instructions: the fields of `Instructions`, with the model as an array, without corrections.
        lr: γ_t.
        buffers: the initial buffers of all clients, shape (d_b,); None: they share none.
    """

    instructions: dict[str, Any]
    lr: float
    buffers: Floats | None


@dataclass(frozen=True)
class ChunkOrder:
    """A chunk to train.

    Args:
        clients: who trains, shape (S,).
        steps_taken: how many local steps each has taken before, shape (S,).
        weights: a_n in the model's dtype, shape (S,), to return Σ a_n Δ_n; None: return each Δ_n.
        correction: of each client's gradients, shape (S, d); None: zero.
        buffers: each client's own initial buffers, shape (S, d_b); None: none of their own.
    """

    clients: NDArray[np.int64]
    steps_taken: NDArray[np.int32]
    weights: Floats | None = None
    correction: Floats | None = None
    buffers: Floats | None = None


@dataclass(frozen=True)
class TrainedChunk:
    """What a worker returns.

    Args:
        deltas: the updates, shape (S, d); None if their sum was asked for and all are finite.
        total: Σ a_n Δ_n, shape (d,), if `deltas` is None; otherwise None.
        gradients: the reported ones, shape (S, d); None unless asked for.
        buffers: the clients' buffers, shape (S, d_b); None: there are none.
        seconds: how long the chunk took.
    """

    deltas: Floats | None
    total: Floats | None
    gradients: Floats | None
    buffers: Floats | None
    seconds: float


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
        experiment = setup.experiment
        with _named_node(), hash_once():
            if (here := installed_versions()) != setup.versions:
                raise InvalidInputError(
                    f"it has {here}, and the run {setup.versions}; install the same on all nodes"
                )
            task = prepare_task(experiment)
            if fingerprint_experiment(experiment)["data"] != setup.data:
                raise InvalidInputError(
                    "its data differ from those of the run; copy them to all nodes"
                )
            self._local = LocalRound(
                task, experiment.local, experiment.seed, setup.trainer, 0, experiment.compile
            )
            if self._local.trainer.name != setup.trainer:
                raise InvalidInputError(
                    f"it cannot compile, but the run's trainer is {setup.trainer}; install g++ on "
                    "all nodes, or set compile: false"
                )
        self._like = task.start

    def train(self, start: RoundStart, order: ChunkOrder) -> TrainedChunk:
        """Train a chunk."""
        began = time.perf_counter()
        self._local.planner.steps_taken[order.clients] = order.steps_taken
        instructions = self._instructions(start, order)
        cohort = Cohort.uniform(torch.tensor(order.clients))
        weights = None if order.weights is None else self._tensor(order.weights)
        trained, buffers = self._local.train(
            instructions, cohort, start.lr, self._buffers(start, order), lambda _: weights
        )
        if isinstance(trained, WeightedTotal):
            deltas, total, gradients = None, trained.total, None
        else:
            deltas, total, gradients = trained.deltas, None, trained.gradients
        return TrainedChunk(
            to_array(deltas),
            to_array(total),
            to_array(gradients),
            to_array(buffers),
            time.perf_counter() - began,
        )

    def _instructions(self, start: RoundStart, order: ChunkOrder) -> Instructions:
        shared = start.instructions | {"model": self._tensor(start.instructions["model"])}
        correction = None if order.correction is None else self._tensor(order.correction)
        return Instructions(**shared, correction=correction)

    def _buffers(self, start: RoundStart, order: ChunkOrder) -> Tensor | None:
        if order.buffers is not None:
            return self._tensor(order.buffers)
        return (
            None
            if start.buffers is None
            else self._tensor(start.buffers).expand(len(order.clients), -1)
        )

    def _tensor(self, array: Floats) -> Tensor:
        """Return a copy on the device: arrays from Ray cannot be written to."""
        return torch.tensor(array, device=self._like.device)


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


def to_array(tensor: Tensor | None) -> Floats | None:
    """Return a tensor as an array, which Ray moves without copying."""
    return None if tensor is None else tensor.detach().cpu().contiguous().numpy()


@contextmanager
def _named_node() -> Iterator[None]:
    """Name the node in errors raised in this context."""
    try:
        yield
    except InvalidInputError as error:
        raise InvalidInputError(f"cluster: on the node {socket.gethostname()}: {error}") from None
