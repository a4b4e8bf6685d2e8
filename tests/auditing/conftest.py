"""Logs for the tests of the audit."""

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl
import pytest

from fedtide.auditing.log.participation_log import ParticipationLog, attend
from fedtide.participation import Schedule
from fedtide.population import Population

Draw = Callable[[Schedule, int, int, int], ParticipationLog]
OfRounds = Callable[[Sequence[Sequence[int]], int], ParticipationLog]


def _of_rounds(cohorts: Sequence[Sequence[int]], clients: int) -> ParticipationLog:
    numbers = np.repeat(np.arange(len(cohorts)), [len(cohort) for cohort in cohorts])
    ids = np.array([n for cohort in cohorts for n in cohort], dtype=np.int32)
    return attend(pl.Series("client", np.arange(clients)), numbers, ids, (0, len(cohorts)))


def _draw(schedule: Schedule, clients: int, rounds: int, seed: int) -> ParticipationLog:
    running = schedule.start(Population(clients), seed)
    return _of_rounds([running.round(t).reported.tolist() for t in range(rounds)], clients)


def _table(log: ParticipationLog) -> pl.DataFrame:
    rounds = np.repeat(np.arange(log.length), log.cohorts) + log.first
    return pl.DataFrame({"round": rounds, "client": log.clients.astype(np.int64)})


def _uneven(clients: int, seed: int) -> list[float]:
    draws = np.random.default_rng(seed).gamma(1.0, 0.15, clients)
    rates: list[float] = np.clip(draws, 0.02, 0.9).tolist()
    return rates


@pytest.fixture(scope="session")
def of_rounds() -> OfRounds:
    """Return the attendance of cohorts given round by round."""
    return _of_rounds


@pytest.fixture(scope="session")
def draw() -> Draw:
    """Return the attendance of a schedule: (schedule, clients, rounds, seed)."""
    return _draw


@pytest.fixture(scope="session")
def table() -> Callable[[ParticipationLog], pl.DataFrame]:
    """Return the log of an attendance, as a user would have it."""
    return _table


@pytest.fixture(scope="session")
def uneven() -> Callable[[int, int], list[float]]:
    """Return rates between 0.02 and 0.9: (clients, seed)."""
    return _uneven
