"""Figures of finished runs that the metrics do not hold: targets reached, and influence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtide.errors import InvalidInputError, did_you_mean
from fedtide.report.loading import FinishedRun

Floats = NDArray[np.float64]
Groups = Mapping[str, Sequence[FinishedRun]]

FALLING = ("loss",)
"""What metrics that shall be small have in their names."""


def lower_is_better(metric: str) -> bool:
    """Say whether less of a metric is better."""
    return any(word in metric for word in FALLING)


def headline(groups: Groups) -> str:
    """Return the metric that curves and targets are about: the test accuracy, or the loss."""
    runs = [run for group in groups.values() for run in group]
    known = all("test_accuracy" in run.metrics.columns for run in runs)
    return "test_accuracy" if known else "loss"


@dataclass(frozen=True)
class Target:
    """A level of a metric, and what it takes each method to get there.

    Args:
        metric: its name.
        level: to be reached from below, or from above if less is better.
        rows: of each method its name, how many of its runs get there, how many there are, and of
            those that do the rounds and the updates (mean, standard deviation).
    """

    metric: str
    level: float
    rows: list[tuple[str, int, int, tuple[float, float], tuple[float, float]]]


def target(groups: Groups, wanted: str | None = None) -> Target:
    """Return what it takes to reach a level: METRIC=LEVEL, or what all methods reach in the end.

    Raises:
        InvalidInputError: not METRIC=LEVEL, or a metric that not all runs have.
    """
    metric, level = _asked(groups, wanted) if wanted else (headline(groups), None)
    if level is None:
        ends = [np.mean([run.last(metric) or 0.0 for run in group]) for group in groups.values()]
        level = float(max(ends) if lower_is_better(metric) else min(ends))
    rows = [_row(method, group, metric, level) for method, group in groups.items()]
    return Target(metric, level, rows)


def _asked(groups: Groups, wanted: str) -> tuple[str, float]:
    metric, _, level = wanted.partition("=")
    for run in (run for group in groups.values() for run in group):
        if metric not in run.metrics.columns:
            names = did_you_mean(metric, [c for c in run.metrics.columns if c != "round"])
            raise InvalidInputError(f"target: {run.folder.path} has no metric {metric!r}; {names}")
    try:
        return metric, float(level)
    except ValueError:
        raise InvalidInputError(
            f"target: {wanted!r} is not METRIC=LEVEL; write {metric}=0.9"
        ) from None


def _row(
    method: str, group: Sequence[FinishedRun], metric: str, level: float
) -> tuple[str, int, int, tuple[float, float], tuple[float, float]]:
    reached = [(run, at) for run in group if (at := _reached(run, metric, level)) is not None]
    rounds = [float(at) for _, at in reached]
    updates = [float(run.cohorts()[:at].sum()) for run, at in reached]
    return method, len(reached), len(group), _spread(rounds), _spread(updates)


def _reached(run: FinishedRun, metric: str, level: float) -> int | None:
    """Return after how many rounds the level was seen first."""
    values = run.metrics[metric].to_numpy()
    there = np.flatnonzero(values <= level if lower_is_better(metric) else values >= level)
    return int(run.metrics["round"][int(there[0])]) if len(there) else None


def _spread(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return float("nan"), float("nan")
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def influence(run: FinishedRun) -> Floats | None:
    """Return the share of each client in all that moved the model, shape (N,), summing to 1.

    That is w_n in Σ w_n F_n, the objective that the run really minimised: Σ_t a_t^n over its sum,
    a_t^n being the factor with which the update of client n entered the step of round t. None where
    nobody took part.
    """
    weights = run.clients["weight"].fill_nan(0.0)
    counted: Floats = (run.clients["participation"] * weights).to_numpy()
    total = float(counted.sum())
    shares: Floats = counted / max(total, 1e-300)
    return shares if total > 0 else None


def wanted(run: FinishedRun) -> Floats:
    """Return the share that each client should have, shape (N,), summing to 1.

    Objectives other than the plain mean scale the losses, not the weights: there, too, the updates
    of all clients count alike.
    """
    return np.full(len(run.clients), 1 / len(run.clients))


def skew(run: FinishedRun) -> float | None:
    """Return Σ |w_n − 1/N|: 0 if all count alike, at most 2."""
    found = influence(run)
    return None if found is None else float(np.abs(found - wanted(run)).sum())


def client_metric(run: FinishedRun) -> str | None:
    """Return the column of the clients' table that says how each fares."""
    for column in ("test_accuracy", "accuracy", "loss"):
        if column in run.clients.columns:
            return column
    return None


def smoothed(values: Floats, share: float) -> Floats:
    """Return the moving average over a share of the entries, as the papers smooth their curves.

    >>> smoothed(np.array([0.0, 3.0, 6.0, 9.0]), 0.5)
    array([0. , 1.5, 4.5, 7.5])
    """
    width = max(1, round(share * len(values)))
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(0, ends - width)
    means: Floats = (sums[ends] - sums[begins]) / (ends - begins)
    return means


def by_rate(run: FinishedRun, column: str, bins: int = 10) -> tuple[Floats, Floats]:
    """Return the mean rate and the mean figure of clients in groups of like participation rate."""
    table = run.clients.select("participation", column).sort("participation")
    parts = np.array_split(np.arange(len(table)), min(bins, len(table)))
    means = [table[part.tolist()].mean().row(0) for part in parts]
    return np.array([rate for rate, _ in means]), np.array([value for _, value in means])


def settings(run: FinishedRun) -> str:
    """Return what decides who takes part, to tell whether two runs saw the same."""
    keys = ("participation", "selection", "report", "seed", "rounds")
    return str([run.experiment.get(key) for key in keys])


def unique_participation(groups: Groups) -> list[tuple[str, FinishedRun]]:
    """Return a run for each way of taking part, with the methods that share it."""
    found: dict[str, tuple[list[str], FinishedRun]] = {}
    for method, group in groups.items():
        found.setdefault(settings(group[0]), ([], group[0]))[0].append(method)
    return [(", ".join(methods), run) for methods, run in found.values()]
