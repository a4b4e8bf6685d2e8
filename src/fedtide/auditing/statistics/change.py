"""A test for drift: participation rates that change over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from fedtide.auditing.log.participation_log import Floats, ParticipationLog
from fedtide.auditing.statistics.distributions import normal_isf, student_t_sf

_PERMUTATIONS = (499, 4500)
"""Permutations of the batches; the second number only if the first finds a p-value below 0.05."""
_MIN_BATCHES = 12
_CELLS = 1 << 22
"""(client, unit) cells per chunk; bounds the size of temporaries."""
_SLOW = 4
"""Cosine frequencies below this one may contain drift."""
_MAX_DROP = 0.3
"""The largest drop of correlation from neighbouring units to those two apart."""
_MEMORY_LEVEL = 0.05
"""Level of the tests for correlation between batches, which makes the log unfit for a verdict."""
_RETURN_LEVEL = 0.0003
"""Level of the test for returns at the distance of batches, which are obvious if they do harm."""
_MAX_MEMORY = 2.0
"""Clients whose autocorrelation time exceeds this many gaps are left out: sessions look like drift,
and a few such clients do not show in the correlation of all."""


@dataclass(frozen=True, eq=False)
class Drift:
    """The result of the test for drift.

    Args:
        p_value: for all clients together; None if the log does not allow the test.
        obstacle: to the test, in words; empty if there is a p-value.
        batches: the number of batches that were permuted.
        relative_change: root mean square difference between the rates of the two halves beyond
            chance, over the mean rate; 0 without batches.
        interval: of the relative change, 95%; None without batches.
        client_p_values: the p-value of each client, 1 where the log cannot tell, shape (N,).
    """

    p_value: float | None
    obstacle: str
    batches: int
    relative_change: float
    interval: tuple[float, float] | None
    client_p_values: Floats


@dataclass(frozen=True)
class _Layout:
    """How the log is cut: into units of equal length, some of them left out as gaps.

    Args:
        length: rounds per unit, a multiple of the period.
        batches: B.
        gap: 1 if batches are three units with one unit of gap after each, 0 if they are one unit.
    """

    length: int
    batches: int
    gap: int

    @property
    def units(self) -> int:
        """Units in the log, gaps included."""
        return self.batches * (4 if self.gap else 1)

    @property
    def batch_length(self) -> int:
        """Rounds per batch."""
        return self.length * (3 if self.gap else 1)


def detect_drift(log: ParticipationLog, period: int = 1, times: Floats | None = None) -> Drift:
    """Test whether the rates change over time.

    The log is cut into batches of equal length, whole multiples of the period, with gaps between
    them. If rates are constant and the memory of participation is shorter than a gap, batches are
    exchangeable, whatever the dependence between clients. With y_j the clients' counts in batch j,
    less their means over the batches,

        L = Σ_{i < B} ‖ y_1 + ... + y_i ‖²    (Nyblom 1989; Cramér–von Mises of the partial sums)

    is compared with its values for permuted batches. Whether the memory is short enough is tested
    too (`_batches_are_correlated`), with 12 to 32 batches, for the clients and for the cohort
    sizes, which show causes common to all clients. If it is not, if most clients' own memory is
    longer than the gaps, or if there are fewer batches, the log cannot tell drift from slow
    sessions. Clients that return after similar times, about the distance of two batches, meet the
    batches at a slowly changing phase; that is tested as well (`_returns_meet_batches`).

    Args:
        log: the participation log.
        period: of the participation, in rounds; 1 if there is none.
        times: the autocorrelation time of each client in rounds, shape (N,); None: 1.
    """
    own = np.ones(log.size) if times is None else times
    layouts = _choose_layouts(log.length // period, period)
    if not layouts:
        least = f"{4 * _MIN_BATCHES} rounds" if period == 1 else f"{_MIN_BATCHES} cycles"
        return _no_verdict(log, f"it needs at least {least}")
    similar = "slow sessions"
    for layout in layouts:
        judged = own <= _MAX_MEMORY * max(1, layout.gap) * layout.length
        if 2 * np.count_nonzero(judged & (log.counts > 0)) < np.count_nonzero(log.counts):
            continue
        gram, sizes, p_values = _compare_units(log, layout, judged)
        if any(_batches_are_correlated(one, layout) for one in (gram, np.outer(sizes, sizes))):
            continue
        if not _returns_meet_batches(gram, layout):
            break
        similar = "returns after similar times"
    else:
        return _no_verdict(
            log,
            f"batches of {layout.batch_length} rounds are still correlated, so the log cannot tell "
            f"drift from {similar}",
        )
    gram = _join_units(gram, layout)
    change, interval = _measure_change(gram, log, layout)
    return Drift(_permute(gram), "", layout.batches, change, interval, p_values)


def _no_verdict(log: ParticipationLog, obstacle: str) -> Drift:
    return Drift(None, obstacle, 0, 0.0, None, np.ones(log.size))


def _choose_layouts(cycles: int, period: int) -> list[_Layout]:
    """Return the layouts to try, shortest batches first; only cycles need no gaps."""
    if cycles < 4 * _MIN_BATCHES:
        return [_Layout(period, cycles, 0)] if period > 1 and cycles >= _MIN_BATCHES else []
    layouts = []
    for most in (32, 16):
        numbers = np.arange(max(_MIN_BATCHES, 3 * most // 4), most + 1)
        numbers = numbers[numbers <= cycles // 4]
        if len(numbers):
            used = cycles // (4 * numbers) * 4 * numbers
            batches = int(numbers[len(used) - 1 - np.argmax(used[::-1])])
            layouts.append(_Layout(cycles // (4 * batches) * period, batches, 1))
    return layouts


def _compare_units(
    log: ParticipationLog, layout: _Layout, judged: NDArray[np.bool_]
) -> tuple[Floats, Floats, Floats]:
    """Return the Gram matrix of the units' mean-free counts, their sums, and clients' p-values.

    Args:
        log: the participation log.
        layout: of the units.
        judged: the clients that count, (N,); the p-values of the others are 1.
    """
    units, end = layout.units, layout.units * layout.length
    gram, sizes = np.zeros((units, units)), np.zeros(units)
    p_values = np.ones(log.size)
    for clients, entries, starts in log.iter_client_chunks(_CELLS // units):
        rounds, number = log.rounds[entries], len(starts) - 1
        owner = np.repeat(np.arange(number), np.diff(starts))
        inside = rounds < end
        cells = owner[inside] * units + rounds[inside] // layout.length
        table = np.bincount(cells, minlength=number * units).reshape(-1, units)
        kept = judged[clients]
        counts = table[kept].astype(np.float32)
        p_values[clients][kept] = _test_clients(_join_columns(counts, layout), layout.batch_length)
        counts -= counts.mean(axis=1, keepdims=True)
        gram += counts.T @ counts
        sizes += counts.sum(axis=0)
    return gram, sizes, p_values


def _join_columns(table: NDArray[np.floating], layout: _Layout) -> Floats:
    """Sum the units of each batch, without the gaps."""
    if not layout.gap:
        return table.astype(np.float64)
    units = table.reshape(len(table), layout.batches, 4)
    return np.asarray(units[:, :, :3].sum(axis=2, dtype=np.float64))


def _join_units(gram: Floats, layout: _Layout) -> Floats:
    """Return the Gram matrix of the batches, mean removed, from that of the units."""
    joined = _join_columns(_join_columns(gram, layout).T, layout)
    joined = joined - joined.mean(axis=0)
    return np.asarray(joined - joined.mean(axis=1, keepdims=True))


def _test_clients(counts: Floats, rounds: int) -> Floats:
    """Return each client's p-value: Student's t test of the batches of the two halves.

    With continuity correction, and at least the variance of independent rounds: where turns are
    evened out, batches are not independent draws.

    Args:
        counts: per batch, shape (N, B).
        rounds: rounds per batch.
    """
    half = counts.shape[1] // 2
    first, second = counts[:, :half], counts[:, -half:]
    variance = half * (first.var(axis=1, ddof=1) + second.var(axis=1, ddof=1))
    rate = counts.mean(axis=1) / rounds
    variance = np.maximum(variance, 2 * half * rounds * rate * (1 - rate))
    distance = np.maximum(np.abs(second.sum(axis=1) - first.sum(axis=1)) - 1, 0)
    return np.asarray(2 * student_t_sf(distance / np.sqrt(np.maximum(variance, 1)), 2 * half - 2))


def _permute(gram: Floats) -> float:
    """Return the p-value of L by permutations of the batches."""
    batches = len(gram)
    if gram.trace() <= 0:
        return 1.0
    sums = np.tril(np.ones((batches, batches)))[:-1]
    kernel = sums.T @ sums
    observed = float((kernel * gram).sum()) * (1 - 1e-9)
    random = np.random.default_rng(0)
    exceeding, drawn = 0, 0
    for count in _PERMUTATIONS:
        draws = random.random((count, batches)).argsort(axis=1)
        permuted = gram[draws[:, :, None], draws[:, None, :]]
        exceeding += int((np.tensordot(permuted, kernel, axes=2) >= observed).sum())
        drawn += count
        if exceeding > 0.05 * drawn:
            break
    return (1 + exceeding) / (1 + drawn)


def _batches_are_correlated(gram: Floats, layout: _Layout) -> bool:
    """Return whether the memory of participation may reach across the gaps.

    It may if neighbouring units are much more alike than units two apart: then memory is about as
    long as a unit. It also may if units whose distance exceeds the gap are positively correlated.
    In the discrete cosine transform of the units, a slow change of the rates lies in the first
    frequencies, which are left out, and independent units have equal power P_k in the others. The
    statistic is Σ_k w_k P_k, w_k = Σ_l cos(π k l / n) over the lags l beyond the gap, up to a
    sixteenth of the units, free of the correlations at shorter lags. Its standard deviation comes
    from the products of different frequencies, which keeps the dependence between clients. A sudden
    change has power in all frequencies: the smaller of the values before and after removing the
    best split counts.
    """
    units = layout.units
    near, far = (np.trace(gram, lag) / (units - lag) for lag in (1, 2))
    if near - far > _MAX_DROP * np.trace(gram) / units:
        return True
    lags = np.arange(layout.gap + 1, layout.gap + 1 + max(2, units // 16))
    return _score(gram, layout, np.cos(_angles(units, lags)).sum(axis=1)) > normal_isf(
        _MEMORY_LEVEL
    )


def _returns_meet_batches(gram: Floats, layout: _Layout) -> bool:
    """Return whether units one return apart are more alike than those half a return off.

    Returns meet batches if they take about as long as the distance of two batches, or half of it.
    The correlation of slow changes, and of sessions, is smooth over such distances.
    """
    if not layout.gap:
        return False
    units, scores = layout.units, []
    for apart in (1.75, 2.0, 2.25, 3.5, 4.0, 4.5):  # units; batches are 4 units apart
        lags = np.arange(1, 1 + max(1, units // 16)) * apart
        weights = np.cos(_angles(units, lags)).sum(axis=1)
        for shift in (-apart / 2, apart / 2):
            weights -= np.cos(_angles(units, lags + shift)).sum(axis=1) / 2
        scores.append(_score(gram, layout, weights))
    return max(scores) > normal_isf(_RETURN_LEVEL)


def _angles(units: int, lags: NDArray[np.number]) -> Floats:
    """Return π k l / n for the frequencies k that hold no drift, and lags l, (n − 4, L)."""
    return np.outer(np.pi * np.arange(_SLOW, units) / units, np.asarray(lags, dtype=np.float64))


def _score(gram: Floats, layout: _Layout, weights: Floats) -> float:
    """Return Σ_k w_k P_k over its standard deviation, w free of correlations up to the gap."""
    shorter = np.cos(_angles(layout.units, np.arange(layout.gap + 1)))
    weights = weights - shorter @ np.linalg.lstsq(shorter, weights, rcond=None)[0]
    scores = []
    for matrix in (gram, _remove_best_split(gram)):
        power, square = _transform(matrix)
        noise = np.sqrt(2 * (weights**2).sum() * square)
        scores.append(float(weights @ power) / max(float(noise), 1e-9))
    return min(scores)


def _transform(gram: Floats) -> tuple[Floats, float]:
    """Return the power of the faster cosine frequencies, and the mean square of their products."""
    table = fft.dct(fft.dct(gram, axis=0, norm="ortho"), axis=1, norm="ortho")[_SLOW:, _SLOW:]
    products = table[~np.eye(len(table), dtype=bool)]
    return np.diag(table), float((products**2).mean())


def _remove_best_split(gram: Floats) -> Floats:
    """Return the Gram matrix after removing the means of the two parts that differ most."""
    units = len(gram)
    before = np.arange(2, units - 1)
    within = np.cumsum(np.cumsum(gram, axis=0), axis=1)[before - 1, before - 1]
    split = int(before[np.argmax(within * units / (before * (units - before)))])
    removal = np.eye(units)
    removal[:split, :split] -= 1 / split
    removal[split:, split:] -= 1 / (units - split)
    return np.asarray(removal @ gram @ removal)


def _measure_change(
    gram: Floats, log: ParticipationLog, layout: _Layout
) -> tuple[float, tuple[float, float]]:
    """Return the relative change of the rates between the halves, and its 95% interval.

    The noise of a batch comes from the differences between neighbours (von Neumann), the degrees
    of freedom ν from the products of different frequencies.
    """
    batches = len(gram)
    half = batches // 2
    sign = np.concatenate([-np.ones(half), np.zeros(batches % 2), np.ones(half)])
    scale = (half * layout.batch_length) ** 2
    step = np.diff(np.eye(batches), axis=0)
    noise = float(np.trace(step @ gram @ step.T)) / (2 * (batches - 1)) * 2 * half / scale
    excess = float(sign @ gram @ sign) / scale - noise
    power, square = _transform(gram)
    freedom = power.mean() ** 2 / max(square, 1e-12)
    error = np.sqrt(2 * noise**2 + 4 * max(excess, 0.0) * noise) / np.sqrt(max(freedom, 1.0))
    seen = max(1, int((log.counts > 0).sum()))
    rate = len(log.clients) / (log.length * seen)
    change, low, high = (
        float(np.sqrt(max(0.0, excess + z * error) / seen) / rate) for z in (0.0, -1.96, 1.96)
    )
    return change, (low, high)
