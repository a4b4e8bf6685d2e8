"""Dropout models."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedtide.errors import InvalidInputError
from fedtide.participation import (
    DROPOUTS,
    Bernoulli,
    Dropout,
    Full,
    NoDropout,
    RandomDropout,
    Schedule,
    Stragglers,
    UniformOf,
)
from fedtide.population import Population
from fedtide.testing import check_dropout

MODELS: dict[str, Dropout] = {
    "none": NoDropout(),
    "random": RandomDropout(0.4),
    "stragglers": Stragglers(close_after=5, deadline=2.0),
}


def test_every_registered_model_has_a_case() -> None:
    assert set(MODELS) == set(DROPOUTS)


@pytest.mark.parametrize("name", MODELS)
def test_a_dropout_model_keeps_its_contract(name: str) -> None:
    assert isinstance(MODELS[name], DROPOUTS[name])
    check_dropout(MODELS[name])


@given(seed=st.integers(0, 2**40), t=st.integers(0, 10**6), ids=st.sets(st.integers(0, 99)))
def test_random_dropout_is_a_function_of_client_and_round(seed, t, ids) -> None:
    clients = np.array(sorted(ids), dtype=np.int64)
    all_clients = RandomDropout(0.4).draw_mask(seed, t, np.arange(100))
    np.testing.assert_array_equal(
        RandomDropout(0.4).draw_mask(seed, t, clients), all_clients[clients]
    )


def test_dropout_frequency() -> None:
    """Binomial over clients and over rounds, each wrong with probability 1e-6."""
    masks = np.array([RandomDropout(0.2).draw_mask(1, t, np.arange(300)) for t in range(300)])
    assert stats.binomtest(int(masks.sum()), masks.size, 0.8).pvalue > 1e-6
    both = masks[1:] & masks[:-1]
    assert stats.binomtest(int(both.sum()), int(masks[:-1].sum()), 0.8).pvalue > 1e-6


@given(
    seed=st.integers(0, 2**40),
    t=st.integers(0, 10**6),
    ids=st.sets(st.integers(0, 99)),
    close_after=st.integers(1, 110),
    deadline=st.floats(0.1, 10.0),
)
def test_the_first_reports_end_a_round(seed, t, ids, close_after, deadline) -> None:
    clients = np.array(sorted(ids), dtype=np.int64)
    among = Stragglers(close_after).draw_mask(seed, t, clients)
    assert among.sum() == min(close_after, len(clients))
    in_time = Stragglers(deadline=deadline).draw_mask(seed, t, clients)
    np.testing.assert_array_equal(
        in_time, Stragglers(deadline=deadline).draw_mask(seed, t, np.arange(100))[clients]
    )
    # Whoever is in time is before whoever is not.
    both = Stragglers(close_after, deadline).draw_mask(seed, t, clients)
    np.testing.assert_array_equal(both, among & in_time)
    assert both.sum() == min(among.sum(), in_time.sum())


@pytest.mark.parametrize(("spread", "jitter"), [(1.0, 0.5), (0.3, 0.9)])
def test_who_was_in_time_before_is_likely_to_be_again(spread: float, jitter: float) -> None:
    """Two logarithms of times of a client are normal, with the correlation ρ = σ² / (σ² + τ²).

    So the same of two clients is first in two rounds with probability 1/2 + arcsin(ρ) / π, and a
    client meets the deadline D in both with that of the bivariate normal law. Both tests are wrong
    with probability 1e-6.
    """
    seeds, two, total = range(4000), np.arange(2), np.hypot(spread, jitter)
    correlation = spread**2 / total**2
    first = Stragglers(close_after=1, spread=spread, jitter=jitter)
    same = sum(
        bool((first.draw_mask(s, 3, two) == first.draw_mask(s, 4, two)).all()) for s in seeds
    )
    expected = 0.5 + np.arcsin(correlation) / np.pi
    assert stats.binomtest(same, len(seeds), expected).pvalue > 1e-6

    late = Stragglers(deadline=1.5, spread=spread, jitter=jitter)
    in_time = [late.draw_mask(s, 3, two[:1]) & late.draw_mask(s, 4, two[:1]) for s in seeds]
    law = stats.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]])
    expected = law.cdf(np.full(2, np.log(1.5) / total))
    assert stats.binomtest(int(np.sum(in_time)), len(seeds), expected).pvalue > 1e-6


def test_clients_are_slow_that_are_said_to_be() -> None:
    """P(d_a < d_b) = Φ(log(m_b / m_a) / (√2 τ)), by client names; wrong with probability 1e-6."""
    population, jitter = Population(clients=3, names=np.array(["a", "b", "c"])), 0.8
    model = Stragglers(1, times={"c": 1e9, "b": 3.0, "a": 2.0}, jitter=jitter)
    running = Schedule(Full(), dropout=model).start(population, seed=4)
    first = [int(running.round(t).reported[0]) for t in range(4000)]
    assert max(first) == 1
    expected = stats.norm.cdf(np.log(1.5) / (np.sqrt(2) * jitter))
    assert stats.binomtest(first.count(0), len(first), expected).pvalue > 1e-6
    in_time = Stragglers(deadline=2.5, times=[2.0, 3.0], jitter=0.0).draw_mask(4, 0, np.arange(2))
    assert in_time.tolist() == [True, False]


def test_ties_are_broken_at_random() -> None:
    """All are equally fast. A χ² test over 10 clients, wrong with probability 1e-6."""
    model = Stragglers(1, spread=0.0, jitter=0.0)
    first = sum(model.draw_mask(5, t, np.arange(10)).astype(int) for t in range(3000))
    assert stats.chisquare(first).pvalue > 1e-6


def test_rates_of_stragglers_are_not_known() -> None:
    schedule = Schedule(Bernoulli(0.5), UniformOf(13), Stragglers(close_after=10))
    population = Population(clients=13)
    assert schedule.reporting_probability(population) is None
    assert schedule.known_rates(population, seed=0) is None
    sizes = [len(schedule.start(population, 3).round(t).reported) for t in range(50)]
    assert max(sizes) == 10
    assert min(sizes) < 10  # with fewer available clients, it waits for all


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Stragglers(), "close_after: without it"),
        (lambda: Stragglers(0), "close_after: 0"),
        (lambda: Stragglers(deadline=0.0), "deadline: 0"),
        (lambda: Stragglers(3, spread=-1.0), "spread: -1"),
        (lambda: Stragglers(3, jitter=-1.0), "jitter: -1"),
        (lambda: Stragglers(3, times=[1.0, 0.0]), "times: 0"),
        (lambda: Stragglers(3, times={"a": -1.0}), "times: -1"),
        (
            lambda: Schedule(Full(), dropout=Stragglers(3, times=[1.0])).start(Population(2), 0),
            "dropout.times: 1 ",
        ),
    ],
)
def test_stragglers_that_cannot_be_are_refused(make, named) -> None:
    with pytest.raises(InvalidInputError, match=f"^{named}"):
        make()
