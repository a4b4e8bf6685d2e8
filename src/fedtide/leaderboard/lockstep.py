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


@dataclass(frozen=True)
class _Part:
    """Clients of a run that train from the same model, and how."""

    instructions: Instructions
    cohort: Cohort


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
        parts = [_parts(driver, cohort) for driver in drivers]
        if any(parts):
            draws = tasks.draws(t, steps)
            _train_parts(runs, drivers, parts, tasks, population, draws)
        for run, driver in zip(runs, drivers, strict=True):
            driver.step(run.lr)
        yield [driver.output for driver in drivers]


def _parts(driver: RoundDriver[Any], cohort: Cohort) -> list[_Part]:
    """Return who trains in a round of a run, and how."""
    chosen = driver.choose_cohort(cohort)
    parts = driver.split_by_start(chosen)
    found = [_Part(driver.instruct(part.clients), part) for part in parts if len(part)]
    if any(part.instructions.full_batch or part.instructions.gradients_at_start for part in found):
        raise InvalidInputError(
            f"algorithm: {type(driver.algorithm).__name__} takes local steps that the leaderboard "
            "does not offer; choose another mode"
        )
    return found


def _train_parts(
    runs: Sequence[Run],
    drivers: Sequence[RoundDriver[Any]],
    parts: Sequence[Sequence[_Part]],
    tasks: ClientTasks,
    population: Population,
    draws: Sequence[Any],
) -> None:
    """Take the local steps of all clients of all runs together, and absorb their updates."""
    flat = [part for own in parts for part in own]
    sizes = torch.tensor([sum(len(part.cohort) for part in own) for own in parts])
    dtype = tasks.start.dtype
    clients = torch.cat([part.cohort.clients for part in flat])
    starts = torch.cat([part.instructions.model.expand(len(part.cohort), -1) for part in flat])
    lr = torch.tensor([run.lr for run in runs], dtype=dtype).repeat_interleave(sizes)[:, None]
    ends = tasks.descend(starts, clients, lr, _mu(flat, dtype), _corrections(flat), draws)
    first = 0
    for run, driver, own, size in zip(runs, drivers, parts, sizes.tolist(), strict=True):
        rows = slice(first, first + size)
        first += size
        if not own:
            continue
        asked = own[0].instructions
        at = starts[rows] if asked.gradients else ends[rows]
        wanted = asked.gradients or asked.end_gradients
        driver.absorb(
            ClientUpdates(
                clients[rows],
                torch.cat([part.cohort.weights for part in own]).to(dtype),
                ends[rows] - starts[rows],
                run.lr,
                torch.full((size,), len(draws)),
                _samples(population, clients[rows]),
                tasks.gradients(at, clients[rows], None) if wanted else None,
            )
        )


def _mu(parts: Sequence[_Part], dtype: torch.dtype) -> Tensor | None:
    """Return μ of each client, shape (K, 1); None if all are 0."""
    if not any(part.instructions.mu for part in parts):
        return None
    sizes = torch.tensor([len(part.cohort) for part in parts])
    weights = torch.tensor([part.instructions.mu for part in parts], dtype=dtype)
    return weights.repeat_interleave(sizes)[:, None]


def _corrections(parts: Sequence[_Part]) -> Tensor | None:
    """Return the corrections of all clients, shape (K, d); None if nobody has one."""
    given = [(part.instructions.model, part.instructions.correction) for part in parts]
    if all(correction is None for _, correction in given):
        return None
    rows = zip(given, parts, strict=True)
    return torch.cat(
        [
            model.new_zeros(len(part.cohort), len(model)) if correction is None else correction
            for (model, correction), part in rows
        ]
    )


def _samples(population: Population, clients: Tensor) -> Tensor | None:
    held = population.samples
    return None if held is None else torch.from_numpy(held[clients.numpy()])
