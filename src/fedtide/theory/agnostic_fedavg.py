"""Rahimi & Kalogerias 2025 (agnostic FedAvg): its learning rate and its bound."""

from __future__ import annotations

import math

from fedtide.validation import require_all_nonnegative, require_all_positive


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
    smoothness: float,
    lr: float,
    steps: int,
    rounds: int,
) -> float:
    """Return the bound (9) on the mean iterate's excess of the objective Σ p_i f_i.

        ‖θ_0 − θ*‖² / (2 η H T) + η σ² + 3/2 η G² + 4 l η G H

    Args:
        distance: ‖θ_0 − θ*‖.
        noise: σ.
        gradient: G, the bound on the gradients.
        smoothness: l, the paper's Lipschitz constant.
        lr: η.
        steps: H.
        rounds: T.

    >>> agnostic_bound(1.0, 0.0, 1.0, 1.0, 0.01, 10, 100)
    0.465
    """
    require_all_nonnegative(
        distance=distance, noise=noise, gradient=gradient, smoothness=smoothness
    )
    require_all_positive(lr=lr, steps=steps, rounds=rounds)
    start = distance**2 / (2 * lr * steps * rounds)
    return start + lr * noise**2 + 1.5 * lr * gradient**2 + 4 * smoothness * lr * gradient * steps
