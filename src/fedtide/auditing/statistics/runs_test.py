"""Runs of presence: does a client's coming hang on whether it came a round before, or two?

All counts come from the gaps between a client's rounds, so they cost one pass over the entries,
whatever N and T are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtide.auditing.log.participation_log import Floats, Ints, ParticipationLog
from fedtide.auditing.statistics.distributions import runs_two_sided


@dataclass(frozen=True, eq=False)
class Runs:
    """Counts of patterns in each client's 0/1 series, all of shape (N,), float64.

    Args:
        length: T.
        ones: k, in how many rounds it was there.
        first: whether it was there in the first round.
        last: whether it was there in the last.
        pairs: how often 11 occurs.
        triples: how often 111 occurs.
        returns: how often 101 occurs.
        early: whether it was there in round 1.
        late: whether it was there in round T − 2.
    """

    length: int
    ones: Floats
    first: Floats
    last: Floats
    pairs: Floats
    triples: Floats
    returns: Floats
    early: Floats
    late: Floats

    @property
    def chances(self) -> tuple[Floats, Floats]:
        """The estimates of a = P(off → on) and b = P(on → off), with half a count added to each."""
        from_on = self.ones - self.last
        from_off = self.length - 1 - from_on
        on_off = from_on - self.pairs
        off_on = self.ones - self.first - self.pairs
        return (off_on + 0.5) / (from_off + 1), (on_off + 0.5) / (from_on + 1)

    @property
    def correlation(self) -> Floats:
        """ρ = 1 − a − b, mended for its bias of −(1 + 3ρ) / T (Kendall 1954), within ±0.999."""
        a, b = self.chances
        rho = 1 - a - b
        return np.clip(rho + (1 + 3 * rho) / self.length, -0.999, 1 - 1 / self.length)


def count_runs(log: ParticipationLog) -> Runs:
    """Return the counts of every client; one pass."""
    counts = np.zeros((3, log.size))
    for places, entries, begins in log.by_client():
        gaps = np.diff(log.rounds[entries])
        gaps[begins[1:-1][(begins[1:-1] > 0) & (begins[1:-1] <= len(gaps))] - 1] = 0
        adjacent = gaps == 1
        twice = np.zeros_like(adjacent)
        twice[1:] = adjacent[1:] & adjacent[:-1]
        for row, where in enumerate((adjacent, twice, gaps == 2)):
            counts[row, places] = _per_client(where, begins)
    ends = [_there(log, t) for t in (0, log.length - 1, 1, log.length - 2)]
    ones = log.counts.astype(np.float64)
    first, last, early, late = ends
    pairs, triples, returns = counts
    return Runs(log.length, ones, first, last, pairs, triples, returns, early, late)


def dependence_tests(runs: Runs) -> tuple[Floats, float]:
    """Test each client, and all together, for dependence on the round before.

    Given k ones in T rounds of which every arrangement is equally likely, the number of runs
    k − #11 is hypergeometric (Wald and Wolfowitz 1940):  C(k−1, r−1) C(T−k+1, r) / C(T, k).

    Returns:
        two-sided p-values, shape (N,); and z of the sum over the
        clients, positive where presence lasts.
    """
    k, length = runs.ones, float(runs.length)
    found = k - runs.pairs
    mean = k * (length - k + 1) / length
    variance = mean * (k - 1) * (length - k) / (length * max(length - 1, 1))
    total = float(np.sqrt(variance.sum()))
    z = float((mean - found).sum()) / total if total > 0 else 0.0
    varying = variance > 0
    p = np.ones(len(k))
    p[varying] = runs_two_sided(found[varying], k[varying], runs.length)
    return p, z


def memory_test(runs: Runs) -> tuple[float, float]:
    """Test whether one round back is all that matters: z and effect, pooled over the clients.

    Given the round between, x_t and x_{t+2} are independent in a Markov chain: the 2 × 2 tables of
    every client and every middle are added up (Cochran, Mantel and Haenszel). The effect is the
    common correlation, (observed − expected) / Σ variance-like margins.
    """
    m = float(runs.length - 2)
    if m < 3:
        return 0.0, 0.0
    on = runs.ones - runs.first - runs.last  # the middle is on
    before = runs.pairs - runs.last * runs.late  # 11?
    after = runs.pairs - runs.first * runs.early  # ?11
    z_on = _tables(runs.triples, before, after, on)
    off = m - on
    before = runs.ones - runs.last - runs.late - before  # 10?, x_t with t <= T - 3
    after = runs.ones - runs.first - runs.early - after  # ?01
    z_off = _tables(runs.returns, before, after, off)
    excess, variance, scale = (a + b for a, b in zip(z_on, z_off, strict=True))
    if variance <= 0:
        return 0.0, 0.0
    return excess / np.sqrt(variance), excess / scale


def _tables(both: Floats, rows: Floats, columns: Floats, total: Floats) -> tuple[float, ...]:
    """Return Σ (observed − expected), Σ hypergeometric variance, and Σ of the largest excess."""
    total = np.maximum(total, 2)
    excess = both - rows * columns / total
    spread = rows * (total - rows) * columns * (total - columns) / (total**2 * (total - 1))
    spread = np.maximum(spread, 0)
    return float(excess.sum()), float(spread.sum()), float(np.sqrt(spread * (total - 1)).sum())


def _per_client(where: np.ndarray, begins: Ints) -> Floats:
    """Return how many of the marked gaps each client has; gap i lies before entry i + 1."""
    totals = np.concatenate([[0], np.cumsum(where)])
    low = np.minimum(begins[:-1], len(where))
    high = np.maximum(low, np.minimum(begins[1:] - 1, len(where)))
    return np.asarray(totals[high] - totals[low], dtype=np.float64)


def _there(log: ParticipationLog, t: int) -> Floats:
    there = np.zeros(log.size)
    if 0 <= t < log.length:
        there[log.clients[log.starts[t] : log.starts[t + 1]]] = 1
    return there
