"""Rahimi & Kalogerias 2025 (agnostic FedAvg): its learning rates, its bound and its weights."""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtide.validation import (
    require_all_nonnegative,
    require_all_positive,
    require_probabilities,
)


def agnostic_learning_rate(rounds: int, steps: int) -> float:
    """Return η = 1 / √(T H) (Θ(·), without the hidden constant).

    >>> agnostic_learning_rate(rounds=100, steps=4)
    0.05
    """
    require_all_positive(rounds=rounds, steps=steps)
    return 1 / math.sqrt(rounds * steps)


def agnostic_bound(
    distance: float,
    noise: float,
    gradient: float,
    lipschitz: float,
    lr: float,
    steps: int,
    rounds: int,
) -> float:
    """Return the bound (9) on the mean iterate's excess of the objective Σ p_i f_i.

        ‖θ_0 − θ*‖² / (2 η H T) + η (σ² + 3/2 G² + 4 ℓ G H)

    Args:
        distance: ‖θ_0 − θ*‖.
        noise: σ.
        gradient: G, the bound on the stochastic gradients.
        lipschitz: ℓ <= G, the Lipschitz constant of the f_i.
        lr: η.
        steps: H.
        rounds: T.

    >>> agnostic_bound(1.0, 0.0, 1.0, 1.0, 0.01, 10, 100)
    0.465
    """
    require_all_positive(lr=lr, rounds=rounds)
    require_all_nonnegative(distance=distance)
    start = distance**2 / (2 * lr * steps * rounds)
    return start + lr * _slope(noise, gradient, lipschitz, steps)


def agnostic_best_learning_rate(
    distance: float, noise: float, gradient: float, lipschitz: float, steps: int, rounds: int
) -> float:
    """Return the η for which `agnostic_bound` is least.

        η = ‖θ_0 − θ*‖ / √(2 H T V),    V = σ² + 3/2 G² + 4 ℓ G H

    The bound is then ‖θ_0 − θ*‖ √(2 V / (H T)), which tends to 2 √2 ‖θ_0 − θ*‖ √(ℓ G / T) for many
    local steps: from some H on, more of them do not lower it. (Derived from (9).)

    Args: as `agnostic_bound`; the distance is above 0.

    >>> round(agnostic_best_learning_rate(1.0, 0.0, 1.0, 1.0, 10, 100), 6)
    0.003471
    """
    require_all_positive(distance=distance, gradient=gradient, rounds=rounds)
    slope = _slope(noise, gradient, lipschitz, steps)
    return distance / math.sqrt(2 * steps * rounds * slope)


def _slope(noise: float, gradient: float, lipschitz: float, steps: int) -> float:
    require_all_nonnegative(noise=noise, gradient=gradient, lipschitz=lipschitz)
    require_all_positive(steps=steps)
    return noise**2 + 1.5 * gradient**2 + 4 * lipschitz * gradient * steps


def bernoulli_agnostic_weights(rates: ArrayLike) -> NDArray[np.float64]:
    """Return p_n = E[1 / |S|; n in S], the objective's weights (2) for independent clients, (N,).

        p_n = r_n ∫_0^1 Π_{m ≠ n} (1 − r_m s) ds

    They sum to the probability that anybody takes part. (Derived: with s = 1 − z, the product is
    the generating function of the number of others.) The integral is taken by Gauss's rule with 32
    points on each of the intervals [0, 2^{−k}], [2^{−k}, 2^{1−k}], ..., [1/2, 1], which is exact up
    to rounding for N <= 64, and to 1e-9 for more clients.

    Args:
        rates: r_n in [0, 1], (N,).

    Raises:
        InvalidInputError: a rate outside [0, 1].

    >>> bernoulli_agnostic_weights([1.0, 0.5])
    array([0.75, 0.25])
    """
    rate = require_probabilities("rates", rates)
    halvings = math.ceil(math.log2(max(rate.sum(), 1)))
    edges = np.concatenate([[0.0], 2.0 ** np.arange(-halvings, 1)])
    points, areas = np.polynomial.legendre.leggauss(32)
    total = np.zeros(len(rate))
    for low, high in itertools.pairwise(edges):
        half = (high - low) / 2
        for s, area in zip(low + half * (1 + points), half * areas, strict=True):
            logarithms = np.log1p(-rate * s)
            total += area * np.exp(logarithms.sum() - logarithms)
    return np.asarray(rate * total)
