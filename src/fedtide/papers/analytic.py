"""Experiments that are computed instead of trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import polars as pl
import torch

from fedtide.algorithms._participation_intervals import MeanInterval
from fedtide.papers.analytic_skew import skew_gap
from fedtide.participation import PROCESSES
from fedtide.population import Population
from fedtide.simulation.experiment import BUILDER


def weights_over_time(settings: Mapping[str, Any]) -> pl.DataFrame:
    """Return how FedAU's weights of clients who are all alike spread and settle.

    Args:
        settings: `participation` (a process whose rates are one number), `clients`, `rounds`,
            `cutoff` (None: none) and `seed`.

    Returns:
        At some forty rounds: `weight`, `weight_std`, `low` and `high` (the quantiles of 2.5 and
        97.5 %) over the clients, and `count` and `count_std`, of how often they had come.
    """
    plain = dict(settings["participation"])
    process = BUILDER.build(PROCESSES[plain.pop("type")], plain, "participation")
    clients, rounds = settings["clients"], settings["rounds"]
    running = process.begin(Population(clients), settings["seed"])
    history = MeanInterval.empty(clients, settings["cutoff"] or 0, torch.device("cpu"))
    everyone, count, rows = torch.arange(clients), np.zeros(clients), []
    marks = set(np.unique(np.geomspace(1, rounds, 40).astype(int)).tolist())
    for t in range(rounds + 1):
        if t in marks:
            rows.append(_moments(t, history.mean_interval(t, everyone).numpy(), count))
        came = running.round(t).clients
        count[came] += 1
        history = history.record(t, torch.from_numpy(came))
    return pl.DataFrame(rows)


def _moments(t: int, weights: np.ndarray, count: np.ndarray) -> dict[str, float]:
    low, high = np.quantile(weights, [0.025, 0.975])
    return {
        "round": t,
        "weight": float(weights.mean()),
        "weight_std": float(weights.std(ddof=1)),
        "low": float(low),
        "high": float(high),
        "count": float(count.mean()),
        "count_std": float(count.std(ddof=1)),
    }


COMPUTATIONS: dict[str, Callable[[Mapping[str, Any]], pl.DataFrame]] = {
    "skew-gap": skew_gap,
    "weights-over-time": weights_over_time,
}
"""The computations by name: from settings to metrics, one row per point of a curve."""
