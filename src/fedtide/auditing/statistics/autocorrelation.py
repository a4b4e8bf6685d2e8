"""Autocorrelation of participation, pooled over the clients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from fedtide.auditing.log.participation_log import Floats, Ints, ParticipationLog

_MAX_CELLS = 1 << 22
"""Above this number of (client, round) cells, a sample of the clients is used."""
_BATCH_CELLS = 1 << 20
"""Cells per Fourier transform."""
_WINDOWS, _GROUP = 32, 16
"""Windows for the dependence between clients over longer times; products of similar distance."""
_PRODUCT_ROUNDS = 128
"""Rounds whose inner products measure the dependence between clients."""


@dataclass(frozen=True, eq=False)
class Autocorrelation:
    """R(ℓ) = Σ_n γ_n(ℓ) / Σ_n γ_n(0), with γ_n the autocovariance of client n's 0/1 series.

    Args:
        values: R(ℓ) for the lags ℓ = 0..T − 1, mean removed, each divided by its T − ℓ pairs.
        effective_clients: the number of equal, independent clients with the same information.
        slow_clients: the same for means over windows of rounds: fewer if groups of clients share
            slow causes, but not fast ones.
        design_effect: by how much dependence between clients increases the variance of R, >= 1.
    """

    values: Floats
    effective_clients: float
    slow_clients: float
    design_effect: float

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
    def bartlett_factor(self) -> float:
        """1 + 2 Σ R(ℓ)², the factor on the variance of R at long lags (Bartlett)."""
        return 1 + 2 * float((self.significant**2).sum())

    def standard_error(self, lags: Ints, bartlett_factor: float | None = None) -> Floats:
        """Return the standard deviation of R at lags without correlation."""
        factor = self.bartlett_factor if bartlett_factor is None else bartlett_factor
        return np.asarray(np.sqrt(factor / (self.effective_clients * (self.length - lags))))


def estimate_autocorrelation(log: ParticipationLog) -> Autocorrelation | None:
    """Return the pooled autocorrelation; None if no client is sometimes present, sometimes absent.

    Above 4 million (client, round) cells, a sample of the clients is used instead of all.

    Independent rounds give R a variance of tr Γ² / (tr Γ)² per pair of rounds, Γ the covariance
    matrix of the clients. If clients are independent, this is Σ γ_n(0)² / (Σ γ_n(0))². Otherwise
    it is larger; it is measured by the inner products of up to 128 rounds, and of 32 windows
    (`_measure_products`).
    """
    length, changing = log.length, (log.counts > 0) & (log.counts < log.length)
    if not changing.any():
        return None
    most = max(8, _MAX_CELLS // length)
    clients = log.sample_clients(most / np.count_nonzero(changing), changing)
    size = fft.next_fast_len(2 * length, real=True)
    power = np.zeros(size // 2 + 1)
    chosen = _spread_rounds(length)
    products = np.zeros((len(chosen), len(chosen)))
    edges = np.unique(np.arange(_WINDOWS) * length // _WINDOWS)
    slow = np.zeros((len(edges), len(edges)))
    for low in range(0, len(clients), rows := max(1, _BATCH_CELLS // length)):
        table = log.indicators(clients[low : low + rows])
        table -= table.mean(axis=1, keepdims=True)
        power += (np.abs(fft.rfft(table, size, axis=1)) ** 2).sum(axis=0, dtype=np.float64)
        products += table[:, chosen].T @ table[:, chosen]
        sums_of_windows = np.add.reduceat(table, edges, axis=1)
        slow += sums_of_windows.T @ sums_of_windows
    sums = fft.irfft(power, size)[:length]
    pairs = length - np.arange(length)
    rates = log.counts[clients] / length
    variances = rates * (1 - rates)
    values = sums / pairs / (sums[0] / length)
    independent = float((variances**2).sum() / variances.sum() ** 2)
    measured = _measure_products(products, chosen)
    design_effect = max(1.0, measured / independent)
    effective = 1 / (independent * design_effect)
    slow_clients = min(effective, 1 / max(_measure_products(slow, np.arange(len(edges))), 1e-12))
    return Autocorrelation(values, effective, slow_clients, design_effect)


def _spread_rounds(length: int) -> Ints:
    """Return up to 128 rounds with differences of all sizes (multiples of the golden ratio)."""
    if length <= _PRODUCT_ROUNDS:
        return np.arange(length)
    places = np.arange(_PRODUCT_ROUNDS) * (np.sqrt(5) - 1) / 2 % 1
    return np.unique((places * length).astype(np.int64))


def _measure_products(products: Floats, times: Ints) -> float:
    """Return tr Γ² / (tr Γ)²: the mean square of x_s · x_t / tr Γ over pairs s < t <= s + T / 2.

    The mean of the products at similar distances, which is correlation, is removed.

    Args:
        products: x_s · x_t of mean-free rounds or windows, shape (m, m).
        times: s, ascending or not, (m,).
    """
    lags = times[None, :] - times[:, None]
    inside = (lags > 0) & (lags <= (times.max() - times.min()) / 2)
    scale = float(np.trace(products)) / len(products)
    if not inside.any() or scale <= 0:
        return 0.0
    order = np.argsort(lags[inside], kind="stable")
    groups = np.array_split(products[inside][order] / scale, max(1, len(order) // _GROUP))
    freedom = sum(len(group) - 1 for group in groups)
    return sum(float(((group - group.mean()) ** 2).sum()) for group in groups) / max(freedom, 1)


def _extend_geometrically(tail: Floats, length: int) -> NDArray[np.float64]:
    """Append a geometric decay at the rate of the tail's first value."""
    if len(tail) == 0 or not 0 < tail[0] < 1:
        return tail
    rate = min(float(tail[0]), 1 - 1 / length)
    decay = tail[-1] * rate ** np.arange(1, length - len(tail))
    return np.concatenate([tail, decay[np.abs(decay) > 1e-6]])
