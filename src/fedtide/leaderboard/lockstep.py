"""Trains many runs round by round on the same participation, noise and minibatches.

On these small problems most of the time is overhead of PyTorch's operations, so the clients of all
runs take their local steps together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedtide.algorithms import Algorithm, ClientUpdates, Cohort, RoundDriver
from fedtide.algorithms.base import Instructions
from fedtide.errors import InvalidInputError
from fedtide.leaderboard.problems import ClientTasks
from fedtide.participation import Participants
from fedtide.population import Population


@dataclass(frozen=True)
class Run:
    """A run of a method.

    Args:
        algorithm: the method.
        lr: γ.
    """

    algorithm: Algorithm[Any]
    lr: float


def train(
    runs: Sequence[Run],
    tasks: ClientTasks,
    population: Population,
    rounds: Sequence[Participants],
    steps: int,
) -> Iterator[list[Tensor]]:
    """Yield the model that each run recommends after each round, every one of shape (d,).

    Args:
        runs: the runs.
        tasks: what is learnt.
        population: the clients, with their rates if they are known.
        rounds: who takes part.
        steps: local steps of a client in a round.

    Raises:
        InvalidInputError: a method that does not fit the population, or needs what these problems
            do not offer.
    """
    drivers = [RoundDriver(run.algorithm, tasks.start, population) for run in runs]
    for t, participants in enumerate(rounds):
        reported = torch.from_numpy(participants.reported)
        cohort = Cohort(reported, torch.from_numpy(participants.weights))
        chosen = [driver.choose_cohort(cohort) for driver in drivers]
        if any(map(len, chosen)):
            draws = tasks.draws(t, steps)
            _train_together(runs, drivers, chosen, tasks, population, draws)
        for run, driver in zip(runs, drivers, strict=True):
            driver.step(run.lr)
        yield [driver.output for driver in drivers]


def _instruct(driver: RoundDriver[Any], cohort: Cohort) -> Instructions:
    """Return how the clients of a run should train."""
    instructions = driver.instruct(cohort.clients)
    if len(cohort) and (instructions.full_batch or instructions.gradients_at_start):
        raise InvalidInputError(
            f"algorithm: {type(driver.algorithm).__name__} takes local steps that the leaderboard "
            "does not offer; choose another mode"
        )
    return instructions


def _train_together(
    runs: Sequence[Run],
    drivers: Sequence[RoundDriver[Any]],
    cohorts: Sequence[Cohort],
    tasks: ClientTasks,
    population: Population,
    draws: Sequence[Any],
) -> None:
    """Take the local steps of all clients of all runs together, and absorb their updates."""
    orders = [_instruct(*pair) for pair in zip(drivers, cohorts, strict=True)]
    sizes = torch.tensor([len(cohort) for cohort in cohorts])
    dtype = tasks.start.dtype
    clients = torch.cat([cohort.clients for cohort in cohorts])
    starts = torch.cat(
        [own.model.expand(len(cohort), -1) for own, cohort in zip(orders, cohorts, strict=True)]
    )
    lr = torch.tensor([run.lr for run in runs], dtype=dtype).repeat_interleave(sizes)[:, None]
    mu, corrections = _mu(orders, sizes, dtype), _corrections(orders, sizes)
    ends = tasks.descend(starts, clients, lr, mu, corrections, draws)
    first = 0
    for run, driver, cohort, asked in zip(runs, drivers, cohorts, orders, strict=True):
        rows = slice(first, first + len(cohort))
        first = rows.stop
        if not len(cohort):
            continue
        at = starts[rows] if asked.gradients else ends[rows]
        wanted = asked.gradients or asked.end_gradients
        driver.absorb(
            ClientUpdates(
                clients[rows],
                cohort.weights.to(dtype),
                ends[rows] - starts[rows],
                run.lr,
                torch.full((len(cohort),), len(draws)),
                _samples(population, clients[rows]),
                tasks.gradients(at, clients[rows], None) if wanted else None,
            )
        )


def _mu(orders: Sequence[Instructions], sizes: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Return μ of each client, shape (K, 1); None if all are 0."""
    if not any(own.mu for own in orders):
        return None
    weights = torch.tensor([own.mu for own in orders], dtype=dtype)
    return weights.repeat_interleave(sizes)[:, None]


def _corrections(orders: Sequence[Instructions], sizes: Tensor) -> Tensor | None:
    """Return the corrections of all clients, shape (K, d); None if nobody has one."""
    if all(own.correction is None for own in orders):
        return None
    return torch.cat(
        [
            own.model.new_zeros(size, own.model.shape[-1])
            if own.correction is None
            else own.correction
            for own, size in zip(orders, sizes.tolist(), strict=True)
        ]
    )


def _samples(population: Population, clients: Tensor) -> Tensor | None:
    held = population.samples
    return None if held is None else torch.from_numpy(held[clients.numpy()])
