"""Tests for dependence between rounds, from the runs of each client's participation.

All counts come from the gaps between a client's rounds, in one pass over the entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtide.auditing.log.participation_log import Floats, ParticipationLog, find_gaps
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
    """

    length: int
    ones: Floats
    first: Floats
    last: Floats
    pairs: Floats
    triples: Floats
    returns: Floats

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
        gaps = find_gaps(log.rounds[entries], starts)
        adjacent = gaps == 1
        twice = np.zeros_like(adjacent)
        twice[1:] = adjacent[1:] & adjacent[:-1]
        for row, marked in enumerate((adjacent, twice, gaps == 2)):
            counts[row, clients] = np.diff(np.concatenate([[0], np.cumsum(marked)])[starts])
    ones, (pairs, triples, returns) = log.counts.astype(np.float64), counts
    first, last = _presence(log, 0), _presence(log, log.length - 1)
    return RunCounts(log.length, ones, first, last, pairs, triples, returns)


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

    For a Markov chain, given its k ones in r runs and its first and last round, all lengths of
    these runs are equally likely, and so are those of the zeros between. Runs of one round decide
    how often x_t = x_{t+2} = 1: #111 = k − 2r + #(runs of a single one), and #101 is the
    number of single zeros between two runs. The means and variances of both are exact.

    Returns:
        the effect, which is the excess of #111 + #101 over its mean relative to the variance that
        the previous round leaves, Σ k q (1 − q) over both states, each followed by a one k times
        with the frequency q; and its standard deviation without dependence, infinite if it is
        unknown.
    """
    ones, zeros = runs.ones, runs.length - runs.ones
    ones_runs = ones - runs.pairs
    gaps = np.maximum(ones_runs - 1, 0)
    zero_runs = np.where(ones_runs > 0, gaps + (1 - runs.first) + (1 - runs.last), 1)
    single_ones, variance = _count_single_rounds(ones, ones_runs, ones_runs)
    single_zeros, more = _count_single_rounds(zeros, zero_runs, gaps)
    excess = runs.triples - (ones - 2 * ones_runs + single_ones) + runs.returns - single_zeros
    stopped, started = ones_runs - runs.last, ones_runs - runs.first
    scale = _remaining_variance(ones, stopped) + _remaining_variance(zeros, started)
    total = float(scale.sum())
    noise = float(np.sqrt((variance + more).sum()))
    if noise <= 0 or total <= 0:
        return 0.0, np.inf
    return float(excess.sum()) / total, noise / total


def _count_single_rounds(rounds: Floats, runs: Floats, among: Floats) -> tuple[Floats, Floats]:
    """Return the mean and variance of the number of runs of a single round.

    If k rounds are in r runs, all lengths of which are equally likely, one run has length 1 with
    probability C(k − 2, r − 2) / C(k − 1, r − 1), and two runs both have it with probability
    C(k − 3, r − 3) / C(k − 1, r − 1).

    Args:
        rounds: k, shape (N,).
        runs: r, (N,).
        among: how many of these runs count, (N,).
    """
    every = (runs == rounds).astype(np.float64)  # then all have length 1
    one = np.divide(runs - 1, rounds - 1, out=every.copy(), where=rounds > 1)
    two = one * np.divide(runs - 2, rounds - 2, out=every.copy(), where=rounds > 2)
    mean = among * one
    variance = among * (among - 1) * two + mean - mean**2
    return mean, np.maximum(variance, 0.0)


def _remaining_variance(rounds: Floats, changes: Floats) -> Floats:
    """Return k q (1 − q) of a state in which clients spend k rounds and change q k times."""
    return changes * (1 - changes / np.maximum(rounds, 1))


def _presence(log: ParticipationLog, t: int) -> Floats:
    """Return 1 for the clients present in round t, shape (N,)."""
    present = np.zeros(log.size)
    present[log.clients[log.starts[t] : log.starts[t + 1]]] = 1
    return present
