"""Periodograms of the participation of clients, and of sums over them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedtide.auditing.log.participation_log import Floats, Ints, ParticipationLog

FREQUENCIES = 32
"""The most frequencies that are used."""
_FEW_FREQUENCIES, _MANY_ENTRIES = 12, 4_000_000
"""Logs of many entries use fewer frequencies, as each takes a pass."""
_ROWS = 8192
"""In longer logs, the waves are constant over several neighbouring rounds."""
_CLIENTS = 1 << 15
"""The number of clients transformed at once."""
_LOWEST = 6
"""Frequencies that show what series have in common."""


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts c_t^n that participants have of a round: a factor of the round times their own.

    Args:
        rounds: the factors of the rounds, shape (T,); 0: the round is left out.
        entries: the participants' own factors, by round, (E,); None: 1.
    """

    rounds: Floats
    entries: Floats | None = None

    def count_rounds(self) -> int:
        """Return the number of rounds that are not left out."""
        return int(np.count_nonzero(self.rounds))


@dataclass(frozen=True, eq=False)
class Periodogram:
    """The periodograms of several series.

    Args:
        powers: |Σ_t y_t exp(−2πi f t / T)|² / T for f = 1, 2, ..., shape (series, m).
        means: the mean over whole cycles, shape (series,).
        rounds: the number of rounds in whole cycles.
        products: z_f · z_g, with z_f the values of all series at a frequency, (m, m).
    """

    powers: NDArray[np.floating]
    means: Floats
    rounds: int
    products: NDArray[np.complex128]

    @property
    def independent(self) -> float:
        """The number of independent series of equal power whose sum of powers varies as much.

        With Σ_f the covariance of z_f, the power Σ_n |z_fn|² has the mean tr Σ_f and the variance
        tr Σ_f². Two frequencies are independent, so the mean square of their inner product is
        tr Σ_f Σ_g. The number is

            Σ_{f ≠ g} |z_f|² |z_g|² / Σ_{f ≠ g} |z_f · z_g|²

        It is infinite if no dependence shows. Only the lowest frequencies count: causes in common
        may be slow, and chance is not.
        """
        products = self.products[:_LOWEST, :_LOWEST]
        powers = products.diagonal().real
        pairs = float(powers.sum() ** 2 - (powers**2).sum())
        shared = float((np.abs(products) ** 2).sum() - (powers**2).sum())
        return pairs / shared if shared > 1e-12 * powers.sum() ** 2 else np.inf


def client_periodograms(
    log: ParticipationLog,
    parts: Parts | None,
    means: Floats,
    period: int | None,
    cosines: bool = False,
) -> Periodogram:
    """Return the periodograms of the series y_t^n − w_n Σ_m y_t^m of the clients.

    Args:
        log: the participation log.
        parts: y_t^n of the participants; None: the series are y_t^n = 1[n in S_t] alone.
        means: w_n, shape (N,).
        period: of a cycle; its mean effect is removed, and an incomplete last cycle is left out.
        cosines: whether to project on cosines of f = 1/2, 1, 3/2, ... cycles instead of waves: a
            trend has nearly all of its power in the first ones.
    """
    most = FREQUENCIES if len(log.clients) <= _MANY_ENTRIES else _FEW_FREQUENCIES
    waves = _Waves(log.length, period, most, cosines)
    total = np.zeros(waves.count + 1, dtype=np.complex128)
    own = None
    if parts is not None:
        total = waves.transform_series(sum_by_round(log, np.ones(log.size), parts))
        own = None if parts.entries is None else log.sort_by_client(parts.entries)
    powers = np.zeros((log.size, waves.count), dtype=np.float32)
    products = np.zeros((waves.count, waves.count), dtype=np.complex128)
    found = np.zeros(log.size)
    for clients, entries, starts in log.iter_client_chunks(_CLIENTS):
        rounds = log.rounds[entries]
        values = None if parts is None else parts.rounds[rounds]
        if values is not None and own is not None:
            values *= own[entries]
        sums = waves.transform(rounds, values, starts)
        found[clients] = sums[:, 0].real / max(1, waves.rounds)
        sums -= np.outer(means[clients], total)
        powers[clients] = np.abs(sums[:, 1:]) ** 2 / max(1, waves.rounds)
        products += sums[:, 1:].conj().T @ sums[:, 1:]
    return Periodogram(powers, found, waves.rounds, products)


