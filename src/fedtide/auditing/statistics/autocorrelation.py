"""How the rounds of a client hang together: autocorrelation, pooled over the clients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from fedtide.auditing.log.participation_log import Floats, Ints, ParticipationLog

_CELLS = 1 << 22
"""How many (client, round) cells the clients that stand for all others have at most."""
_ROWS = 1 << 20
"""How many cells are transformed at a time."""


@dataclass(frozen=True, eq=False)
class Correlation:
    """R(ℓ) = Σ_n γ_n(ℓ) / Σ_n γ_n(0), with γ_n the autocovariance of client n's 0/1 series.

    Args:
        values: R(ℓ) for the lags ℓ = 0..T − 1, mean removed, each divided by its own T − ℓ pairs.
        clients: (Σ γ_n(0))² / Σ γ_n(0)²: how many equal clients would say as much.
        sampled: how many clients were looked at.
        pieces: from how many pieces of the log the mean was removed.
    """

    values: Floats
    clients: float
    sampled: int
    pieces: int = 1

    @property
    def length(self) -> int:
        """T."""
        return len(self.values)

    @cached_property
    def short(self) -> Floats:
        """R(1), R(2), ... while it stands out from its noise, then decaying geometrically.

        The removal of the mean of m rounds shifts R by −τ / m, with τ = 1 + 2 Σ R(ℓ): undone.
        """
        noise = 2 * self.noise(np.arange(1, self.length // 4 + 1), spread=1.0)
        raw = self.values[1 : len(noise) + 1]
        shift = 0.0
        tail = np.zeros(0)
        for _ in range(8):
            mended = (raw + shift) / (1 + shift)
            quiet = np.flatnonzero(np.abs(mended) < noise)
            tail = mended[: quiet[0] if len(quiet) else len(mended)]
            tail = _extended(tail, self.length)
            shift = self.pieces * max(0.0, 1 + 2 * float(tail.sum())) / self.length
        return tail

    @cached_property
    def time(self) -> float:
        """τ = 1 + 2 Σ R(ℓ), at least 0.01: how many rounds tell as much as one independent one."""
        return max(0.01, 1 + 2 * float(self.short.sum()))

    @cached_property
    def spread(self) -> float:
        """1 + 2 Σ R(ℓ)², by which a correlation that dies out makes long lags noisy (Bartlett)."""
        return 1 + 2 * float((self.short**2).sum())

    def noise(self, lags: Ints, spread: float | None = None) -> Floats:
        """Return the standard deviation of R at lags where there is no correlation."""
        spread = self.spread if spread is None else spread
        return np.asarray(np.sqrt(spread / (self.clients * (self.length - lags))))

    def dispersion(self, window: int) -> tuple[float, float]:
        """Return the variance of the count in a window over that of independent rounds, and sd.

        1 + 2 Σ_{ℓ < L} (1 − ℓ / L) R(ℓ),       sd ≈ 2 √(L / (3 m T))
        """
        window = min(window, self.length)
        lags = np.arange(1, window)
        shift = min(1.0, self.time) / self.length
        mended = (self.values[1:window] + shift) / (1 + shift)
        ratio = 1 + 2 * float(((1 - lags / window) * mended).sum())
        return ratio, 2 * float(np.sqrt(window / (3 * self.clients * self.length)))


def correlate(log: ParticipationLog, pieces: int = 1) -> Correlation | None:
    """Return the pooled autocorrelation; None where no client is sometimes there, sometimes not.

    Above 4 million cells, clients that are spread evenly over all of them stand for the rest.

    Args:
        log: who took part.
        pieces: into how many pieces the rounds are cut whose means are removed; 2 keeps a change
            of the rates half-way from looking like a long memory.
    """
    chosen = sample(log, _CELLS)
    if len(chosen) == 0:
        return None
    length = log.length
    size = fft.next_fast_len(2 * length, real=True)
    power = np.zeros(size // 2 + 1)
    for low in range(0, len(chosen), rows := max(1, _ROWS // length)):
        table = log.dense(chosen[low : low + rows])
        for part in np.array_split(table, pieces, axis=1):
            part -= part.mean(axis=1, keepdims=True)
        power += (np.abs(fft.rfft(table, size, axis=1)) ** 2).sum(axis=0, dtype=np.float64)
    sums = fft.irfft(power, size)[:length]
    if sums[0] <= 1e-9 * len(chosen):  # every piece is constant
        return None
    pairs = length - np.arange(length)
    rates = log.counts[chosen] / length
    variances = rates * (1 - rates)
    values = sums / pairs / (sums[0] / length)
    clients = float(variances.sum() ** 2 / (variances**2).sum())
    return Correlation(values, clients, len(chosen), pieces)


def sample(log: ParticipationLog, cells: int) -> Ints:
    """Return clients that come and go, evenly spread, of at most so many cells (but at least 8)."""
    changing = np.flatnonzero((log.counts > 0) & (log.counts < log.length))
    most = max(8, cells // log.length)
    if len(changing) <= most:
        return changing
    return changing[np.linspace(0, len(changing) - 1, most).astype(np.int64)]


def _extended(tail: Floats, length: int) -> NDArray[np.float64]:
    """Return the tail with the geometric decay that its first value promises appended."""
    if len(tail) == 0 or not 0 < tail[0] < 1:
        return tail
    rate = min(float(tail[0]), 1 - 1 / length)
    further = tail[-1] * rate ** np.arange(1, length - len(tail))
    return np.concatenate([tail, further[np.abs(further) > 1e-6]])
