"""What the papers' theorems ask of the learning rates, for the numbers of this log."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtide import theory
from fedtide.auditing.log.participation_log import ParticipationLog
from fedtide.auditing.statistics.rate_estimates import Rates
from fedtide.validation import require_at_least, require_positive


@dataclass(frozen=True)
class Training:
    """What the user knows of the training.

    Args:
        smoothness: L, of the clients' losses.
        noise: σ, of their stochastic gradients.
        divergence: δ, of their gradients from each other.
        gap: F = f(x_0) − f*.
        steps: I, local steps in a round.

    Raises:
        InvalidInputError: a number outside its range.
    """

    smoothness: float
    noise: float = 1.0
    divergence: float = 1.0
    gap: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        for name in ("smoothness", "gap"):
            require_positive(name, getattr(self, name))
        for name in ("noise", "divergence"):
            require_at_least(name, getattr(self, name), 0)
        require_at_least("steps", self.steps, 1)


def learning_rates(
    log: ParticipationLog, rates: Rates, training: Training, period: int | None
) -> dict[str, dict[str, float]]:
    """Return γ and η of each method, from `fedtide.theory`, at the rates of this log.

    FedAU: Corollary 4 of paper 001 with ω_n = 1 / p_n. Amplified: Corollary 3.2 of paper 000 with
    the period from the window curve and ρ² the largest Σ (q_t^n)² = 1 / |S_t| of the log.
    """
    seen = rates.estimate > 0
    p = rates.estimate[seen]
    given = (training.smoothness, training.noise, training.divergence, training.gap)
    fedau = theory.fedau_learning_rates(*given, training.steps, log.length, p, 1 / p)
    found = {"fedau": {"lr": fedau.local, "server_lr": fedau.server}}
    if period and period <= log.length / 2:
        weight_norm = float(np.sqrt(log.shares.max()))
        amplified = theory.generalized_fedavg_learning_rates(
            training.smoothness,
            training.noise,
            training.gap,
            training.steps,
            period,
            log.length,
            weight_norm,
        )
        found["amplified"] = {"lr": amplified.local, "factor": amplified.server}
    return found