def series_periodogram(series: Floats, period: int | None) -> Periodogram:
    """Return the periodogram of one series, shape (T,)."""
    waves = _Waves(len(series), period)
    sums = waves.transform_series(series)
    rounds = max(1, waves.rounds)
    powers = np.abs(sums[None, 1:]) ** 2 / rounds
    return Periodogram(powers, sums[:1].real / rounds, waves.rounds, np.diag(powers[0] + 0j))


def sum_by_round(log: ParticipationLog, values: Floats, parts: Parts) -> Floats:
    """Return the sum of the participants' values, (N,), times their parts in each round, (T,)."""
    sums = np.zeros(log.length)
    step = max(1, (1 << 22) * log.length // max(1, len(log.clients)))
    for low in range(0, log.length, step):
        high = min(low + step, log.length)
        starts = log.starts[low : high + 1]
        nonempty = starts[:-1] < starts[1:]
        if nonempty.any():
            terms = values[log.clients[starts[0] : starts[-1]]]
            if parts.entries is not None:
                terms = terms * parts.entries[starts[0] : starts[-1]]
            sums[low:high][nonempty] = np.add.reduceat(terms, starts[:-1][nonempty] - starts[0])
    return sums * parts.rounds


class _Waves:
    """exp(−2πi f t / T) for f = 0, 1, ..., m and the rounds t of whole cycles.

    Or √2 cos(2π f (t + 1/2) / T) for f = 0, 1/2, ..., m / 2; constant within each cycle.
    """

    def __init__(
        self, length: int, period: int | None, most: int = FREQUENCIES, cosines: bool = False
    ) -> None:
        cycle = period or 1
        self.rounds = length // cycle * cycle
        below = length // cycle - 1 if period or cosines else (length - 1) // 2
        self.count = max(0, min(most, below))
        unit = cycle if cosines else 1
        self._step = unit * max(1, -(-self.rounds // (unit * _ROWS)))
        middle = (np.arange(-(-self.rounds // self._step)) + 0.5) * self._step
        angles = 2 * np.pi * np.outer(middle / max(1, self.rounds), np.arange(self.count + 1))
        if cosines:
            table = np.cos(angles / 2)
            table[:, 1:] *= np.sqrt(2)
        else:
            table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
        self._table = np.concatenate([table, np.zeros((1, table.shape[1]))])  # other rounds

    def transform(
        self, rounds: NDArray[np.int32], values: Floats | None, starts: Ints
    ) -> NDArray[np.complex128]:
        """Return Σ values · waves, by client, shape (clients, m + 1)."""
        last = len(self._table) - 1
        rows = np.where(rounds < self.rounds, rounds // self._step, last)
        data = np.ones(len(rows)) if values is None else values
        shape = (len(starts) - 1, last + 1)
        sums = sparse.csr_array((data, rows, starts.astype(rows.dtype)), shape=shape) @ self._table
        if self._table.shape[1] == self.count + 1:
            return np.asarray(sums, dtype=np.complex128)
        return np.asarray(sums[:, : self.count + 1] - 1j * sums[:, self.count + 1 :])

    def transform_series(self, series: Floats) -> NDArray[np.complex128]:
        """Return Σ_t series · waves, shape (m + 1,)."""
        rounds = np.arange(len(series), dtype=np.int32)
        return np.asarray(self.transform(rounds, series, np.array([0, len(series)]))[0])
