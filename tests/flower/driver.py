"""Federations on the in-memory grid, the same experiments in the simulator, and their ledgers."""

import sqlite3
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context

import fedtide as ft
from fedtide.algorithms import Cohort, Instructions
from fedtide.flower.arrays import vector_to_arrays
from fedtide.flower.clients.app import custom_client
from fedtide.flower.protocol import TrainRequest, Update
from fedtide.flower.server.strategy import FedTide
from fedtide.problems import Task
from fedtide.simulation.local_round import LocalRound

from .fake_grid import FakeGrid, Node


@cache
def quadratic(clients: int = 5, d: int = 3) -> ft.problems.Quadratic:
    draws = np.random.default_rng(7)
    roots = draws.normal(size=(clients, d, d))
    matrices = roots @ roots.transpose(0, 2, 1) / d + 0.5 * np.eye(d)
    return ft.problems.Quadratic(matrices=matrices, centers=draws.normal(size=(clients, d)) * 3)


def prepare(problem: Any, seed: int = 0, dtype: torch.dtype = torch.float64) -> Task:
    return problem.prepare(seed, torch.device("cpu"), dtype)


TASK, LOCAL = prepare(quadratic()), ft.LocalTraining(steps=3, lr=0.1)
N = TASK.population.clients


def update_of(client: int, x: np.ndarray, lr: float = 0.1) -> np.ndarray:
    """Return Δ of three local steps on the quadratic, written out."""
    problem, y = quadratic(), x.copy()
    for _ in range(3):
        y = y - lr * problem.matrices[client] @ (y - problem.centers[client])
    return y - x


def scripted(rounds: int, clients: int, seed: int = 1) -> np.ndarray:
    """Return who takes part in which round, with an empty round and a client that comes once."""
    present = np.random.default_rng(seed).random((rounds, clients)) < 0.5
    present[2] = False
    present[:, clients - 1] = False
    present[rounds // 2, clients - 1] = True
    return present


def train_like_the_simulator(task: Task, local: ft.LocalTraining, seed: int) -> Callable:
    """Return the train function of an app whose client is its partition-id."""

    def make(context: Context):
        number = int(context.node_config["partition-id"])

        def train(model, request: TrainRequest) -> Update:
            layout = task.layout
            work = LocalRound(task, local, seed, "reference", 0)
            work.planner.steps_taken[number] = request.steps_taken
            instructions = Instructions(
                model=layout.flatten(model),
                correction=None
                if request.correction is None
                else layout.flatten(request.correction)[None],
                mu=request.mu,
                gradients_at_start=request.gradients_at_start,
                full_batch=request.full_batch,
                gradients=request.gradients,
            )
            lr = local.rate(request.round)
            found, _ = work.train(instructions, Cohort.uniform(torch.tensor([number])), lr)
            gradients = found.gradients
            return Update(
                update=layout.unflatten(found.deltas[0]),
                samples=1 if found.samples is None else int(found.samples[0]),
                lr=lr,
                steps=int(found.steps[0]),
                gradients=None if gradients is None else layout.unflatten(gradients[0]),
            )

        return train

    return make


def federation(
    task: Task = TASK,
    local: ft.LocalTraining = LOCAL,
    present: np.ndarray | None = None,
    seed: int = 0,
    memory: Path | None = None,
    mods: list[Any] | None = None,
    **node: Any,
) -> FakeGrid:
    """Return a grid of one node for each client, which declines the rounds that it sits out."""

    def available(t: int, context: Context) -> bool:
        return present is None or bool(present[t, int(context.node_config["partition-id"])])

    make = train_like_the_simulator(task, local, seed)
    folder = None if memory is None else lambda context: memory
    app = custom_client(make, available=available, memory=folder, mods=mods)
    clients = task.population.clients
    # The ids are not in the order of the clients: nothing may depend on it.
    ids = np.random.default_rng(5).permutation(clients) + 100
    return FakeGrid({int(ids[n]): Node(app, {"partition-id": n}, **node) for n in range(clients)})


def deploy(
    grid: FakeGrid,
    algorithm: Any,
    rounds: int,
    timeout: float = 60.0,
    task: Task = TASK,
    train_config: ConfigRecord | None = None,
    **options: Any,
) -> FedTide:
    """Run the federation and return its strategy."""
    names = [str(n) for n in range(task.population.clients)]
    options = {"clients": names, "clock": grid.clock} | options
    strategy = FedTide(algorithm, **options)
    arrays = vector_to_arrays(task.start, task.layout)
    strategy.start(grid, arrays, rounds, timeout, train_config)
    return strategy


def model(strategy: FedTide) -> np.ndarray:
    return strategy.training.output.numpy()


def node_of(grid: FakeGrid, client: int) -> Node:
    return next(node for node in grid.nodes.values() if node.config["partition-id"] == client)


def rows(url: str) -> list[tuple]:
    """Return (round, client, stage, asked) of a ledger."""
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        query = "SELECT round, client, stage, asked FROM participation ORDER BY round, client"
        return connection.execute(query).fetchall()


class Killed(BaseException):
    """Ends the server without any warning."""


def kill_in_call(monkeypatch, owner: type, name: str, number: int, after: bool) -> None:
    """Raise in the call with this number of a method, before or after it has worked."""
    original, calls = getattr(owner, name), []

    def called(self, *arguments, **named):
        calls.append(1)
        if len(calls) == number and not after:
            raise Killed
        result = original(self, *arguments, **named)
        if len(calls) == number:
            raise Killed
        return result

    monkeypatch.setattr(owner, name, called)
