"""Variance of a log's means over rounds when rounds are dependent."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtide.auditing.log.participation_log import Floats, Ints, ParticipationLog
from fedtide.auditing.statistics.distributions import normal_isf, student_t_isf
from fedtide.auditing.statistics.pattern import Pattern
from fedtide.auditing.statistics.rate_estimates import RateEstimates

Scale = NDArray[np.floating]
"""Factors c_t of each round, shape (T,), or c_t^n of each entry by round, (E,)."""


class VarianceModel:
    """Variances of means over rounds, by the pattern of the log.

    independent, markov, always: each client's part of a round counts √τ_n times, τ_n its
        integrated autocorrelation time. Dependence within a round (a fixed cohort size, a common
        cause) is kept, and no blocks of rounds are needed.
    regularized: the same, with the τ_n that makes a client's count noisy by one round.
    cyclic: the residual variance around the mean of each position in the cycle, plus the shift of
        the mean by the incomplete last cycle.
    drifting, undecided: as Markov, or by a circular block bootstrap, whichever is larger.

    Args:
        log: the participation log.
        pattern: of the log.
        rates: of the clients.
    """

    def __init__(self, log: ParticipationLog, pattern: Pattern, rates: RateEstimates) -> None:
        self._log, self._pattern = log, pattern
        self._time = _autocorrelation_times(pattern, rates, log.length)

    def variance(self, slopes: Floats, scale: Scale) -> float:
        """Return the variance of T⁻¹ Σ_t c_t Σ_{n in S_t} ψ_n.

        The ψ_n must be centred: Σ ψ_n w_n = 0 for means w_n.

        Args:
            slopes: ψ, shape (N,).
            scale: c; rounds of scale 0 are left out, also of T.
        """
        if self._pattern.period is not None:
            series, rounds = self._round_series(slopes, scale)
            return _residual_variance(series, rounds, self._pattern.period)
        series, _ = self._round_series(slopes * np.sqrt(self._time), scale)
        variance = float(series.var() / len(series))
        if self._pattern.family not in ("drifting", "undecided"):
            return variance
        series, _ = self._round_series(slopes, scale)
        return max(variance, block_variance(series, _block_length(self._pattern, len(series))))

    def weight_times(self, weights: Floats, scale: Floats, rounds: int) -> Floats:
        """Return the integrated autocorrelation time of each client's weight, in rounds, (N,).

        A client's part of a round varies with its presence, by p (1 − p) m² with m the mean when
        present, and with the number of other participants, by p m (c − m). Presence has the time τ.
        The second part is a product of two such variables and decays faster: its lag-1 correlation
        is ρ², its time (1 + ρ²) / (1 − ρ²) = (τ + 1/τ) / 2.

        Args:
            weights: the mean part w, shape (N,).
            scale: c = E[part²] / E[part], (N,).
            rounds: T.
        """
        rate = self._log.counts / rounds
        mean = np.divide(weights, rate, out=np.zeros(len(rate)), where=rate > 0)
        presence = rate * (1 - rate) * mean**2
        total = np.maximum(weights * (scale - weights), presence)
        share = np.divide(presence, total, out=np.ones(len(rate)), where=total > 0)
        tau = self._time
        product = rate * tau + (1 - rate) * (tau + 1 / np.maximum(tau, 1)) / 2
        return np.where(tau > 1, share * tau + (1 - share) * product, tau)

    def count_rounds(self, scale: Scale) -> int:
        """Return T, the number of rounds of nonzero scale."""
        of_rounds = len(scale) == self._log.length
        return int(np.count_nonzero(scale)) if of_rounds else self._log.length

    def _round_series(self, slopes: Floats, scale: Scale) -> tuple[Floats, Ints]:
        """Return c_t Σ_{n in S_t} ψ_n for the rounds of nonzero scale, and these rounds."""
        if len(scale) != self._log.length:
            return sum_by_round(self._log, slopes, scale), np.arange(self._log.length)
        rounds = np.flatnonzero(scale)
        return (sum_by_round(self._log, slopes) * scale)[rounds], rounds


def sum_by_round(log: ParticipationLog, values: Floats, weights: Scale | None = None) -> Floats:
    """Return the sum of the participants' values in each round, (T,).

    Args:
        log: the participation log.
        values: one per client, shape (N,).
        weights: factors of the entries, by round, (E,).
    """
    sums = np.zeros(log.length)
    step = max(1, (1 << 22) * log.length // max(1, len(log.clients)))
    for low in range(0, log.length, step):
        high = min(low + step, log.length)
        starts = log.starts[low : high + 1]
        nonempty = starts[:-1] < starts[1:]
        if nonempty.any():
            terms = values[log.clients[starts[0] : starts[-1]]]
            if weights is not None:
                terms = terms * weights[starts[0] : starts[-1]]
            sums[low:high][nonempty] = np.add.reduceat(terms, starts[:-1][nonempty] - starts[0])
    return sums


def block_variance(series: Floats, block: int) -> float:
    """Return the variance of a series' mean by the circular block bootstrap.

    The mean of b = T / L blocks of L neighbouring rounds, drawn with replacement, has the variance
    of the block means over b (Politis and Romano 1992), so no resampling is needed. It is
    multiplied by (t / z)² b / (b − 1), because few blocks estimate it poorly.

    Args:
        series: one value per round, shape (T,).
        block: L.
    """
    blocks = max(1, round(len(series) / block))
    if blocks < 2:
        return 0.0
    centred = series - series.mean()
    sums = np.cumsum(np.concatenate([[0.0], centred, centred]))
    means = (sums[block : block + len(series)] - sums[: len(series)]) / block
    stretch = float(student_t_isf(0.025, blocks - 1)) / normal_isf(0.025)
    return float(means.var()) / (blocks - 1) * stretch**2


def _autocorrelation_times(pattern: Pattern, rates: RateEstimates, length: int) -> Floats:
    """Return τ_n for means over all rounds."""
    spread = np.maximum(length * rates.estimate * (1 - rates.estimate), 1.0)
    if pattern.family == "regularized":
        return np.minimum(1.0, 1 / spread)
    if pattern.profile is None:
        return rates.autocorrelation_time
    shift = length * (rates.estimate - pattern.profile.rate)
    return np.asarray(rates.autocorrelation_time + shift**2 / spread)


def _block_length(pattern: Pattern, length: int) -> int:
    """Return the block length in rounds: 4 τ or ∛T, but at most an eighth of the log."""
    if pattern.correlation is None:
        return 1
    wanted = max(4 * pattern.correlation.integrated_time, length ** (1 / 3))
    return int(np.clip(np.ceil(wanted), 1, max(1, length // 8)))


def _residual_variance(series: Floats, rounds: Ints, period: int) -> float:
    """Return the variance of a series' mean after removing the mean of each cycle position."""
    position = rounds % period
    visits = np.bincount(position, minlength=period)
    means = np.bincount(position, series, minlength=period) / np.maximum(visits, 1)
    residuals = series - means[position]
    freedom = max(1, len(series) - int(np.count_nonzero(visits)))
    shift = float(series.mean() - means[visits > 0].mean())
    return float((residuals**2).sum()) / (freedom * len(series)) + shift**2
