"""Participation logs for the tests of the audit."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from fedtide.auditing import ParticipationLog
from fedtide.auditing.log.reader import read_participation_log
from fedtide.errors import InvalidInputError
from fedtide.participation import Schedule
from fedtide.population import Population

Present = NDArray[np.bool_]
"""Who takes part, shape (rounds, clients)."""


def build_log(present: Present) -> ParticipationLog:
    """Return the log of all rounds and clients."""
    rounds, clients = np.nonzero(present)
    names = pl.Series("client", np.arange(present.shape[1]))
    return ParticipationLog.from_entries(names, rounds, clients.astype(np.int32), (0, len(present)))


def to_frame(present: Present) -> pl.DataFrame:
    """Return the rows that a user would have."""
    rounds, clients = np.nonzero(present)
    return pl.DataFrame({"round": rounds, "client": clients})


def list_entries(log: ParticipationLog) -> list[tuple[int, object]]:
    """Return the entries of a log as (round, client), sorted."""
    rounds = np.repeat(np.arange(log.length), log.cohorts) + log.first_round
    names = log.names.to_list()
    return sorted((int(t), names[n]) for t, n in zip(rounds, log.clients, strict=True))


def from_cohorts(cohorts: Sequence[Sequence[int]], clients: int) -> ParticipationLog:
    """Return the log of these cohorts, one for each round."""
    rounds = np.repeat(np.arange(len(cohorts)), [len(cohort) for cohort in cohorts])
    ids = np.array([n for cohort in cohorts for n in cohort], dtype=np.int32)
    names = pl.Series("client", np.arange(clients))
    return ParticipationLog.from_entries(names, rounds, ids, (0, len(cohorts)))


def simulate_log(schedule: Schedule, clients: int, rounds: int, seed: int) -> ParticipationLog:
    """Return the log of a schedule."""
    stream = schedule.start(Population(clients), seed)
    return from_cohorts([stream.round(t).reported.tolist() for t in range(rounds)], clients)


def log_to_frame(log: ParticipationLog) -> pl.DataFrame:
    """Return the rows of a log."""
    rounds = np.repeat(np.arange(log.length), log.cohorts) + log.first_round
    return pl.DataFrame({"round": rounds, "client": log.clients.astype(np.int64)})


def uneven_rates(clients: int, seed: int) -> list[float]:
    """Draw rates between 0.02 and 0.9."""
    draws = np.random.default_rng(seed).gamma(1.0, 0.15, clients)
    rates: list[float] = np.clip(draws, 0.02, 0.9).tolist()
    return rates


def draw_chains(
    random: np.random.Generator,
    rates: NDArray[np.float64],
    rounds: int,
    change: NDArray[np.float64] | float,
) -> Present:
    """Draw stationary two-state chains; neighbouring rounds have the correlation 1 − change."""
    present = np.zeros((rounds, len(rates)), dtype=bool)
    present[0] = random.random(len(rates)) < rates
    for t, draws in enumerate(random.random((rounds - 1, len(rates))), start=1):
        present[t] = draws < np.where(present[t - 1], 1 - change * (1 - rates), change * rates)
    return present


def draw_cohorts(random: np.random.Generator, available: Present, size: int) -> Present:
    """Choose up to so many of the available clients of each round, uniformly."""
    keys = np.where(available, random.random(available.shape), 2.0)
    chosen = np.zeros_like(available)
    np.put_along_axis(chosen, np.argsort(keys, axis=1)[:, :size], True, axis=1)
    return chosen & available


def error_of(source: Any, **options: Any) -> str:
    """Return the sentence with which a log is refused."""
    with pytest.raises(InvalidInputError) as caught:
        read_participation_log(source, **options)
    sentence = str(caught.value)
    assert ": " in sentence
    assert "; " in sentence
    return sentence
