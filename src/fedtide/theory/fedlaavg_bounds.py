"""Paper 003 (FedLaAvg): absence, step size, and rate."""

from __future__ import annotations

import math

from fedtide.validation import need_positive


def fedlaavg_absence(clients: int, cohort: int, longest: int) -> int:
    """Return ⌈N / K⌉ E − 1, the longest that a stored gradient gets old (Lemma 1).

    Args:
        clients: N.
        cohort: K, how many clients are picked, those absent for the longest first.
        longest: E: every client is available at least once in any E rounds.

    >>> fedlaavg_absence(1000, 100, 10)
    99
    """
    need_positive(clients=clients, cohort=cohort, longest=longest)
    return -(-clients // cohort) * longest - 1


def fedlaavg_step(
    smoothness: float, clients: int, share: float, longest: int, rounds: int, steps: int = 1
) -> float:
    """Return γ = β^{1/2} N^{1/4} / (2 L C E^{1/2} R^{1/2}).

    Args:
        smoothness: L.
        clients: N.
        share: β = K / N.
        longest: E.
        rounds: R.
        steps: C, local steps in a round.

    >>> fedlaavg_step(1.0, 16, 0.25, 1, 100)
    0.05
    """
    need_positive(
        smoothness=smoothness,
        clients=clients,
        share=share,
        longest=longest,
        rounds=rounds,
        steps=steps,
    )
    return math.sqrt(share * math.sqrt(clients)) / (
        2 * smoothness * steps * math.sqrt(longest * rounds)
    )


def fedlaavg_rate(clients: int, longest: int, rounds: int, share: float) -> tuple[float, bool]:
    """Return E^{1/2} / (N^{1/4} T^{1/2}) (O(·), without the constant), and whether it holds yet.

    It holds for T > E N^{3/2} / β: a sublinear speedup in N.

    >>> fedlaavg_rate(16, 1, 10_000, 0.25)
    (0.005, True)
    """
    need_positive(clients=clients, longest=longest, rounds=rounds, share=share)
    rate = math.sqrt(longest) / (clients**0.25 * math.sqrt(rounds))
    return rate, rounds > longest * clients**1.5 / share
