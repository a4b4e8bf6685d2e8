"""A test for drift: participation rates that change over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.auditing.statistics.autocorrelation import Autocorrelation
from fedtide.auditing.statistics.distributions import f_sf, student_t_sf


@dataclass(frozen=True, eq=False)
class Drift:
    """The comparison of the first half of the log with the second.

    Args:
        p_value: for all clients together.
        ratio: squared differences between the halves, relative to those of a stationary log.
        relative_change: root mean square change of the rate beyond chance, over the mean rate.
        client_p_values: the p-value of each client, shape (N,).
    """

    p_value: float
    ratio: float
    relative_change: float
    client_p_values: Floats


def compare_halves(
    log: ParticipationLog, correlation: Autocorrelation, times: Floats, multiple: int = 1
) -> Drift:
    """Test whether the rates of the two halves differ by more than the autocorrelation implies.

    With halves of h rounds and d_n the difference of client n's counts,

        E Σ d_n² = 2 h Σ γ_n(0) (1 + 2 Σ_ℓ a(ℓ) R(ℓ)),    a(ℓ) = 1 − 3ℓ / 2h,  then ℓ / 2h − 1,

    from the pooled autocorrelation R, whatever the form of the dependence. Σ d_n² over this value
    is compared with F: its numerator has (Σ v_n)² / Σ v_n² degrees of freedom, v_n = γ_n(0) τ_n
    (Satterthwaite), its denominator those of the estimate of R.

    Args:
        log: the participation log.
        correlation: its pooled autocorrelation.
        times: autocorrelation times τ_n, shape (N,).
        multiple: each half holds a multiple of this many rounds (the period, if there is one).
    """
    half = log.length // (2 * multiple) * multiple
    if half == 0:
        return Drift(1.0, 1.0, 0.0, np.ones(log.size))
    first, second = _count(log, 0, half), _count(log, half, 2 * half)
    rates = (first + second) / (2 * half)
    variance = 2 * half * rates * (1 - rates)
    if multiple == 1:
        factor = _variance_factor(correlation, half)
    else:
        factor = max(0.05, 1 - correlation.values[multiple])
    squares = (second - first) ** 2
    ratio = float(squares.sum() / max(variance.sum() * factor, 1e-12))
    spread = variance * times
    numerator = float(spread.sum() ** 2 / max((spread**2).sum(), 1e-12))
    lags = 1 + 2 * len(correlation.significant)
    denominator = correlation.effective_clients * correlation.length / lags
    p = f_sf(ratio, max(numerator, 0.5), max(denominator, 1.0))
    beyond = max(0.0, float(squares.sum()) - float(variance.sum()) * factor)
    change = float(np.sqrt(beyond / max(log.size, 1)) / half / max(rates.mean(), 1e-12))
    return Drift(p, ratio, change, _test_clients(first, second, variance * max(1.0, factor)))


def _test_clients(first: Floats, second: Floats, variance: Floats) -> Floats:
    """Return a two-sided p-value per client, with continuity correction."""
    distance = np.maximum(np.abs(second - first) - 1, 0)
    spread = np.sqrt(np.maximum(variance, 1e-12))
    freedom = np.maximum(np.minimum(first + second, 200), 2)
    return np.asarray(2 * student_t_sf(distance / spread, freedom))


def _variance_factor(correlation: Autocorrelation, half: int) -> float:
    """Return 1 + 2 Σ_ℓ a(ℓ) R(ℓ), at least 0.05."""
    lags = np.arange(1, min(len(correlation.significant), 2 * half - 1) + 1)
    weights = np.where(lags <= half, 1 - 3 * lags / (2 * half), lags / (2 * half) - 1)
    return max(0.05, 1 + 2 * float((weights * correlation.significant[: len(lags)]).sum()))


def _count(log: ParticipationLog, low: int, high: int) -> Floats:
    """Return each client's participations in the rounds low..high − 1."""
    entries = log.clients[log.starts[low] : log.starts[high]]
    return np.bincount(entries, minlength=log.size).astype(np.float64)
