"""Paper 004, figure 2, for linear regression: loss against how unevenly clients are selected.

Full-batch gradient steps on a quadratic are affine, so a round is one matrix and one vector a
client, computed once: y_n = A_n x + b_n with A_n = (1 − γ H_n)^I. Rounds then cost nothing, and the
figure is had exactly, but for the draws of the cohorts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from fedtide.participation.inclusion import inclusion_probabilities
from fedtide.problems import Regression
from fedtide.problems.base import BatchPlan
from fedtide.randomness import generator

Floats = NDArray[np.float64]


def skew_gap(settings: Mapping[str, Any]) -> pl.DataFrame:
    """Return the loss of agnostic and of weighted averaging, at one skew.

    Args:
        settings: `ratio` (client i is selected with weight ratio^i, one after another), `size` (S),
            `rounds`, `lr`, `steps`, `problem` (the fields of `Regression`), `weighted` (whether the
            cohort's models are averaged with the participation weights, divided by their sum),
            `estimates` (from how many draws the skew is estimated, as the notebook does), `seed`.

    Returns:
        At some thirty rounds: `mse`; `gap`, by how much it is above that of agnostic averaging with
        the same cohorts; and, the same in all rows, `l1` = Σ |p_n − 1/N|, exactly, and
        `l1_estimated`.
    """
    problem = Regression(**settings["problem"])
    x, y = _data(problem, settings["seed"])
    matrices, vectors = local_maps(x, y, settings["lr"], settings["steps"])
    weights: Floats = np.power(float(settings["ratio"]), np.arange(problem.clients, dtype=float))
    shares = inclusion_probabilities(weights, settings["size"]) / settings["size"]
    draws = generator(settings["seed"], "skew-gap")
    cohorts = successive(draws, weights, settings["size"], settings["rounds"])
    marks = np.unique(np.linspace(1, settings["rounds"], 31).astype(int))
    plain = _losses(matrices, vectors, (x, y), cohorts, np.ones(len(shares)), marks)
    own = (
        _losses(matrices, vectors, (x, y), cohorts, shares, marks)
        if settings["weighted"]
        else plain
    )
    estimated = successive(draws, weights, settings["size"], settings["estimates"])
    return pl.DataFrame(
        {
            "round": marks,
            "mse": own,
            "gap": own - plain,
            "l1": np.abs(shares - 1 / len(shares)).sum(),
            "l1_estimated": _l1(np.bincount(estimated.ravel(), minlength=len(shares))),
        }
    )


def _l1(counts: NDArray[np.int64]) -> float:
    return float(np.abs(counts / counts.sum() - 1 / len(counts)).sum())


def _data(problem: Regression, seed: int) -> tuple[Floats, Floats]:
    """Return each client's features (N, m, d) and targets (N, m)."""
    task = problem.prepare(seed, torch.device("cpu"), torch.float64)
    clients = np.arange(problem.clients)
    each = problem.samples // problem.clients
    positions = np.tile(np.arange(each), (1, len(clients), 1))
    plan = BatchPlan(
        clients=clients, positions=positions, step_index=np.zeros((1, len(clients)), np.int64)
    )
    x, y = next(iter(task.batches(plan)))
    return x.numpy(), y.numpy()


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


def successive(
    draws: np.random.Generator, weights: Floats, size: int, rounds: int
) -> NDArray[np.int64]:
    """Return cohorts picked one after another without replacement, shape (rounds, size).

    The `size` clients whose exponential clocks of rate w_n ring first are such a cohort.
    """
    clocks = draws.exponential(size=(rounds, len(weights))) / weights
    return np.argpartition(clocks, size - 1, axis=1)[:, :size]


def _losses(
    matrices: Floats,
    vectors: Floats,
    data: tuple[Floats, Floats],
    cohorts: NDArray[np.int64],
    weights: Floats,
    marks: NDArray[np.int64],
) -> Floats:
    """Return the mean squared error over all clients at the marked rounds."""
    x, y = data
    model, losses, wanted = np.zeros(vectors.shape[1]), [], set(marks.tolist())
    for t, cohort in enumerate(cohorts, start=1):
        share = weights[cohort] / weights[cohort].sum()
        model = share @ (matrices[cohort] @ model + vectors[cohort])
        if t in wanted:
            losses.append(float(((x @ model - y) ** 2).mean()))
    return np.array(losses)
