"""Bernoulli, Markov and cyclic participation against their defining probabilities."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fedtide.participation import Availability, Bernoulli, Cyclic, Markov
from fedtide.population import Population

CLIENTS = 400


def presence(process: Availability, rounds: int, clients: int = CLIENTS, seed: int = 0) -> NDArray:
    """Return who is available when, shape (T, N)."""
    running = process.begin(Population(clients=clients), seed)
    there = np.zeros((rounds, clients), dtype=bool)
    for t in range(rounds):
        there[t, running.round(t).clients] = True
    return there


def agrees(successes: int, trials: int, probability: float) -> bool:
    """Two-sided binomial test that fails with probability at most 1e-6."""
    return stats.binomtest(int(successes), int(trials), probability).pvalue > 1e-6


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_bernoulli_rounds_are_independent_coins(p: float) -> None:
    """Eight binomial tests, each wrong with probability 1e-6."""
    there = presence(Bernoulli(p), rounds=400)
    assert agrees(there[0].sum(), CLIENTS, p)
    assert agrees(there.sum(), there.size, p)
    for lag in (1, 2, 7):
        before, after = there[:-lag], there[lag:]
        assert agrees((before & after).sum(), before.sum(), p)
        assert agrees((~before & after).sum(), (~before).sum(), p)


@pytest.mark.parametrize("process", [Bernoulli, Markov])
def test_rates_nought_and_one_are_never_and_always(process: type) -> None:
    there = presence(process(rates=[0.0, 1.0, 0.0]), rounds=300, clients=3)
    assert there[:, 1].all()
    assert not there[:, [0, 2]].any()


@pytest.mark.parametrize("p", [0.01, 0.03, 1 / 21, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("max_on", [0.05, 0.4])
def test_markov_transitions(p: float, max_on: float) -> None:
    """Both transitions and the first round, as the paper gives them; each wrong with 1e-6."""
    coming, leaving = max_on, max_on * (1 / p - 1)
    if leaving > 1:
        coming, leaving = p / (1 - p), 1.0
    there = presence(Markov(p, max_on=max_on), rounds=400)
    before, after = there[:-1], there[1:]
    assert agrees(there[0].sum(), CLIENTS, p)
    assert agrees((~before & after).sum(), (~before).sum(), coming)
    assert agrees((before & ~after).sum(), before.sum(), leaving)


def test_markov_autocorrelation() -> None:
    """Lag k correlates by (1 − a − b)^k = 0.9^k; the tolerance is 6 standard errors (1e-8)."""
    there = presence(Markov(0.5), rounds=1000).astype(float) - 0.5
    for lag in (1, 2, 5):
        measured = (there[:-lag] * there[lag:]).mean() / 0.25
        # The products are ±1/4 and correlate like the chain, over 1/(1 − 0.9) rounds each way.
        error = np.sqrt(2 / (1 - 0.9) / there[:-lag].size)
        assert abs(measured - 0.9**lag) < 6 * error


def test_markov_stays_stationary() -> None:
    """The number available in late rounds is Binomial(N, p); wrong with probability 1e-6 each."""
    there = presence(Markov(0.2), rounds=301, clients=2000)
    for t in (0, 1, 50, 300):
        assert agrees(there[t].sum(), 2000, 0.2)


def runs(there: NDArray) -> tuple[list[int], list[int]]:
    """Return the lengths of the complete on-runs and off-runs of one client."""
    changes = np.flatnonzero(np.diff(there.astype(int))) + 1
    pieces = np.split(there, changes)[1:-1]
    on = [len(piece) for piece in pieces if piece[0]]
    return on, [len(piece) for piece in pieces if not piece[0]]


@pytest.mark.parametrize("start", ["stationary", "off"])
@pytest.mark.parametrize(
    ("p", "active", "inactive"),
    [(0.0, 1, 9), (0.04, 1, 9), (0.25, 2, 8), (0.35, 4, 6), (0.9, 9, 1), (1.0, 10, 1)],
)
def test_cyclic_runs_are_exact(p: float, active: int, inactive: int, start: str) -> None:
    there = presence(Cyclic(p, period=10, start=start), rounds=100, clients=50)
    for client in range(50):
        on, off = runs(there[:, client])
        assert set(on) == {active}
        assert set(off) == {inactive}


def test_cyclic_stationary_start_is_uniform_over_the_cycle() -> None:
    """A chi-squared test of the first appearance over a cycle of 10, wrong with 1e-6."""
    there = presence(Cyclic(0.3, period=10), rounds=11, clients=20_000)
    assert agrees(there[0].sum(), 20_000, 0.3)
    begins = there[1:11] & ~there[:10]
    assert stats.chisquare(begins.sum(axis=1)).pvalue > 1e-6


def test_cyclic_off_start_waits_uniformly() -> None:
    """First appearances on 0..B−1 for B = 7, all of them at the start of an on-run."""
    there = presence(Cyclic(0.3, period=10, start="off"), rounds=20, clients=20_000)
    first = there.argmax(axis=0)
    assert stats.chisquare(np.bincount(first, minlength=7)).pvalue > 1e-6
    assert first.max() == 6
    assert there[first + 2, np.arange(20_000)].all()
    assert not there[first + 3, np.arange(20_000)].any()


def test_rare_clients_come_at_the_right_rate() -> None:
    """10⁶ clients of rate 1e-6 over 300 rounds: Poisson with mean 300; 6 deviations (1e-8)."""
    count = 0
    running = Bernoulli(1e-6).begin(Population(clients=1_000_000), seed=3)
    for t in range(300):
        count += len(running.round(t).clients)
    assert abs(count - 300) < 6 * np.sqrt(300)
