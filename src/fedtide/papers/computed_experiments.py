"""Experiments without training: FedAU's weights over time, and the loss gap under skew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from fedtide.algorithms.fedau import MeanInterval
from fedtide.participation import PROCESSES
from fedtide.participation.inclusion import inclusion_probabilities
from fedtide.population import Population
from fedtide.problems import Regression
from fedtide.randomness import generator
from fedtide.simulation.experiment import BUILDER

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def weights_over_time(settings: Mapping[str, Any]) -> pl.DataFrame:
    """Return how FedAU's weights of identical clients spread and settle (paper 001, figure D.4).

    Args:
        settings: `participation` (a process with one rate for all clients), `clients`, `rounds`,
            `cutoff` (None: no cutoff) and `seed`.

    Returns:
        At about forty rounds: `weight`, `weight_std`, `low` and `high` (the 2.5 and 97.5 %
        quantiles) over the clients, and `count` and `count_std` of their participations so far.
    """
    plain = dict(settings["participation"])
    process = BUILDER.build(PROCESSES[plain.pop("type")], plain, "participation")
    clients, rounds = settings["clients"], settings["rounds"]
    stream = process.begin(Population(clients), settings["seed"])
    intervals = MeanInterval.empty(clients, settings["cutoff"] or 0)
    everyone, count, rows = torch.arange(clients), np.zeros(clients), []
    marks = set(np.unique(np.geomspace(1, rounds, 40).astype(int)).tolist())
    for t in range(rounds + 1):
        if t in marks:
            rows.append(_moments(t, intervals.mean_interval(t, everyone).numpy(), count))
        available = stream.round(t).clients
        count[available] += 1
        intervals = intervals.record(t, torch.from_numpy(available))
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


def skew_gap(settings: Mapping[str, Any]) -> pl.DataFrame:
    """Return the loss of agnostic or weighted averaging at one skew (paper 004, figure 2).

    Full-batch gradient steps on a quadratic are affine: client n maps x to A_n x + b_n with
    A_n = (1 − γ H_n)^I. These maps are computed once, so the losses are exact given the cohorts.

    Args:
        settings: `ratio` (client i is selected with weight ratio^i, one after another), `size` (S),
            `rounds`, `lr`, `steps`, `problem` (the fields of `Regression`), `weighted` (whether the
            cohort's models are averaged with the participation weights, divided by their sum),
            `estimates` (the number of draws that estimate the skew, as in the notebook), `seed`.

    Returns:
        At about thirty rounds: `mse`; `gap`, the difference to the `mse` of agnostic averaging with
        the same cohorts; and, equal in all rows, the exact `l1` = Σ |p_n − 1/N| and `l1_estimated`.
    """
    problem = Regression(**settings["problem"])
    task = problem.prepare(settings["seed"], torch.device("cpu"), torch.float64)
    x, y = (part.numpy() for part in task.batch_data)  # (N, m, d) and (N, m)
    matrices, vectors = local_maps(x, y, settings["lr"], settings["steps"])
    weights: Floats = np.power(float(settings["ratio"]), np.arange(problem.clients, dtype=float))
    shares = inclusion_probabilities(weights, settings["size"]) / settings["size"]
    draws = generator(settings["seed"], "skew-gap")
    cohorts = draw_successively(draws, weights, settings["size"], settings["rounds"])
    marks = np.unique(np.linspace(1, settings["rounds"], 31).astype(int))
    agnostic = _losses(matrices, vectors, (x, y), cohorts, np.ones(len(shares)), marks)
    losses = agnostic
    if settings["weighted"]:
        losses = _losses(matrices, vectors, (x, y), cohorts, shares, marks)
    sample = draw_successively(draws, weights, settings["size"], settings["estimates"])
    counts = np.bincount(sample.ravel(), minlength=len(shares))
    return pl.DataFrame(
        {
            "round": marks,
            "mse": losses,
            "gap": losses - agnostic,
            "l1": np.abs(shares - 1 / len(shares)).sum(),
            "l1_estimated": float(np.abs(counts / counts.sum() - 1 / len(counts)).sum()),
        }
    )


def local_maps(x: Floats, y: Floats, lr: float, steps: int) -> tuple[Floats, Floats]:
    """Return A_n (N, d, d) and b_n (N, d) of `steps` full gradient steps on half the mean square.

    >>> local_maps(np.ones((1, 1, 1)), np.ones((1, 1)), lr=0.5, steps=2)
    (array([[[0.25]]]), array([[0.75]]))
    """
    samples, dimension = x.shape[1:]
    step = np.eye(dimension) - lr * np.swapaxes(x, 1, 2) @ x / samples
    push = lr * np.einsum("nmd,nm->nd", x, y) / samples
    matrices = np.broadcast_to(np.eye(dimension), step.shape)
    vectors = np.zeros_like(push)
    for _ in range(steps):
        matrices = step @ matrices
        vectors = np.einsum("nij,nj->ni", step, vectors) + push
    return matrices, vectors


def draw_successively(draws: np.random.Generator, weights: Floats, size: int, rounds: int) -> Ints:
    """Return cohorts drawn client by client without replacement, shape (rounds, size).

    The `size` clients whose exponential clocks of rate w_n ring first are such a cohort.
    """
    clocks = draws.exponential(size=(rounds, len(weights))) / weights
    return np.argpartition(clocks, size - 1, axis=1)[:, :size]


def _losses(
    matrices: Floats,
    vectors: Floats,
    data: tuple[Floats, Floats],
    cohorts: Ints,
    weights: Floats,
    marks: Ints,
) -> Floats:
    """Return the mean squared error over all clients at the marked rounds."""
    x, y = data
    model, losses, marked = np.zeros(vectors.shape[1]), [], set(marks.tolist())
    for t, cohort in enumerate(cohorts, start=1):
        share = weights[cohort] / weights[cohort].sum()
        model = share @ (matrices[cohort] @ model + vectors[cohort])
        if t in marked:
            losses.append(float(((x @ model - y) ** 2).mean()))
    return np.array(losses)


COMPUTATIONS: dict[str, Callable[[Mapping[str, Any]], pl.DataFrame]] = {
    "skew-gap": skew_gap,
    "weights-over-time": weights_over_time,
}
"""The computations that `compute` may name: from settings to metrics, one row per evaluation."""
