"""Replaying a log on quadratics: how far from the wanted optimum each method ends."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from fedtide.algorithms import (
    ALGORITHMS,
    Algorithm,
    ClientUpdates,
    Cohort,
    Instructions,
    RoundDriver,
)
from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.auditing.recommend.ranking import Advice
from fedtide.population import Population
from fedtide.randomness import generator
from fedtide.training.threads import single_threaded

_ROUNDS = 2000
_NUMBERS = 1 << 24
_SPEED = 12.0
"""The length of a replay in time constants: e^−12 of the initial distance remains."""


def replay(
    log: ParticipationLog, advice: list[Advice], wanted: Floats, chance: float, seed: int
) -> list[Advice]:
    """Return the advice with the result of replaying each method.

    Client n has F_n(x) = ½ ‖x − e_n‖² with normal e_n and takes one exact gradient step per round;
    the algorithms are the objects that train elsewhere. A method that ends at Σ v_n e_n is
    expected √Σ (v_n − a_n)² from the optimum Σ a_n e_n; the result is √N times that distance, 0 for
    the wanted objective. The end is the mean of the last third of the iterates. The first 2000
    rounds of the log are replayed, with a step that reduces the initial distance to e^−12.

    Args:
        log: who took part.
        advice: the methods.
        wanted: a_n, (N,).
        chance: the distance that a log of this length has by chance alone; it enters the errors.
        seed: of the e_n.
    """
    rounds = min(log.length, _ROUNDS)
    size = int(np.clip(_NUMBERS // log.size, 4, 64))
    centers = generator(seed, "audit-replay").normal(size=(log.size, size))
    optimum = wanted @ centers
    found = []
    for one in advice:
        algorithm, factor = _build(one, log)
        with single_threaded():  # the operations are too small for several cores
            end = mean_end(log, algorithm, centers, rounds, _SPEED / rounds / factor)
        distance, error = _distance(end - optimum, log.size)
        found.append(replace(one, simulated=(distance, float(np.hypot(error, chance / 1.96)))))
    return found


def mean_end(
    log: ParticipationLog, algorithm: Algorithm[Any], centers: Floats, rounds: int, lr: float
) -> Floats:
    """Return the mean of the last third of a method's iterates, shape (d,).

    Args:
        log: who takes part.
        algorithm: the method.
        centers: e_n, shape (N, d); x_0 = 0.
        rounds: how many rounds of the log are replayed.
        lr: γ.
    """
    targets = torch.from_numpy(centers)
    driver = RoundDriver(algorithm, torch.zeros_like(targets[0]), _population(log))
    total, kept = torch.zeros_like(targets[0]), max(1, rounds // 3)
    for t in range(rounds):
        clients = torch.from_numpy(log.clients[log.starts[t] : log.starts[t + 1]].astype(np.int64))
        driver.run(Cohort.uniform(clients), lr, partial(_train, targets, lr))
        if t >= rounds - kept:
            total += driver.state.model
    return np.asarray((total / kept).numpy())


def _train(
    targets: torch.Tensor, lr: float, instructions: Instructions, cohort: Cohort
) -> ClientUpdates:
    """Return the updates of one exact gradient step, Δ_n = −γ (x − e_n + correction_n)."""
    gradients = instructions.model - targets[cohort.clients]
    correction = 0.0 if instructions.correction is None else instructions.correction
    return ClientUpdates(
        clients=cohort.clients,
        weights=cohort.weights,
        deltas=-lr * (gradients + correction),
        lr=lr,
        steps=torch.ones(len(cohort), dtype=torch.int64),
    )


def _population(log: ParticipationLog) -> Population:
    return Population(log.size, rates=log.counts / log.length)


def _distance(gap: Floats, clients: int) -> tuple[float, float]:
    """Return √(N mean gap²) and its standard error, over the coordinates."""
    squares = clients * gap**2
    distance = float(np.sqrt(squares.mean()))
    error = float(squares.std(ddof=1) / np.sqrt(len(gap)) / (2 * max(distance, 1e-12)))
    return distance, error


def _build(advice: Advice, log: ParticipationLog) -> tuple[Algorithm[Any], float]:
    """Return the method, and the divisor of the local step that makes all equally fast."""
    parameters = dict(advice.parameters)
    parameters.pop("rates", None)  # those of this log are in the population
    if "inner" in parameters:
        inner = dict(parameters["inner"])
        parameters["inner"] = ALGORITHMS[inner.pop("type")](**inner)
    algorithm = ALGORITHMS[advice.algorithm](**parameters)
    if parameters.get("weights") == "all":
        return algorithm, len(log.clients) / (log.size * log.length)
    return algorithm, float(parameters.get("factor", 1.0))
