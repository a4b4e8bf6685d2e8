"""Running a federation in this process, and the same experiment in the simulator."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context

import fedtide as ft
from fedtide.algorithms import Instructions
from fedtide.flower.client.app import custom_client
from fedtide.flower.protocol import TrainRequest, Update, record_of
from fedtide.flower.server.strategy import FedTide
from fedtide.problems import Task
from fedtide.simulation.local_round import LocalRound

from .fake import FakeGrid, Node


def quadratic(clients: int = 5, d: int = 3) -> ft.problems.Quadratic:
    draws = np.random.default_rng(7)
    roots = draws.normal(size=(clients, d, d))
    matrices = roots @ roots.transpose(0, 2, 1) / d + 0.5 * np.eye(d)
    return ft.problems.Quadratic(matrices=matrices, centers=draws.normal(size=(clients, d)) * 3)


def prepared(problem: Any, seed: int = 0) -> Task:
    return problem.prepare(seed, torch.device("cpu"), torch.float64)


def scripted(rounds: int, clients: int, seed: int = 1) -> np.ndarray:
    """Return who takes part in which round, with an empty round and a client that comes once."""
    there = np.random.default_rng(seed).random((rounds, clients)) < 0.5
    there[2] = False
    there[:, clients - 1] = False
    there[rounds // 2, clients - 1] = True
    return there


def trains_like_the_simulator(task: Task, local: ft.LocalTraining, seed: int) -> Callable:
    """Return the train function of an app whose client is its partition-id."""

    def make(context: Context):
        number = int(context.node_config["partition-id"])

        def train(model, asked: TrainRequest) -> Update:
            layout = task.layout
            work = LocalRound(task, local, seed, "reference", 0)
            work.feed.steps_taken[number] = asked.taken
            told = Instructions(
                model=layout.flatten(model),
                correction=None
                if asked.correction is None
                else layout.flatten(asked.correction)[None],
                mu=asked.mu,
                gradients_at_start=asked.gradients_at_start,
                full_batch=asked.full_batch,
                gradients=asked.gradients,
            )
            lr = local.rate(asked.round)
            found = work.reports(told, np.array([number]), np.ones(1), lr)
            gradients = found.gradients
            return Update(
                update=layout.unflatten(found.updates[0]),
                samples=1 if found.samples is None else int(found.samples[0]),
                lr=lr,
                steps=int(found.steps[0]),
                gradients=None if gradients is None else layout.unflatten(gradients[0]),
            )

        return train

    return make


def federation(
    task: Task,
    local: ft.LocalTraining,
    there: np.ndarray | None = None,
    seed: int = 0,
    memory: Path | None = None,
    **node: Any,
) -> FakeGrid:
    """Return a grid of one node for each client, who declines the rounds that it sits out."""

    def available(t: int, context: Context) -> bool:
        return there is None or bool(there[t, int(context.node_config["partition-id"])])

    make = trains_like_the_simulator(task, local, seed)
    folder = None if memory is None else lambda context: memory
    app = custom_client(make, available=available, memory=folder)
    clients = task.population.clients
    # Ids in an order of their own: nothing may depend on it.
    ids = np.random.default_rng(5).permutation(clients) + 100
    return FakeGrid({int(ids[n]): Node(app, {"partition-id": n}, **node) for n in range(clients)})


def deploy(
    grid: FakeGrid,
    task: Task,
    algorithm: Any,
    rounds: int,
    timeout: float = 60.0,
    **options: Any,
) -> FedTide:
    """Run the federation and return its strategy."""
    names = [str(n) for n in range(task.population.clients)]
    options = {"clients": names, "clock": grid.clock} | options
    strategy = FedTide(algorithm, **options)
    arrays = record_of(task.start, task.layout)
    strategy.start(grid, arrays, num_rounds=rounds, timeout=timeout)
    return strategy


def model(strategy: FedTide) -> np.ndarray:
    return strategy.training.output.numpy()
