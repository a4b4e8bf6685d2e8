"""Wang & Ji 2024 (FedAU): learning rates and bounds."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from fedtide.theory.fedau_weights import probabilities, rates_and_weights
from fedtide.theory.learning_rates import LearningRates, require_within_limits
from fedtide.validation import (
    require_all_nonnegative,
    require_all_positive,
    require_at_least,
    require_numbers,
    require_one_per_client,
)


def constant_weights_bound(
    gap: float,
    smoothness: float,
    noise_sq: float,
    divergence_sq: float,
    lr: float,
    server_lr: float,
    steps: int,
    rounds: int,
    rates: ArrayLike,
    weights: ArrayLike,
) -> float:
    """Return Theorem 1's bound on the mean of E‖∇h(x_t)‖², h as `participation_objective`.

    With W = Σ ω_n p_n, α_n = ω_n N / W, η̃ = η W / N, A = Σ p_n α_n²:

        8 H / (γ η̃ I T) + 20 γ² L² I (σ² + 24 I δ²) + (8 γ η̃ L / N²) (17/16 σ² + 27/2 I δ²) A

    Args:
        gap: H = h(x_0) − h*.
        smoothness: L.
        noise_sq: σ².
        divergence_sq: δ² >= ‖∇F_n(x) − ∇f(x)‖², f the mean of the F_n.
        lr: γ <= 1 / (4 √15 L I).
        server_lr: η, with γ η̃ <= 1 / (4 L I), and 15 L² I² γ² + 27 γ η̃ L I A / (8 N²) <= 1/8.
        steps: I.
        rounds: T.
        rates: p_n, (N,).
        weights: ω_n, (N,), constant over the rounds.

    Raises:
        InvalidInputError: a number is out of range, or a condition does not hold.

    >>> round(constant_weights_bound(1, 1, 0, 0, 0.01, 1, 1, 100, [1, 1], [1, 1]), 3)
    8.0
    """
    require_all_nonnegative(gap=gap, noise_sq=noise_sq, divergence_sq=divergence_sq)
    require_all_positive(smoothness=smoothness, lr=lr, server_lr=server_lr)
    require_all_positive(steps=steps, rounds=rounds)
    p, weight = rates_and_weights(rates, weights)
    clients = len(p)
    mean = float(np.mean(p * weight))
    spread = float(np.sum(p * weight**2)) / (mean * clients) ** 2  # A / N²
    product = lr * server_lr * mean
    local = 1 / (4 * math.sqrt(15) * smoothness * steps)
    left = 1 / 8 - 15 * (smoothness * steps * lr) ** 2
    allowed = min(1 / (4 * smoothness * steps), 8 * left / (27 * smoothness * steps * spread))
    require_within_limits(lr, server_lr, LearningRates(local, allowed / local / mean))
    drift = 20 * (lr * smoothness) ** 2 * steps * (noise_sq + 24 * steps * divergence_sq)
    noise = 17 / 16 * noise_sq + 27 / 2 * steps * divergence_sq
    return 8 * gap / (product * steps * rounds) + drift + 8 * product * smoothness * spread * noise


def fedau_bound(
    gap: float,
    smoothness: float,
    noise_sq: float,
    divergence_sq: float,
    lr: float,
    server_lr: float,
    steps: int,
    rounds: int,
    rates: ArrayLike,
    weight_error: float,
    gradient_sq: float | None = None,
    weights: ArrayLike | None = None,
) -> float:
    """Return Theorem 2's bound on the mean of E‖∇f(x_t)‖², with its constants.

    With W the weights' error and Q as in `fedau_learning_rate_limits`, if the gradients are bounded
    (option 2):

        8 F / (γ η I T) + 12 (15 L² I γ² σ² + 27/8 (δ² + G²)) W + 20 γ² L² I (σ² + 6 I δ²)
        + (γ η L Q / N) (17/2 σ² + 27 I δ²)

    and otherwise, if (1/N) Σ (p_n ω_t^n − 1)² <= 1/81 in every round (option 1), twice this with
    G = 0. With exact weights (W = 0) it is option 2's.

    Args:
        gap: F = f(x_0) − f*.
        smoothness: L.
        noise_sq: σ².
        divergence_sq: δ².
        lr: γ <= 1 / (4 √15 L I).
        server_lr: η, with γ η <= min{ 1 / (4 L I), N / (54 L I Q) }.
        steps: I.
        rounds: T.
        rates: p_n, (N,).
        weight_error: W, the mean over rounds and clients of E(p_n ω_t^n − 1)², see
            `weight_error_bound`.
        gradient_sq: G² >= ‖∇f(x)‖²; None is option 1.
        weights: the largest ω_t^n, (N,); None is 1 / p_n.

    Raises:
        InvalidInputError: a number is out of range, or a condition on the rates does not hold.

    >>> fedau_bound(1, 1, 0, 0, 0.01, 1, 1, 100, [1, 1], weight_error=0)
    8.0
    """
    require_all_nonnegative(
        gap=gap, noise_sq=noise_sq, divergence_sq=divergence_sq, weight_error=weight_error
    )
    require_all_positive(lr=lr, server_lr=server_lr, rounds=rounds)
    p = require_numbers("rates", probabilities(rates))
    clients, weight = len(p), 1 / p if weights is None else weights
    largest = fedau_learning_rate_limits(smoothness, steps, clients, p, weight)
    require_within_limits(lr, server_lr, largest)
    q = float(np.mean(p * np.asarray(weight) ** 2))
    drift = (lr * smoothness) ** 2 * steps
    spread = divergence_sq + (gradient_sq or 0.0)
    bound = (
        8 * gap / (lr * server_lr * steps * rounds)
        + 12 * (15 * drift * noise_sq + 27 / 8 * spread) * weight_error
        + 20 * drift * (noise_sq + 6 * steps * divergence_sq)
        + lr * server_lr * smoothness * q / clients * (8.5 * noise_sq + 27 * steps * divergence_sq)
    )
    return bound if gradient_sq is not None or weight_error == 0 else 2 * bound


def fedau_rate(
    gap: float,
    smoothness: float,
    noise_sq: float,
    divergence_sq: float,
    steps: int,
    rounds: int,
    rates: ArrayLike,
    weights: ArrayLike,
    gradient_sq: float = 0.0,
) -> float:
    """Return (8), the order with FedAU's cutoff of Corollary 4 (O(·), without the constant).

        √(L F Q / (N I T)) σ + √(L F Q / (N T)) δ + (G² + δ² + σ² / (I T)) R ln² T / T
        + (L F (1 + Q/N) + δ² + σ² / I) / T,    R = 1 / ln c, c = 1 / (1 − min p_n)²

    For equally likely cohorts of S, Q / N = 1 / S. With known rates there is no third term.

    Args: as `fedau_bound`; gradient_sq is 0 for option 1.

    >>> round(fedau_rate(1, 1, 0, 0, 1, 100, [0.5], [2.0]), 3)
    0.03
    """
    require_all_nonnegative(gap=gap, noise_sq=noise_sq, divergence_sq=divergence_sq)
    require_all_positive(smoothness=smoothness, steps=steps)
    require_at_least("rounds", rounds, 2)
    p, weight = rates_and_weights(rates, weights)
    ratio = float(np.mean(p * weight**2)) / len(p)
    root = math.sqrt(smoothness * gap * ratio / rounds)
    lead = root * (math.sqrt(noise_sq / steps) + math.sqrt(divergence_sq))
    smallest = float(p.min())
    slow = 0.0 if smallest == 1 else -1 / (2 * math.log1p(-smallest))
    estimate = (gradient_sq + divergence_sq + noise_sq / (steps * rounds)) * slow
    rest = smoothness * gap * (1 + ratio) + divergence_sq + noise_sq / steps
    return lead + (estimate * math.log(rounds) ** 2 + rest) / rounds


def fedau_learning_rate_limits(
    smoothness: float, steps: int, clients: int, rates: ArrayLike, weights: ArrayLike
) -> LearningRates:
    """Return the largest γ of Theorem 2, and the largest η for that γ.

        γ <= 1 / (4 √15 L I),    γ η <= min{ 1 / (4 L I), N / (54 L I Q) },
        Q = max_t (1/N) Σ p_n (ω_t^n)²

    Args:
        smoothness: L.
        steps: I.
        clients: N.
        rates: p_n, (N,).
        weights: ω_n, (N,), constant over the rounds.

    Raises:
        InvalidInputError: a number is out of range, or not one rate and weight for each client.

    >>> round(fedau_learning_rate_limits(1.0, 5, 2, [0.5, 0.5], [2.0, 2.0]).product, 5)
    0.0037
    """
    require_all_positive(smoothness=smoothness, steps=steps, clients=clients)
    p, weight = rates_and_weights(rates, weights)
    require_one_per_client("rates", p, clients)
    q = float(np.mean(p * weight**2))
    local = 1 / (4 * math.sqrt(15) * smoothness * steps)
    product = min(1 / (4 * smoothness * steps), clients / (54 * smoothness * steps * q))
    return LearningRates(local, product / local)


def fedau_learning_rates(
    smoothness: float,
    noise: float,
    divergence: float,
    gap: float,
    steps: int,
    rounds: int,
    rates: ArrayLike,
    weights: ArrayLike,
) -> LearningRates:
    """Return γ and η of Corollary 4.

        γ = min{ 1 / (L I √T), 1 / (4 √15 L I) },
        γ η = min{ √( F N / (Q (I δ² + σ²) L I T) ), 1 / (4 L I), N / (54 L I Q) }

    Args:
        smoothness: L.
        noise: σ, of the stochastic gradients.
        divergence: δ, of the clients' gradients.
        gap: F = f(x_0) − f*.
        steps: I.
        rounds: T.
        rates: p_n, (N,).
        weights: ω_n, (N,).

    Raises:
        InvalidInputError: as `fedau_learning_rate_limits`.
    """
    require_all_positive(gap=gap, rounds=rounds)
    require_all_nonnegative(noise=noise, divergence=divergence)
    p, weight = rates_and_weights(rates, weights)
    clients, q = len(p), float(np.mean(p * weight**2))
    largest = fedau_learning_rate_limits(smoothness, steps, clients, rates, weights)
    local = min(1 / (smoothness * steps * math.sqrt(rounds)), largest.local)
    spread = steps * divergence**2 + noise**2
    product = largest.product
    if spread > 0:
        root = math.sqrt(gap * clients / (q * spread * smoothness * steps * rounds))
        product = min(root, product)
    return LearningRates(local, product / local)
