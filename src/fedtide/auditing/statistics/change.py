"""Did the rates change in the course of the log?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.auditing.statistics.autocorrelation import Correlation
from fedtide.auditing.statistics.distributions import f_above, student_above


@dataclass(frozen=True, eq=False)
class Drift:
    """The comparison of the first half of the log with the second.

    Args:
        p_value: for all clients together.
        ratio: the squared differences between the halves over what a stationary log shows.
        change: the root mean square change of the rate, over the mean rate, beyond chance.
        clients: p-value of each client, shape (N,).
    """

    p_value: float
    ratio: float
    change: float
    clients: Floats


def compare_halves(
    log: ParticipationLog, correlation: Correlation, times: Floats, whole: int = 1
) -> Drift:
    """Compare the rates of the two halves, with the variance that the dependence implies.

    With halves of h rounds and d_n the difference of client n's counts,

        E Σ d_n² = 2 h Σ γ_n(0) (1 + 2 Σ_ℓ a(ℓ) R(ℓ)),    a(ℓ) = 1 − 3ℓ / 2h,  then ℓ / 2h − 1,

    from the pooled autocorrelation R, whatever the dependence is. Σ d_n² over that is compared with
    F: its numerator has the degrees of freedom (Σ v_n)² / Σ v_n² with v_n = γ_n(0) τ_n
    (Satterthwaite), its denominator those of the estimate of R.

    Args:
        log: who took part.
        correlation: of the log.
        times: τ_n, how differently the clients depend on their past, shape (N,).
        whole: halves hold a whole number of so many rounds (the period, where there is one).
    """
    half = log.length // (2 * whole) * whole
    if half == 0:
        return Drift(1.0, 1.0, 0.0, np.ones(log.size))
    first, second = _counts(log, 0, half), _counts(log, half, 2 * half)
    rates = (first + second) / (2 * half)
    variance = 2 * half * rates * (1 - rates)
    factor = _factor(correlation, half) if whole == 1 else max(0.05, 1 - correlation.values[whole])
    squares = (second - first) ** 2
    ratio = float(squares.sum() / max(variance.sum() * factor, 1e-12))
    spread = variance * times
    freedom = float(spread.sum() ** 2 / max((spread**2).sum(), 1e-12))
    lags = 1 + 2 * len(correlation.short)
    certainty = correlation.clients * correlation.length / lags
    p = f_above(ratio, max(freedom, 0.5), max(certainty, 1.0))
    beyond = max(0.0, float(squares.sum()) - float(variance.sum()) * factor)
    change = float(np.sqrt(beyond / max(log.size, 1)) / half / max(rates.mean(), 1e-12))
    return Drift(p, ratio, change, _each(first, second, variance * max(1.0, factor)))


def _each(first: Floats, second: Floats, variance: Floats) -> Floats:
    """Return a two-sided p-value per client, with a continuity correction."""
    distance = np.maximum(np.abs(second - first) - 1, 0)
    spread = np.sqrt(np.maximum(variance, 1e-12))
    freedom = np.maximum(np.minimum(first + second, 200), 2)
    return np.asarray(2 * student_above(distance / spread, freedom))


def _factor(correlation: Correlation, half: int) -> float:
    lags = np.arange(1, min(len(correlation.short), 2 * half - 1) + 1)
    weights = np.where(lags <= half, 1 - 3 * lags / (2 * half), lags / (2 * half) - 1)
    return max(0.05, 1 + 2 * float((weights * correlation.short[: len(lags)]).sum()))


def _counts(log: ParticipationLog, low: int, high: int) -> Floats:
    entries = log.clients[log.starts[low] : log.starts[high]]
    return np.bincount(entries, minlength=log.size).astype(np.float64)
