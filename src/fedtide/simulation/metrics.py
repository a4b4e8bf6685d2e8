"""Metrics of a run, and what each client contributed to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtide.metric_direction import base_metric, lower_is_better
from fedtide.participation.log.client_ids import name_clients
from fedtide.population import Population
from fedtide.problems.base import Evaluation

Floats = NDArray[np.float64]


class ParticipationTally:
    """Counts of each client's contributions so far, O(cohort) per round.

    Attributes:
        used: in how many rounds each client's update was used, shape (N,).
        share: Σ_t 1[n in S_t] / |S_t|, shape (N,). Divided by `cohorts`, these are the weights of
            the objective that averaging over the participants minimises (Rahimi & Kalogerias 2025,
            equation 3).
        effective: Σ_t N a_t^n, where a_t^n is the factor with which the update of client n entered
            the step of round t, shape (N,).
        cohorts: the number of rounds with at least one used update.
        reports: the number of rounds in which at least one client reported.
    """

    def __init__(self, clients: int) -> None:
        self.used = np.zeros(clients, dtype=np.int32)
        self.share = np.zeros(clients)
        self.effective = np.zeros(clients)
        self.cohorts = 0
        self.reports = 0

    def add(self, clients: NDArray[np.int64], weights: Floats) -> None:
        """Count a round in which these clients' updates entered the step with these factors."""
        if len(clients):
            self.used[clients] += 1
            self.share[clients] += 1 / len(clients)
            self.effective[clients] += len(self.used) * weights
            self.cohorts += 1

    def participation_weights(self) -> Floats | None:
        """Return w_n, shape (N,), summing to 1; None before any client was used."""
        return self.share / self.cohorts if self.cohorts else None


def metrics_row(
    ended: int,
    evaluation: Evaluation,
    tally: ParticipationTally,
    objective_weights: Floats | None = None,
    hours: float | None = None,
) -> dict[str, Any]:
    """Return one row of metrics: those of the problem, and the spread of each client metric.

    `loss` is the mean over clients; `participation_loss` is Σ w_n F_n(x) with the participation
    weights so far (Rahimi & Kalogerias 2025, equation 3). If it is far lower, the model favours the
    clients that take part most. If the objective has weights a_n, clients minimise N a_n F_n,
    `loss` is Σ a_n F_n(x), and `participation_loss` is Σ w_n a_n F_n(x) / Σ w_n a_n, so that the
    two are equal if all clients take part equally. `hours` is the simulated time at which the last
    round ended, for rounds that last.
    """
    time = {} if hours is None else {"hours": hours}
    row: dict[str, Any] = {"round": ended, **time, **evaluation.metrics}
    weights, losses = tally.participation_weights(), evaluation.clients.get("loss")
    if losses is not None:
        with np.errstate(invalid="ignore", over="ignore"):  # a loss may be infinite
            if weights is not None and objective_weights is not None:
                weights = weights * objective_weights
                weights = weights / weights.sum() if weights.any() else None
            row["participation_loss"] = None if weights is None else float(weights @ losses)
    declared = declared_directions(evaluation)
    for metric, values in evaluation.clients.items():
        found = spread(metric, values, declared)
        row |= {f"client_{metric}_{name}": value for name, value in found.items()}
    return row


def declared_directions(evaluation: Evaluation) -> dict[str, bool]:
    """Return the directions that the problem declares for `lower_is_better`; may be empty."""
    lower = evaluation.lower_is_better
    if not lower:
        return {}
    names = {base_metric(name) for name in (*evaluation.metrics, *evaluation.clients)}
    return {name: name in lower for name in names | lower}


def spread(
    metric: str, values: Floats, declared: Mapping[str, bool] | None = None
) -> dict[str, float]:
    """Return the spread of a metric over the clients.

    `worst_tenth` is the mean over the worst tenth of the clients: those with the highest values if
    lower is better (see `lower_is_better`), otherwise those with the lowest. Clients without a
    value (NaN: no test samples) do not count.

    >>> spread("accuracy", np.arange(20) / 20)["worst_tenth"]
    0.025
    """
    values = values[~np.isnan(values)] if not np.isnan(values).all() else values
    ordered = np.sort(values)[:: -1 if lower_is_better(metric, declared) else 1]
    with np.errstate(invalid="ignore", over="ignore"):  # a loss may be infinite
        quantiles, std = np.quantile(values, [0.1, 0.5, 0.9]), values.std()
    return {
        "std": float(std),
        "p10": float(quantiles[0]),
        "p50": float(quantiles[1]),
        "p90": float(quantiles[2]),
        "worst_tenth": float(ordered[: max(1, len(values) // 10)].mean()),
    }


def clients_table(
    population: Population, tally: ParticipationTally, evaluation: Evaluation, rounds: int
) -> pl.DataFrame:
    """Return one row per client: name or id, samples, participation, mean weight, last metrics.

    `weight` is the mean of N a_t^n over the rounds in which the client's update was used: 1 / p_n
    for an algorithm that compensates for uneven participation. If an update also counts in later
    rounds (`Traits.uses_absent_clients`), only its weight in the round of its arrival enters.
    """
    clients = np.arange(population.clients)
    columns: dict[str, Any] = {"client": name_clients(clients, population.names)}
    if population.samples is not None:
        columns["samples"] = population.samples
    if population.rates is not None:
        columns["rate"] = population.rates
    columns["participation"] = tally.used / max(rounds, 1)
    columns["weight"] = np.divide(
        tally.effective, tally.used, out=np.full(len(tally.used), np.nan), where=tally.used > 0
    )
    columns |= evaluation.clients
    return pl.DataFrame(columns)
