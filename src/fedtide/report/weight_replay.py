"""The weight of each client's update, round by round, by replaying the algorithm on the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from fedtide.algorithms import ClientUpdates, Cohort, Instructions, RoundDriver
from fedtide.differential_privacy import make_private
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.report.loading import LoadedRun
from fedtide.report.summary import client_influence
from fedtide.simulation.experiment import BUILDER, Experiment
from fedtide.spec import fields

Floats = NDArray[np.float64]

_ROUNDS = 5000  # replayed at most


@dataclass(frozen=True)
class WeightHistory:
    """The weights of used updates, one entry per round and client.

    Args:
        rounds: t, shape (M,).
        clients: the client's row in the table of clients, shape (M,).
        weights: N a_t^n, scaled to a mean of 1 per round over all clients and rounds, shape
            (M,): 1 / p_n if all clients count equally.
    """

    rounds: NDArray[np.int64]
    clients: NDArray[np.int64]
    weights: Floats

    def select(self, client: int) -> tuple[NDArray[np.int64], Floats]:
        """Return the rounds in which a client's update was used, and its weights."""
        here = self.clients == client
        return self.rounds[here], self.weights[here]


def history(run: LoadedRun) -> WeightHistory | None:
    """Return the weight of every update of a run, which tells how much its client counted.

    A method says by its traits that weights depend on who took part and not on what was learnt.
    Then it is replayed on the log with a model of one number and updates of 0, for at most 5000
    rounds. Return None if weights depend on more or do not tell how much clients count, if a class
    of the run is not available here, or if the replay of all rounds gives other weights than the
    run, as where updates arrive late.
    """
    algorithm = run.algorithm
    if algorithm is None or not run.weights_tell_influence:
        return None
    if algorithm.traits.weights_follow_updates:
        return None
    ended = min(run.ended, _ROUNDS)
    try:
        local, mechanism = (
            BUILDER.build(fields(Experiment)[key].kind, run.experiment.get(key), key)
            for key in ("local", "privacy")
        )
    except InvalidInputError:  # a class is not available here
        return None
    if mechanism is not None:  # it refuses updates of clients that must rest or have spent all
        algorithm = make_private(algorithm, mechanism, seed=0)
    driver = RoundDriver(algorithm, torch.zeros(1, dtype=torch.float64), run.population)
    rates = [local.rate(t) for t in range(ended)]
    entries = list(_replayed(driver, _cohorts(run, ended), rates, run.population))
    if not entries:
        return None
    rounds, clients, weights = (np.concatenate(part) for part in zip(*entries, strict=True))
    total = weights.sum()
    if not total > 0:
        return None
    influence = client_influence(run)
    if ended == run.ended and influence is not None:
        shares = np.bincount(clients, weights, minlength=len(run.clients)) / total
        if not np.allclose(shares, influence, rtol=1e-3):
            return None
    return WeightHistory(rounds, clients, weights / (total / ended / len(run.clients)))


def _replayed(
    driver: RoundDriver[Any],
    cohorts: Iterable[Cohort],
    rates: Iterable[float],
    population: Population,
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], Floats]]:
    """Yield, for every round with an update, the round, the clients and N a_t^n."""
    held = population.samples
    samples = None if held is None else torch.from_numpy(held.copy())

    def train(instructions: Instructions, cohort: Cohort) -> ClientUpdates:
        zeros = torch.zeros((len(cohort), 1), dtype=torch.float64)
        return ClientUpdates(
            clients=cohort.clients,
            weights=cohort.weights,
            deltas=zeros,
            lr=lr,
            steps=torch.ones(len(cohort), dtype=torch.int64),
            samples=None if samples is None else samples[cohort.clients],
            gradients=zeros,
        )

    for t, (lr, cohort) in enumerate(zip(rates, cohorts, strict=True)):
        info = driver.run(cohort, lr, train)
        if len(info.clients):
            ids = info.clients.numpy()
            yield np.full(len(ids), t), ids, population.clients * info.weights.double().numpy()


def _cohorts(run: LoadedRun, rounds: int) -> Iterator[Cohort]:
    """Yield the clients whose updates arrived, with their weights, for each of the first rounds.

    Only a mechanism refuses updates; without one, those that were not used were not finite.
    """
    stages = ["used"] if run.experiment.get("privacy") is None else ["reported", "used"]
    arrived = pl.col("stage").is_in(stages)
    log = run.log(arrived, pl.col("round") < rounds).sort("round", maintain_order=True)
    clients = torch.from_numpy(log["client"].to_numpy(writable=True))
    weights = torch.from_numpy(log["weight"].fill_null(0.0).to_numpy(writable=True))
    ends = np.searchsorted(log["round"].to_numpy(), np.arange(rounds + 1))
    for first, end in pairwise(ends.tolist()):
        yield Cohort(clients[first:end], weights[first:end])
