"""Settings from the papers' theorems, for the rates of a log."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtide import theory
from fedtide.auditing.log.participation_log import ParticipationLog
from fedtide.auditing.statistics.rate_estimates import RateEstimates
from fedtide.validation import require_at_least, require_positive

_CUTOFFS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


@dataclass(frozen=True)
class Training:
    """Constants of the training problem.

    Args:
        smoothness: L of the clients' losses.
        noise: σ of their stochastic gradients.
        divergence: δ between their gradients.
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


def recommend_learning_rates(
    log: ParticipationLog, rates: RateEstimates, training: Training, period: int | None
) -> dict[str, dict[str, float]]:
    """Return the local and server learning rate of each method, from `fedtide.theory`.

    FedAU: Corollary 4 of Wang & Ji 2024 with ω_n = 1 / p_n. Amplified, where the window curve gives
    a period: Corollary 3.2 of Wang & Ji 2022 with ρ² the largest Σ (q_t^n)² = 1 / |S_t| of the log.
    """
    seen = rates.estimate > 0
    p = rates.estimate[seen]
    constants = (training.smoothness, training.noise, training.divergence, training.gap)
    fedau = theory.fedau_learning_rates(*constants, training.steps, log.length, p, 1 / p)
    recommended = {"fedau": {"lr": fedau.local, "server_lr": fedau.server}}
    if period and period <= log.length / 2:
        weight_norm = float(np.sqrt(log.cohort_weights.max()))
        amplified = theory.generalized_fedavg_learning_rates(
            training.smoothness,
            training.noise,
            training.gap,
            training.steps,
            period,
            log.length,
            weight_norm,
        )
        recommended["amplified"] = {"lr": amplified.local, "factor": amplified.server}
    return recommended


def choose_cutoff(log: ParticipationLog) -> int:
    """Return the cutoff K of FedAU with the smallest mean squared error of its weights.

    A weight ω is a mean of m = T / E[S] intervals S = min(G, K). As G is geometric if rounds are
    independent, E[S] and Var[S] have closed forms (Wang & Ji 2024, B.6; `theory.cutoff_moments`),
    and with them the relative error of ω,

        bias² + variance = (p E[S] − 1)² + p² Var[S] / m

    Its mean over the clients is compared for K from 1 to T.
    """
    rates = log.counts[log.counts > 0] / log.length
    errors = dict[int, float]()
    for cutoff in [*(k for k in _CUTOFFS if k < log.length), log.length]:
        mean, variance = theory.cutoff_moments(rates, cutoff)
        error = (rates * mean - 1) ** 2 + rates**2 * variance * mean / log.length
        errors[cutoff] = float(error.mean())
    return min(errors, key=errors.__getitem__)
