"""Participation logs for the tests of the audit."""

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl
import pytest

from fedtide.auditing import ParticipationLog
from fedtide.participation import Schedule
from fedtide.population import Population

Simulate = Callable[[Schedule, int, int, int], ParticipationLog]
FromCohorts = Callable[[Sequence[Sequence[int]], int], ParticipationLog]


def _from_cohorts(cohorts: Sequence[Sequence[int]], clients: int) -> ParticipationLog:
    rounds = np.repeat(np.arange(len(cohorts)), [len(cohort) for cohort in cohorts])
    ids = np.array([n for cohort in cohorts for n in cohort], dtype=np.int32)
    names = pl.Series("client", np.arange(clients))
    return ParticipationLog.from_entries(names, rounds, ids, (0, len(cohorts)))


def _simulate(schedule: Schedule, clients: int, rounds: int, seed: int) -> ParticipationLog:
    stream = schedule.start(Population(clients), seed)
    return _from_cohorts([stream.round(t).reported.tolist() for t in range(rounds)], clients)


def _to_frame(log: ParticipationLog) -> pl.DataFrame:
    rounds = np.repeat(np.arange(log.length), log.cohorts) + log.first_round
    return pl.DataFrame({"round": rounds, "client": log.clients.astype(np.int64)})


def _uneven_rates(clients: int, seed: int) -> list[float]:
    draws = np.random.default_rng(seed).gamma(1.0, 0.15, clients)
    rates: list[float] = np.clip(draws, 0.02, 0.9).tolist()
    return rates


@pytest.fixture(scope="session")
def from_cohorts() -> FromCohorts:
    """Build a log from the cohorts of its rounds: (cohorts, clients)."""
    return _from_cohorts


@pytest.fixture(scope="session")
def simulate_log() -> Simulate:
    """Build the log of a schedule: (schedule, clients, rounds, seed)."""
    return _simulate


@pytest.fixture(scope="session")
def to_frame() -> Callable[[ParticipationLog], pl.DataFrame]:
    """Convert a log to the rows a user would have."""
    return _to_frame


@pytest.fixture(scope="session")
def uneven_rates() -> Callable[[int, int], list[float]]:
    """Draw rates between 0.02 and 0.9: (clients, seed)."""
    return _uneven_rates
