"""Metrics of the final model after each client has fine-tuned it on its own data."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtide.algorithms import Instructions
from fedtide.problems import Task
from fedtide.simulation.buffers import Buffers
from fedtide.training import LocalTraining
from fedtide.training.minibatches import MinibatchPlanner
from fedtide.training.trainers.base import Trainer

_CHUNK = 100  # clients whose models are in memory together


def personalised_figures(
    task: Task,
    trainer: Trainer,
    local: LocalTraining,
    x: Tensor,
    lr: float,
    seed: int,
    buffers: Buffers | None = None,
) -> dict[str, NDArray[np.float64]]:
    """Return each client's metrics after it has trained from x on its own samples.

    Compared with the metrics of x itself, they tell whether the shared model or a model of its own
    serves a client better.

    Args:
        task: what is learnt, without the weights of an objective.
        trainer: trains the clients as `local` says.
        local: the local steps of the fine-tuning, which start with the first epoch.
        x: the model, shape (d,).
        lr: the learning rate.
        seed: of the minibatches.
        buffers: the initial buffers; None: there are none.

    Returns:
        The per-client metrics of an evaluation, with the prefix `personalised_`, each of shape
        (N,).
    """
    planner = MinibatchPlanner(task.population, local, seed)
    parts = []
    for first in range(0, task.population.clients, _CHUNK):
        clients = np.arange(first, min(first + _CHUNK, task.population.clients))
        start = None if buffers is None else buffers.of(torch.from_numpy(clients).to(x.device))
        trained = trainer.train(Instructions(x), planner.plan(clients), lr, start)
        parts.append(task.evaluate_clients(x + trained.deltas, clients, trained.buffers))
    return {
        f"personalised_{name}": np.concatenate([part[name] for part in parts]) for name in parts[0]
    }
