"""Whether rates drift, and how long participation remembers: one spectrum answers both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import special

from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.auditing.statistics.distributions import chi2_sf
from fedtide.auditing.statistics.long_run_variance import fit_shape, list_hypotheses
from fedtide.auditing.statistics.periodogram import Periodogram, client_periodograms

_SLOW = 4
"""How many of the lowest cosines, up to two cycles a log, may contain drift."""
_MIN_FAST = 12
"""With fewer others, nothing tells what these would be without drift."""
_NEAR = 8
"""The next cosines, which show the causes that clients have in common."""
_COMMON = 1.8
"""Clients have causes in common if their coefficients are this much more alike than by chance; with
28 pairs of frequencies, the standard error is 0.27."""
_LEVEL = 0.001
_MIN_CHANGE = 0.05
"""Smaller changes are no drift, however sure."""
_SURE, _SMALL, _MARGIN = 3.3, 1.1, 1.5
"""Memory is positive (negative) if the dispersion is 3.3 standard errors and a factor of 1.1 above
(below) 1, and absent if its interval lies within a factor of 1.5 of 1."""

MemoryState = Literal["none", "positive", "negative", "undecided"]


@dataclass(frozen=True)
class Drift:
    """The result of the test for drift: rates that change slowly over the log.

    Args:
        found: whether rates drift; None: the log does not allow the test.
        obstacle: to the test, in words; empty if there is none.
        p_value: of the hypothesis of no drift; None without a test.
        change: the root mean square of the slow changes of the clients' rates that chance does not
            explain, relative to their mean rate; 0 without a test.
        interval: of `change`, 95%; None without a test.
    """

    found: bool | None
    obstacle: str
    p_value: float | None = None
    change: float = 0.0
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Memory:
    """How much the rounds of a client depend on each other, over whatever time.

    Args:
        state: "positive": who takes part now is more likely to take part soon (sessions),
            "negative": less likely (queues, pauses), "none": neither, or not by much; "undecided":
            the log does not tell.
        dispersion: the variance of clients' counts relative to that of independent rounds.
        interval: of `dispersion`, 95%.
    """

    state: MemoryState
    dispersion: float
    interval: tuple[float, float]


UNKNOWN = Memory("undecided", np.nan, (0.0, np.inf))


def find_drift_and_memory(log: ParticipationLog, period: int | None) -> tuple[Drift, Memory]:
    """Return whether rates drift, and the memory of participation.

    The clients' series are projected on cosines of k / 2 cycles a log, k = 1, 2, ..., which are
    orthogonal to constant rates and, over whole cycles, to everything periodic. A change of the
    rates has nearly all of its power P_k in the first ones, while that of sessions, however slow,
    falls smoothly with k: it is proportional to a spectral density S of `fit_shape`. With m the
    number of independent series that the clients are worth, the deviance of P from S is

        Σ_k m (P_k / S_k − 1 − log(P_k / S_k))

    here divided by its mean for each k, which is 1 for large m, and 1.27 for m = 1. The test
    compares its minimum over all S with that without the k <= 4: the difference is about χ² with 4
    degrees of freedom if rates do not drift.

    Args:
        log: the participation log, without pauses.
        period: of a cycle; None: there is none.
    """
    rates = log.counts / log.length
    found = client_periodograms(log, None, rates, period, cosines=True)
    drift = _find_drift(log, found)
    low = _SLOW if drift.found else 0
    if found.powers.shape[1] <= low:
        return drift, UNKNOWN
    known = list_hypotheses((1 + low) / 2, 0.5)
    series = replace(found, products=found.products[low:, low:]).independent
    shape = fit_shape(found.powers[:, low:], rates * (1 - rates), series, known)
    return drift, _describe_memory(shape.level, float(np.sqrt(np.log1p(shape.uncertainty))))


def _find_drift(log: ParticipationLog, found: Periodogram) -> Drift:
    count = found.powers.shape[1]
    if count < _SLOW + _MIN_FAST:
        return Drift(None, f"it needs at least {_SLOW + _MIN_FAST + 1} rounds or cycles")
    powers = found.products.diagonal().real
    if not powers[_SLOW:].sum() > 1e-9 * log.length:  # all clients repeat strictly
        return Drift(False, "", 1.0, 0.0, (0.0, 0.0))
    slow, fast = _count_series(found.powers.astype(np.float64), found.products.real)
    densities = list_hypotheses(0.5, 0.5).densities[:, :count]
    densities = densities * (powers / densities)[:, _SLOW:].mean(axis=1, keepdims=True)
    ratios = np.maximum(powers / densities, 1e-9)
    deviances = ratios - 1 - np.log(ratios)
    faster = deviances[:, _SLOW:].sum(axis=1) / _mean_deviance(fast)
    slower = deviances[:, :_SLOW].sum(axis=1) / _mean_deviance(slow)
    misfit = max(1.0, float(faster.min()) / (count - _SLOW - 2))
    p_value = float(chi2_sf((float((faster + slower).min()) - float(faster.min())) / misfit, _SLOW))
    noise = float(densities[faster.argmin(), :_SLOW].sum())
    excess = float(powers[:_SLOW].sum()) - noise
    error = float(np.sqrt((2 * noise**2 + 4 * max(excess, 0.0) * noise) / (_SLOW * slow)))
    seen = np.count_nonzero(log.counts)
    change, least, most = (
        float(np.sqrt(max(0.0, excess + z * error) * seen) / len(log.clients))
        for z in (0.0, -1.96, 1.96)
    )
    is_found = p_value < _LEVEL and least > 0 and change > _MIN_CHANGE
    near = slice(_SLOW, _SLOW + _NEAR)
    plain = powers[:_SLOW].mean() / powers[near].mean()
    if not is_found and special.fdtrc(_SLOW * slow, _NEAR * fast, plain) < _LEVEL:
        obstacle = (
            "clients stay or are away for so long, or share causes so slow, that a log of this "
            "length cannot tell drift from them"
        )
        return Drift(None, obstacle, None, change, (least, most))
    return Drift(is_found, "", p_value, change, (least, most))


def _mean_deviance(series: float) -> float:
    """Return the mean of x − 1 − log x for x the mean of m squares of standard normals."""
    return float(np.log(series / 2) - special.digamma(series / 2))


def _count_series(own: Floats, products: Floats) -> tuple[float, float]:
    """Return the number of independent series that the clients are worth, for k <= 4 and k > 4.

    If clients are independent, it is (Σ_n P_n)² / Σ_n P_n² with P_n their powers: a few in long
    sessions may have most of the power. Otherwise, with z_k the vector of the clients' coefficients
    at k, the mean of (z_k · z_l)² / (P_k P_l) exceeds its inverse by the product of the shares of
    P_k and P_l that are due to one common cause. A change of all rates at once is none: of its
    power at k <= 4, the share 1 / k² at most is left at k.

    Args:
        own: the clients' powers, (N, K).
        products: z_k · z_l, (K, K).
    """
    slow, fast = (
        (1 + 2 / part.shape[1]) * part.sum() ** 2 / (part.sum(axis=1) ** 2).sum()
        for part in (own[:, :_SLOW], own[:, _SLOW:])
    )
    near = slice(_SLOW, _SLOW + _NEAR)
    powers = products.diagonal()
    nearby = powers[near].sum()
    own_pairs = (powers[near] ** 2).sum()
    shared = ((products[near, near] ** 2).sum() - own_pairs) / (nearby**2 - own_pairs)
    excess = max(0.0, powers[:_SLOW].sum() - _SLOW / _NEAR * nearby)
    leak = excess * (1 / np.arange(_SLOW + 1.0, _SLOW + _NEAR + 1) ** 2).sum() / nearby
    if shared < _COMMON / fast + leak**2:
        return float(slow), float(fast)
    cross = (products[:_SLOW, near] ** 2).sum() / (powers[:_SLOW].sum() * nearby)
    share = min(1.0, max(0.0, cross - 1 / slow) / np.sqrt(shared - 1 / fast))
    return float(1 / (share**2 + 1 / slow)), float(1 / shared)


def _describe_memory(level: float, error: float) -> Memory:
    """Return the memory with a dispersion and the standard error of its logarithm."""
    low, high = level * np.exp(-1.96 * error), level * np.exp(1.96 * error)
    reach = max(_SMALL, float(np.exp(_SURE * error)))
    state: MemoryState = "undecided"
    if level > reach:
        state = "positive"
    elif level < 1 / reach:
        state = "negative"
    elif low > 1 / _MARGIN and high < _MARGIN:
        state = "none"
    return Memory(state, level, (float(low), float(high)))
