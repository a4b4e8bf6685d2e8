"""What each client's update counted, round by round: the algorithm replayed over the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from fedtide.algorithms import Algorithm, ClientUpdates
from fedtide.errors import InvalidInputError
from fedtide.population import Population
from fedtide.report.loading import FinishedRun
from fedtide.simulation import Experiment

Floats = NDArray[np.float64]

_ROUNDS = 5000  # what is replayed at most


@dataclass(frozen=True)
class WeightHistory:
    """The weights of the clients that were used, one entry for each round and client.

    Args:
        rounds: t, shape (M,).
        clients: n, shape (M,).
        weights: N a_t^n, scaled so that a client counts 1 in a round on average over all clients
            and rounds, shape (M,): 1 / p_n where clients count alike.
    """

    rounds: NDArray[np.int64]
    clients: NDArray[np.int64]
    weights: Floats

    def of(self, client: int) -> tuple[NDArray[np.int64], Floats]:
        """Return the rounds in which a client was used, and what it counted."""
        here = self.clients == client
        return self.rounds[here], self.weights[here]


def history(run: FinishedRun) -> WeightHistory | None:
    """Return what every update of a run counted; None where the method cannot be replayed.

    Weights depend on who took part, not on what was learnt, so the algorithm is run over the log
    with a model of one number whose updates are 0; the first 5000 rounds are.
    """
    try:
        experiment = Experiment.from_dict(run.experiment)
    except InvalidInputError:  # a class that is not to be had here
        return None
    if experiment.algorithm.centralised:
        return None
    entries = list(_replayed(experiment, run))
    if not entries:
        return None
    rounds, clients, weights = (np.concatenate(part) for part in zip(*entries, strict=True))
    ended = min(experiment.rounds, _ROUNDS)
    mean = weights.sum() / ended / len(run.clients)
    return WeightHistory(rounds, clients, weights / mean) if mean > 0 else None


def _replayed(
    experiment: Experiment, run: FinishedRun
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], Floats]]:
    """Yield, for every round with somebody, the round, the clients and N a_t^n."""
    algorithm, size = experiment.algorithm, len(run.clients)
    state = algorithm.init(torch.zeros(1, dtype=torch.float64), _population(run))
    present = _present(run)
    for t in range(min(experiment.rounds, _ROUNDS)):
        clients, weights = present.get(t, (_NOBODY, np.zeros(0)))
        lr = experiment.local.rate(t)
        if len(clients):
            state = _absorbed(algorithm, state, clients, weights, run, lr)
        state, info = algorithm.step(state, lr)
        if len(info.clients):
            ids = info.clients.numpy()
            yield np.full(len(ids), t), ids, size * info.weights.double().numpy()


_NOBODY = np.zeros(0, dtype=np.int64)


def _absorbed(
    algorithm: Algorithm,
    state: object,
    clients: NDArray[np.int64],
    weights: Floats,
    run: FinishedRun,
    lr: float,
) -> object:
    """Let the algorithm fold in updates of 0 from those it wants of these clients."""
    reported = torch.from_numpy(clients)
    chosen = algorithm.cohort(state, reported)
    if chosen is not reported:
        weights = np.full(len(chosen), 1 / max(1, len(chosen)))
    if not len(chosen):
        return state
    zeros = torch.zeros((len(chosen), 1), dtype=torch.float64)
    samples = None
    if "samples" in run.clients.columns:
        samples = torch.from_numpy(run.clients["samples"].to_numpy()[chosen.numpy()])
    algorithm.instruct(state, chosen)
    reports = ClientUpdates(
        clients=chosen,
        weights=torch.from_numpy(weights),
        updates=zeros,
        lr=lr,
        steps=torch.ones(len(chosen), dtype=torch.int64),
        samples=samples,
        gradients=zeros,
    )
    return algorithm.absorb(state, reports)


def _present(run: FinishedRun) -> dict[int, tuple[NDArray[np.int64], Floats]]:
    """Return the clients that reported, and their weights, by round."""
    log = pl.read_parquet(run.folder.participation)
    log = log.filter(pl.col("stage").is_in(["reported", "used"]), pl.col("round") < _ROUNDS)
    grouped = log.group_by("round").agg("client", pl.col("weight").fill_null(0.0))
    return {
        t: (np.array(clients, dtype=np.int64), np.array(weights))
        for t, clients, weights in grouped.iter_rows()
    }


def _population(run: FinishedRun) -> Population:
    columns = {
        name: run.clients[name].to_numpy(writable=True)
        for name in ("samples", "rate")
        if name in run.clients.columns
    }
    rates = columns.get("rate")
    return Population(len(run.clients), samples=columns.get("samples"), rates=rates)
