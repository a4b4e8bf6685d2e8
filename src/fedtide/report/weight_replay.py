"""The weight of each client's update, round by round, by replaying the algorithm on the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from fedtide.algorithms import ClientUpdates, Cohort, Instructions, RoundDriver
from fedtide.configurable import field_types
from fedtide.differential_privacy import make_private
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.report.loading import LoadedRun
from fedtide.simulation.experiment import BUILDER, Experiment

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

    With most methods, weights depend on who took part and not on what was learnt, so the algorithm
    is replayed on the log with a model of one number and updates of 0, for at most 5000 rounds.
    None if it cannot be replayed, or if weights do not tell how much clients count.
    """
    algorithm, kinds = run.algorithm, field_types(Experiment)
    if algorithm is None or not run.weights_tell_influence or algorithm.weights_follow_updates:
        return None
    try:
        local, mechanism = (
            BUILDER.build(kinds[key], run.experiment.get(key), key) for key in ("local", "privacy")
        )
        if mechanism is not None:  # it refuses updates of clients that must rest or have spent all
            algorithm = make_private(algorithm, mechanism, seed=0)
        driver = RoundDriver(algorithm, torch.zeros(1, dtype=torch.float64), _population(run))
    except InvalidInputError:  # a class or a library that is not available here
        return None
    ended = min(run.ended, _ROUNDS)
    entries = list(_replayed(driver, [local.rate(t) for t in range(ended)], run))
    if not entries:
        return None
    rounds, clients, weights = (np.concatenate(part) for part in zip(*entries, strict=True))
    mean = weights.sum() / ended / len(run.clients)
    return WeightHistory(rounds, clients, weights / mean) if mean > 0 else None


def _replayed(
    driver: RoundDriver[Any], rates: Sequence[float], run: LoadedRun
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], Floats]]:
    """Yield, for every round with an update, the round, the clients and N a_t^n."""
    size, participants = len(run.clients), _participants(run)
    samples = None
    if "samples" in run.clients.columns:
        samples = torch.from_numpy(run.clients["samples"].to_numpy(writable=True))

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

    for t, lr in enumerate(rates):
        info = driver.run(participants.get(t, _EMPTY), lr, train)
        if len(info.clients):
            ids = info.clients.numpy()
            yield np.full(len(ids), t), ids, size * info.weights.double().numpy()


_EMPTY = Cohort.uniform(torch.zeros(0, dtype=torch.int64))


def _participants(run: LoadedRun) -> dict[int, Cohort]:
    """Return the clients that reported, with their weights, by round."""
    log = run.log().filter(pl.col("stage").is_in(["reported", "used"]), pl.col("round") < _ROUNDS)
    grouped = log.group_by("round").agg("client", pl.col("weight").fill_null(0.0))
    return {
        t: Cohort(
            torch.tensor(clients, dtype=torch.int64), torch.tensor(weights, dtype=torch.float64)
        )
        for t, clients, weights in grouped.iter_rows()
    }


def _population(run: LoadedRun) -> Population:
    columns = {
        name: run.clients[name].to_numpy(writable=True)
        for name in ("samples", "rate")
        if name in run.clients.columns
    }
    rates = columns.get("rate")
    return Population(len(run.clients), samples=columns.get("samples"), rates=rates)
