"""The messages between a run and its workers, and what a worker does with them.

A worker prepares the problem once. In each round it gets what all clients share (`RoundStart`,
mainly the model) and, for each chunk, who trains and from which step on (`ChunkOrder`). It plans
the minibatches itself, since they are a function of the seed, the client and the step. Tensors
travel as arrays, which Ray moves without copying.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from importlib.metadata import version
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.algorithms import ClientUpdates, Cohort, FedAvg, Instructions
from fedtide.algorithms.base import WeightedTotal
from fedtide.errors import InvalidInputError
from fedtide.participation import Full
from fedtide.simulation.experiment import Experiment
from fedtide.simulation.inputs import fingerprint_experiment, prepare_task
from fedtide.simulation.local_round import LocalRound
from fedtide.simulation.process_settings import ProcessSettings
from fedtide.spec import key, session
from fedtide.training.trainers.select import TrainerName

Message = TypeVar("Message")

_ON_DEVICE = ("model", "correction", "deltas", "gradients", "total", "buffers")
"""The tensors of messages that belong on the device of the model; ids and weights do not."""


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


@dataclass(frozen=True)
class TrainedChunk:
    """What a worker returns.

    Args:
        updates: the updates, or their sum if that was asked for and all are finite.
        buffers: the clients' buffers, shape (S, d_b); None: there are none.
        seconds: how long the chunk took.
    """

    updates: ClientUpdates | WeightedTotal
    buffers: Tensor | None
    seconds: float


def to_arrays(message: Message) -> Message:
    """Return a message with arrays in place of tensors."""
    return _convert(message, Tensor, lambda _, tensor: tensor.detach().cpu().contiguous().numpy())


def to_tensors(message: Message, like: Tensor) -> Message:
    """Return the message with tensors again: copies, as arrays from Ray cannot be written to."""

    def to_tensor(name: str, array: NDArray[Any]) -> Any:
        if name == "steps_taken":
            return array
        return torch.tensor(array, device=like.device if name in _ON_DEVICE else None)

    return _convert(message, np.ndarray, to_tensor)


def _convert(message: Message, kind: type, change: Callable[[str, Any], Any]) -> Message:
    """Return a message with `change(name, value)` for all fields of a type, also in its parts."""
    changed: dict[str, Any] = {}
    for name, value in vars(message).items():
        if isinstance(value, kind):
            changed[name] = change(name, value)
        elif is_dataclass(value):
            changed[name] = _convert(value, kind, change)
    return replace(message, **changed)  # type: ignore[type-var]


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
                self._local, self._like = _prepare(setup)
        except InvalidInputError as error:
            node = socket.gethostname()
            raise InvalidInputError(f"cluster: on the node {node}: {error}") from None

    def train(self, start: RoundStart, order: ChunkOrder) -> TrainedChunk:
        """Train a chunk."""
        began = time.perf_counter()
        start, order = to_tensors(start, self._like), to_tensors(order, self._like)
        self._local.planner.steps_taken[order.cohort.clients.numpy()] = order.steps_taken
        buffers, weights = order.buffers, order.weights
        if weights is not None:
            weights = weights.to(self._like.device)
        if start.buffers is not None:
            buffers = start.buffers.expand(len(order.cohort), -1)
        updates, buffers = self._local.train(
            replace(order.instructions, model=start.model),
            order.cohort,
            start.lr,
            buffers,
            lambda _: weights,
        )
        return to_arrays(TrainedChunk(updates, buffers, time.perf_counter() - began))


def _prepare(setup: WorkerSetup) -> tuple[LocalRound, Tensor]:
    """Return what trains chunks, and the initial model.

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
    return local, task.start


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
