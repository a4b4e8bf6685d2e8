"""Conversion between the loss μ² of a Gaussian mechanism and (ε, δ), by `dp-accounting`.

A mechanism that releases q(D) + N(0, σ² I), where a client can move q by at most s in Euclidean
norm, is μ-GDP with μ = s / σ (Dong, Roth, Su, "Gaussian Differential Privacy", 2022). Squares of μ
add up over adaptive releases, so fedtide adds up "losses" μ² for every client and converts the
sum once, exactly (Balle and Wang, 2018):

    δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ)
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from fedtide.errors import MissingExtraError


@lru_cache(maxsize=10_000)
def epsilon_of_loss(loss: float, delta: float) -> float:
    """Return the least ε for which a total loss of μ² is (ε, δ)-differentially private.

    Args:
        loss: μ² >= 0.
        delta: δ in (0, 1).

    Raises:
        MissingExtraError: dp-accounting is not installed.

    >>> round(epsilon_of_loss(1.0, 1e-5), 6), epsilon_of_loss(0.0, 1e-5)
    (4.377178, 0.0)
    """
    if loss == 0:
        return 0.0
    return float(_load_conversions().get_epsilon_gaussian(1 / math.sqrt(loss), delta))


def loss_of_epsilon(epsilon: float, delta: float) -> float:
    """Return the largest loss μ² that is (ε, δ)-differentially private.

    Args:
        epsilon: ε > 0.
        delta: δ in (0, 1).

    Raises:
        MissingExtraError: dp-accounting is not installed.

    >>> round(loss_of_epsilon(4.377178, 1e-5), 6)
    1.0
    """
    return float(_load_conversions().get_sigma_gaussian(epsilon, delta)) ** -2


def _load_conversions() -> Any:
    """Import the module of dp-accounting when it is needed: it is an optional dependency."""
    try:
        from dp_accounting import gaussian_mechanism
    except ImportError:
        raise MissingExtraError("privacy", "privacy") from None
    return gaussian_mechanism
