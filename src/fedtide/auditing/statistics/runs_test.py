"""Tests for dependence between rounds, from the runs of each client's participation.

All counts come from the gaps between a client's rounds, in one pass over the entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtide.auditing.log.participation_log import Floats, Ints, ParticipationLog
from fedtide.auditing.statistics.distributions import runs_moments, runs_p_value


@dataclass(frozen=True, eq=False)
class RunCounts:
    """Pattern counts in each client's 0/1 series, all of shape (N,), float64.

    Args:
        length: T.
        ones: k, the number of rounds with the client present.
        first: 1 if it was present in round 0.
        last: 1 if it was present in round T − 1.
        pairs: occurrences of 11.
        triples: occurrences of 111.
        returns: occurrences of 101.
        second: 1 if it was present in round 1.
        second_last: 1 if it was present in round T − 2.
    """

    length: int
    ones: Floats
    first: Floats
    last: Floats
    pairs: Floats
    triples: Floats
    returns: Floats
    second: Floats
    second_last: Floats

    @property
    def transition_probabilities(self) -> tuple[Floats, Floats]:
        """Estimates of a = P(off → on) and b = P(on → off), half a count added to each outcome."""
        from_on = self.ones - self.last
        from_off = self.length - 1 - from_on
        on_off = from_on - self.pairs
        off_on = self.ones - self.first - self.pairs
        return (off_on + 0.5) / (from_off + 1), (on_off + 0.5) / (from_on + 1)

    @property
    def correlation(self) -> Floats:
        """ρ = 1 − a − b, corrected for its bias −(1 + 3ρ) / T (Kendall 1954), within ±0.999."""
        a, b = self.transition_probabilities
        rho = 1 - a - b
        return np.clip(rho + (1 + 3 * rho) / self.length, -0.999, 1 - 1 / self.length)

    @property
    def autocorrelation_time(self) -> Floats:
        """τ = (1 + ρ) / (1 − ρ) rounds, that of a Markov chain of this correlation."""
        return np.asarray((1 + self.correlation) / (1 - self.correlation))


def count_runs(log: ParticipationLog) -> RunCounts:
    """Return the pattern counts of every client, in one pass."""
    counts = np.zeros((3, log.size))
    for clients, entries, starts in log.iter_client_chunks():
        gaps = np.diff(log.rounds[entries])
        gaps[starts[1:-1][(starts[1:-1] > 0) & (starts[1:-1] <= len(gaps))] - 1] = 0
        adjacent = gaps == 1
        twice = np.zeros_like(adjacent)
        twice[1:] = adjacent[1:] & adjacent[:-1]
        for row, marked in enumerate((adjacent, twice, gaps == 2)):
            counts[row, clients] = _count_per_client(marked, starts)
    ones, (pairs, triples, returns) = log.counts.astype(np.float64), counts
    first, last, second, second_last = (
        _presence(log, t) for t in (0, log.length - 1, 1, log.length - 2)
    )
    return RunCounts(log.length, ones, first, last, pairs, triples, returns, second, second_last)


def run_lag_one_tests(runs: RunCounts) -> tuple[Floats, float]:
    """Test each client, and all clients together, for dependence on the previous round.

    Given k ones in T rounds, all arrangements equally likely, the number of runs k − #11 is
    hypergeometric (Wald and Wolfowitz 1940).

    Returns:
        two-sided p-values, shape (N,); and z of the sum over the clients, positive if presence
        persists.
    """
    counts = runs.ones - runs.pairs
    mean, variance = runs_moments(runs.ones, runs.length)
    total = float(np.sqrt(variance.sum()))
    z = float((mean - counts).sum()) / total if total > 0 else 0.0
    varying = variance > 0
    p = np.ones(len(counts))
    p[varying] = runs_p_value(counts[varying], runs.ones[varying], runs.length)
    return p, z


def run_second_order_test(runs: RunCounts) -> tuple[float, float]:
    """Test for dependence beyond the previous round, pooled over clients.

    In a Markov chain x_t and x_{t+2} are independent given the round between: the 2 × 2 tables of
    every client and every middle state are combined (Cochran, Mantel and Haenszel). The effect is
    the common correlation: Σ (observed − expected) relative to its largest possible value.

    Returns:
        the effect and its standard deviation without dependence, infinite if it is unknown.
    """
    m = float(runs.length - 2)
    if m < 3:
        return 0.0, np.inf
    on = runs.ones - runs.first - runs.last  # middle round on
    before = runs.pairs - runs.last * runs.second_last  # 11?
    after = runs.pairs - runs.first * runs.second  # ?11
    sums_on = _combine_tables(runs.triples, before, after, on)
    before = runs.ones - runs.last - runs.second_last - before  # 10?, x_t with t <= T - 3
    after = runs.ones - runs.first - runs.second - after  # ?01
    sums_off = _combine_tables(runs.returns, before, after, m - on)
    excess, variance, scale = (a + b for a, b in zip(sums_on, sums_off, strict=True))
    if variance <= 0:
        return 0.0, np.inf
    return excess / scale, float(np.sqrt(variance)) / scale


def _combine_tables(
    both: Floats, rows: Floats, columns: Floats, total: Floats
) -> tuple[float, ...]:
    """Return Σ (observed − expected), Σ hypergeometric variance, and Σ of the largest excess."""
    total = np.maximum(total, 2)
    excess = both - rows * columns / total
    spread = rows * (total - rows) * columns * (total - columns) / (total**2 * (total - 1))
    spread = np.maximum(spread, 0)
    return float(excess.sum()), float(spread.sum()), float(np.sqrt(spread * (total - 1)).sum())


def _count_per_client(marked: np.ndarray, starts: Ints) -> Floats:
    """Return each client's number of marked gaps; gap i lies before entry i + 1."""
    totals = np.concatenate([[0], np.cumsum(marked)])
    low = np.minimum(starts[:-1], len(marked))
    high = np.maximum(low, np.minimum(starts[1:] - 1, len(marked)))
    return np.asarray(totals[high] - totals[low], dtype=np.float64)


def _presence(log: ParticipationLog, t: int) -> Floats:
    """Return 1 for the clients present in round t, shape (N,)."""
    present = np.zeros(log.size)
    if 0 <= t < log.length:
        present[log.clients[log.starts[t] : log.starts[t + 1]]] = 1
    return present
