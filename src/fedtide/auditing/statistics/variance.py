"""How noisy a log's means over rounds are, where rounds hang together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtide.auditing.log.participation_log import Floats, Ints, ParticipationLog
from fedtide.auditing.statistics.distributions import normal_point, student_point
from fedtide.auditing.statistics.pattern import Pattern
from fedtide.auditing.statistics.rate_estimates import Rates

Parts = NDArray[np.floating]


class Noise:
    """The variances of means over rounds, by the pattern of the log.

    independent, markov, always: each client's part of a round counts √τ_n times, τ_n how many of
        its rounds tell as much as an independent one. What clients do in the same round (a cohort
        of fixed size, a common cause) stays together, and no block is too short for it.
    regularized: the same, with the τ_n that makes a client's count noisy by one round.
    cyclic: what is left after the mean of each place in the cycle, and by how much the incomplete
        last cycle moves the mean.
    drifting, undecided: as Markov, or by blocks of rounds on a circle, whichever is more.

    Args:
        log: who took part.
        pattern: of the log.
        rates: of the clients.
    """

    def __init__(self, log: ParticipationLog, pattern: Pattern, rates: Rates) -> None:
        self._log, self._pattern = log, pattern
        self.time = _times(pattern, rates, log.length)

    def variance(self, slopes: Floats, scale: Parts) -> float:
        """Return the variance of T⁻¹ Σ_t c_t Σ_{n in S_t} ψ_n.

        The ψ_n must be such that only their noise counts: Σ ψ_n w_n = 0 for means w_n.

        Args:
            slopes: ψ, shape (N,).
            scale: c_t, (T,); rounds of scale 0 do not count, in T neither. Or c_t^n, (E,), of each
                entry by round.
        """
        if self._pattern.period is not None:
            series, rounds = self._series(slopes, scale)
            return _beyond_cycle(series, rounds, self._pattern.period)
        series, _ = self._series(slopes * np.sqrt(self.time), scale)
        found = float(series.var() / len(series))
        if self._pattern.family not in ("drifting", "undecided"):
            return found
        series, _ = self._series(slopes, scale)
        return max(found, block_variance(series, block_length(self._pattern, len(series))))

    def times(self, weights: Floats, scale: Floats, rounds: int) -> Floats:
        """Return how many rounds tell as much as an independent one about each weight, (N,).

        A client's part of a round varies because it comes or not, p (1 − p) m² with m the mean
        when it comes, and because of how many others come, p m (c − m). The first lasts τ. So do
        the others' comings and goings, but a product of two such chances is there only while both
        last: of lag-1 correlation ρ², and time (1 + ρ²) / (1 − ρ²) = (τ + 1/τ) / 2.

        Args:
            weights: w, the mean part, shape (N,).
            scale: c = E[part²] / E[part], (N,).
            rounds: T.
        """
        rate = self._log.counts / rounds
        mean = np.divide(weights, rate, out=np.zeros(len(rate)), where=rate > 0)
        coming = rate * (1 - rate) * mean**2
        whole = np.maximum(weights * (scale - weights), coming)
        share = np.divide(coming, whole, out=np.ones(len(rate)), where=whole > 0)
        both = rate * self.time + (1 - rate) * (self.time + 1 / np.maximum(self.time, 1)) / 2
        return np.where(self.time > 1, share * self.time + (1 - share) * both, self.time)

    def rounds(self, scale: Parts) -> int:
        """Return T, how many rounds count."""
        of_rounds = len(scale) == self._log.length
        return int(np.count_nonzero(scale)) if of_rounds else self._log.length

    def _series(self, slopes: Floats, scale: Parts) -> tuple[Floats, Ints]:
        """Return c_t Σ_{n in S_t} ψ_n of the rounds that count, and which these are."""
        if len(scale) != self._log.length:
            return per_round(self._log, slopes, scale), np.arange(self._log.length)
        rounds = np.flatnonzero(scale)
        return (per_round(self._log, slopes) * scale)[rounds], rounds


def _times(pattern: Pattern, rates: Rates, length: int) -> Floats:
    """Return how many rounds tell as much as an independent one, for the mean over all of them."""
    spread = np.maximum(length * rates.estimate * (1 - rates.estimate), 1.0)
    if pattern.family == "regularized":
        return np.minimum(1.0, 1 / spread)
    if pattern.profile is None:
        return rates.time
    moved = length * (rates.estimate - pattern.profile.rate)
    return np.asarray(rates.time + moved**2 / spread)


def per_round(log: ParticipationLog, values: Floats, weights: Parts | None = None) -> Floats:
    """Return the sum of the values, times the weights, of each round's participants, (T,).

    Args:
        log: who took part.
        values: of the clients, shape (N,).
        weights: of the entries, by round, (E,).
    """
    sums = np.zeros(log.length)
    step = max(1, (1 << 22) * log.length // max(1, len(log.clients)))
    for low in range(0, log.length, step):
        high = min(low + step, log.length)
        part = log.clients[log.starts[low] : log.starts[high]]
        held = log.starts[low:high] < log.starts[low + 1 : high + 1]
        if held.any():
            begins = log.starts[low:high][held] - log.starts[low]
            found = values[part]
            if weights is not None:
                found = found * weights[log.starts[low] : log.starts[high]]
            sums[low:high][held] = np.add.reduceat(found, begins)
    return sums


def block_length(pattern: Pattern, length: int) -> int:
    """Return how many rounds a block must hold: 4 τ or ∛T, but at most an eighth of the log."""
    if pattern.correlation is None:
        return 1
    wanted = max(4 * pattern.correlation.time, length ** (1 / 3))
    return int(np.clip(np.ceil(wanted), 1, max(1, length // 8)))


def block_variance(series: Floats, block: int) -> float:
    """Return the variance of the mean of a series that a bootstrap of blocks gives.

    The mean of b = T / L blocks of L neighbouring rounds, on a circle, drawn with replacement, has
    the variance of the blocks' means over b (Politis and Romano 1992): nothing need be drawn. It is
    stretched by t / z √(b / (b − 1)) squared, since few blocks say little about it.

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
    stretch = float(student_point(0.025, blocks - 1)) / normal_point(0.025)
    return float(means.var()) / (blocks - 1) * stretch**2


def _beyond_cycle(series: Floats, rounds: Ints, period: int) -> float:
    """Return the variance of the mean of what a cycle of so many rounds leaves of a series."""
    place = rounds % period
    visits = np.bincount(place, minlength=period)
    means = np.bincount(place, series, minlength=period) / np.maximum(visits, 1)
    left = series - means[place]
    freedom = max(1, len(series) - int(np.count_nonzero(visits)))
    moved = float(series.mean() - means[visits > 0].mean())
    return float((left**2).sum()) / (freedom * len(series)) + moved**2
