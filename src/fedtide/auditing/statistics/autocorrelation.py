"""Autocorrelation of participation, pooled over the clients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from fedtide.auditing.log.participation_log import Floats, Ints, ParticipationLog

_MAX_CELLS = 1 << 22
"""Above this number of (client, round) cells, a subset of the clients is used."""
_BATCH_CELLS = 1 << 20
"""Cells per Fourier transform."""
_PRODUCT_ROUNDS = 128
"""Rounds whose inner products measure the dependence between clients."""


@dataclass(frozen=True, eq=False)
class Autocorrelation:
    """R(ℓ) = Σ_n γ_n(ℓ) / Σ_n γ_n(0), with γ_n the autocovariance of client n's 0/1 series.

    Args:
        values: R(ℓ) for the lags ℓ = 0..T − 1, mean removed, each divided by its T − ℓ pairs.
        effective_clients: the number of equal, independent clients of the same information.
        design_effect: by how much dependence between clients increases the variance of R, >= 1.
        sampled: the number of clients used.
    """

    values: Floats
    effective_clients: float
    design_effect: float
    sampled: int

    @property
    def length(self) -> int:
        """The number of rounds, T."""
        return len(self.values)

    @cached_property
    def significant(self) -> Floats:
        """R(1), R(2), ... up to the first lag inside the noise, extended by geometric decay.

        Removing the mean of m rounds shifts R by −τ / m, τ = 1 + 2 Σ R(ℓ); the shift is corrected.
        """
        noise = 2 * self.standard_error(np.arange(1, self.length // 4 + 1), bartlett_factor=1.0)
        raw = self.values[1 : len(noise) + 1]
        shift = 0.0
        tail = np.zeros(0)
        for _ in range(8):
            corrected = (raw + shift) / (1 + shift)
            quiet = np.flatnonzero(np.abs(corrected) < noise)
            tail = corrected[: quiet[0] if len(quiet) else len(corrected)]
            tail = _extend_geometrically(tail, self.length)
            shift = max(0.0, 1 + 2 * float(tail.sum())) / self.length
        return tail

    @cached_property
    def integrated_time(self) -> float:
        """The integrated autocorrelation time τ = 1 + 2 Σ R(ℓ) in rounds, at least 0.01."""
        return max(0.01, 1 + 2 * float(self.significant.sum()))

    @cached_property
    def bartlett_factor(self) -> float:
        """1 + 2 Σ R(ℓ)², the factor on the variance of R at long lags (Bartlett)."""
        return 1 + 2 * float((self.significant**2).sum())

    def standard_error(self, lags: Ints, bartlett_factor: float | None = None) -> Floats:
        """Return the standard deviation of R at lags without correlation."""
        factor = self.bartlett_factor if bartlett_factor is None else bartlett_factor
        return np.asarray(np.sqrt(factor / (self.effective_clients * (self.length - lags))))

    def neighbour_correlation(self) -> tuple[float, float]:
        """Return R(1), corrected for the removed mean, and its standard deviation (Bartlett 1946).

        Var R(1) = Σ_{h >= 1} (R(h + 1) + R(h − 1) − 2 R(1) R(h))² / (m T)
        """
        if self.length < 3:
            return 0.0, np.inf
        shift = self.integrated_time / self.length
        estimate = (float(self.values[1]) + shift) / (1 + shift)
        r = np.concatenate([[1.0], self.significant, [0.0, 0.0]])
        terms = r[2:] + r[:-2] - 2 * (r[1] if len(self.significant) else 0.0) * r[1:-1]
        pairs = self.effective_clients * (self.length - 1)
        return estimate, float(np.sqrt((terms**2).sum() / pairs))

    def window_dispersion(self, window: int) -> tuple[float, float]:
        """Return the variance of counts in windows of L rounds, relative to independence, and sd.

        1 + 2 Σ_{ℓ < L} (1 − ℓ / L) R(ℓ),       sd ≈ 2 √(L / (3 m T))
        """
        window = min(window, self.length)
        lags = np.arange(1, window)
        shift = min(1.0, self.integrated_time) / self.length
        corrected = (self.values[1:window] + shift) / (1 + shift)
        ratio = 1 + 2 * float(((1 - lags / window) * corrected).sum())
        return ratio, 2 * float(np.sqrt(window / (3 * self.effective_clients * self.length)))


def estimate_autocorrelation(log: ParticipationLog) -> Autocorrelation | None:
    """Return the pooled autocorrelation; None if no client is sometimes present, sometimes absent.

    Above 4 million (client, round) cells, evenly spaced clients are used instead of all.

    Independent rounds give R a variance of tr Γ² / (tr Γ)² per pair of rounds, Γ the covariance
    matrix of the clients. If clients are independent, this is Σ γ_n(0)² / (Σ γ_n(0))². Otherwise
    it is larger; it is measured by the inner products of up to 128 rounds (`_measure_products`).
    """
    clients = _sample_changing_clients(log)
    if len(clients) == 0:
        return None
    length = log.length
    size = fft.next_fast_len(2 * length, real=True)
    power = np.zeros(size // 2 + 1)
    chosen = _spread_rounds(length)
    products = np.zeros((len(chosen), len(chosen)))
    for low in range(0, len(clients), rows := max(1, _BATCH_CELLS // length)):
        table = log.indicators(clients[low : low + rows])
        table -= table.mean(axis=1, keepdims=True)
        power += (np.abs(fft.rfft(table, size, axis=1)) ** 2).sum(axis=0, dtype=np.float64)
        products += table[:, chosen].T @ table[:, chosen]
    sums = fft.irfft(power, size)[:length]
    pairs = length - np.arange(length)
    rates = log.counts[clients] / length
    variances = rates * (1 - rates)
    values = sums / pairs / (sums[0] / length)
    independent = float((variances**2).sum() / variances.sum() ** 2)
    measured = _measure_products(products / (sums[0] / length), chosen, values)
    design_effect = max(1.0, measured / independent)
    return Autocorrelation(values, 1 / (independent * design_effect), design_effect, len(clients))


def _spread_rounds(length: int) -> Ints:
    """Return up to 128 rounds with differences of all sizes (multiples of the golden ratio)."""
    if length <= _PRODUCT_ROUNDS:
        return np.arange(length)
    places = np.arange(_PRODUCT_ROUNDS) * (np.sqrt(5) - 1) / 2 % 1
    return np.unique((places * length).astype(np.int64))


def _measure_products(products: Floats, rounds: Ints, values: Floats) -> float:
    """Return the mean of (x_s · x_t / tr Γ − R(t − s))² over pairs of rounds s < t <= s + T / 2."""
    lags = rounds[None, :] - rounds[:, None]
    inside = (lags > 0) & (lags <= len(values) // 2)
    if not inside.any():
        return 0.0
    return float(((products[inside] - values[lags[inside]]) ** 2).mean())


def _sample_changing_clients(log: ParticipationLog) -> Ints:
    """Return clients that are neither always present nor always absent, evenly spaced."""
    changing = np.flatnonzero((log.counts > 0) & (log.counts < log.length))
    most = max(8, _MAX_CELLS // log.length)
    if len(changing) <= most:
        return changing
    return changing[np.linspace(0, len(changing) - 1, most).astype(np.int64)]


def _extend_geometrically(tail: Floats, length: int) -> NDArray[np.float64]:
    """Append a geometric decay at the rate of the tail's first value."""
    if len(tail) == 0 or not 0 < tail[0] < 1:
        return tail
    rate = min(float(tail[0]), 1 - 1 / length)
    decay = tail[-1] * rate ** np.arange(1, length - len(tail))
    return np.concatenate([tail, decay[np.abs(decay) > 1e-6]])
