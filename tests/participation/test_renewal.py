"""Bernoulli, Markov and cyclic participation against their defining probabilities."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fedtide.participation import Bernoulli, Cyclic, Markov
from fedtide.population import Population

from .counting import is_plausible, simulate

CLIENTS = 400


@pytest.mark.parametrize("p", [0.01, 0.5])
def test_bernoulli_rounds_are_independent_coins(p: float) -> None:
    """Eight binomial tests, each wrong with probability 1e-6."""
    available = simulate(Bernoulli(p), 400, CLIENTS)
    assert is_plausible(available[0].sum(), CLIENTS, p)
    assert is_plausible(available.sum(), available.size, p)
    for lag in (1, 2, 7):
        before, after = available[:-lag], available[lag:]
        assert is_plausible((before & after).sum(), before.sum(), p)
        assert is_plausible((~before & after).sum(), (~before).sum(), p)


@pytest.mark.parametrize("process", [Bernoulli, Markov])
def test_rate_zero_is_never_and_rate_one_always_available(process: type) -> None:
    available = simulate(process(rates=[0.0, 1.0, 0.0]), rounds=300, clients=3)
    assert available[:, 1].all()
    assert not available[:, [0, 2]].any()


@pytest.mark.parametrize(
    ("p", "max_on"), [(0.01, 0.05), (1 / 21, 0.05), (0.5, 0.05), (0.1, 0.4), (0.9, 0.4)]
)
def test_markov_transition_frequencies(p: float, max_on: float) -> None:
    """Both transitions and the first round, as in the paper; each wrong with probability 1e-6."""
    on, off = max_on, max_on * (1 / p - 1)
    if off > 1:
        on, off = p / (1 - p), 1.0
    available = simulate(Markov(p, max_on=max_on), 400, CLIENTS)
    before, after = available[:-1], available[1:]
    assert is_plausible(available[0].sum(), CLIENTS, p)
    assert is_plausible((~before & after).sum(), (~before).sum(), on)
    assert is_plausible((before & ~after).sum(), before.sum(), off)


@pytest.mark.statistical
def test_markov_autocorrelation() -> None:
    """Lag k correlates by (1 − a − b)^k = 0.9^k; the tolerance is 6 standard errors (1e-8)."""
    available = simulate(Markov(0.5), 1000, CLIENTS).astype(float) - 0.5
    for lag in (1, 2, 5):
        measured = (available[:-lag] * available[lag:]).mean() / 0.25
        # The products are ±1/4 and correlate like the chain, over 1/(1 − 0.9) rounds each way.
        error = np.sqrt(2 / (1 - 0.9) / available[:-lag].size)
        assert abs(measured - 0.9**lag) < 6 * error


def test_markov_stays_stationary() -> None:
    """The number available in late rounds is Binomial(N, p); wrong with probability 1e-6 each."""
    available = simulate(Markov(0.2), rounds=301, clients=2000)
    for t in (0, 1, 50, 300):
        assert is_plausible(available[t].sum(), 2000, 0.2)


def run_lengths(available: NDArray) -> tuple[list[int], list[int]]:
    """Return the lengths of the complete on-runs and off-runs of one client."""
    changes = np.flatnonzero(np.diff(available.astype(int))) + 1
    pieces = np.split(available, changes)[1:-1]
    on = [len(piece) for piece in pieces if piece[0]]
    return on, [len(piece) for piece in pieces if not piece[0]]


@pytest.mark.parametrize(
    ("p", "active", "inactive", "start"),
    [
        (0.0, 1, 9, "stationary"),
        (0.25, 2, 8, "off"),
        (0.35, 4, 6, "stationary"),
        (1.0, 10, 1, "off"),
    ],
)
def test_cyclic_runs_are_exact(p: float, active: int, inactive: int, start: str) -> None:
    available = simulate(Cyclic(p, period=10, start=start), rounds=100, clients=50)
    for client in range(50):
        on, off = run_lengths(available[:, client])
        assert set(on) == {active}
        assert set(off) == {inactive}


def test_cyclic_stationary_start_is_uniform_over_the_cycle() -> None:
    """A chi-squared test of the first appearance over a cycle of 10, wrong with 1e-6."""
    available = simulate(Cyclic(0.3, period=10), rounds=11, clients=20_000)
    assert is_plausible(available[0].sum(), 20_000, 0.3)
    starts = available[1:11] & ~available[:10]
    assert stats.chisquare(starts.sum(axis=1)).pvalue > 1e-6


def test_cyclic_off_start_waits_uniformly() -> None:
    """First appearances on 0..B−1 for B = 7, all of them at the start of an on-run."""
    available = simulate(Cyclic(0.3, period=10, start="off"), rounds=20, clients=20_000)
    first = available.argmax(axis=0)
    assert stats.chisquare(np.bincount(first, minlength=7)).pvalue > 1e-6
    assert first.max() == 6
    assert available[first + 2, np.arange(20_000)].all()
    assert not available[first + 3, np.arange(20_000)].any()


@pytest.mark.statistical
def test_rare_clients_are_available_at_their_rate() -> None:
    """10⁶ clients of rate 1e-6 over 300 rounds: Poisson with mean 300; 6 deviations (1e-8)."""
    count = 0
    running = Bernoulli(1e-6).begin(Population(clients=1_000_000), seed=3)
    for t in range(300):
        count += len(running.round(t).clients)
    assert abs(count - 300) < 6 * np.sqrt(300)
