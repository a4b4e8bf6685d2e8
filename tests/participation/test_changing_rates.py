"""Processes whose rates change, and sessions, against their closed forms.

Binomial and chi-squared tests with fixed seeds; each is wrong with probability 1e-6.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fedtide.participation import (
    Availability,
    AvailableClients,
    Churn,
    DayNight,
    Drifting,
    Fluctuating,
    LeastFrequent,
    Sessions,
    UniformByClass,
    resolve_rates,
)
from fedtide.population import Population
from fedtide.randomness import generator

from .counting import is_plausible, simulate


def sine(p: float, t: int) -> float:
    return p * (0.3 * np.sin(2 * np.pi / 20 * t) + 0.7)


def interleaved_sine(p: float, t: int) -> float:
    return sine(p, t) if sine(p, t) >= 0.1 else 0.0


def staircase(p: float, t: int) -> float:
    return 0.4 * p if (t // 10) % 2 == 1 else p


PAPER = {"sine": sine, "interleaved-sine": interleaved_sine, "staircase": staircase}
"""p_i^t of FedAWE's appendix J.3 and of its program, with P = 20, γ = 0.3, δ_0 = 0.1."""


@pytest.mark.parametrize("p", [0.12, 1.0])
@pytest.mark.parametrize("shape", PAPER)
def test_fluctuating_rates_are_those_of_the_paper(shape: str, p: float) -> None:
    available = simulate(Fluctuating(p, shape), rounds=40, clients=500)
    for t in range(20):
        came = available[[t, t + 20]].sum()
        assert is_plausible(came, 1000, PAPER[shape](p, t))
    exact = np.mean([PAPER[shape](p, t) for t in range(20)])
    rates = Fluctuating([p, 0.0], shape).known_rates(Population(2), seed=0)
    np.testing.assert_allclose(rates, [exact, 0.0], rtol=1e-12)


@pytest.mark.parametrize(("period", "gamma"), [(4, 0.5), (20, 0.3)])
def test_rates_of_an_interleaved_sine_count_the_rounds_in_which_clients_can_come(
    period: int, gamma: float
) -> None:
    """Also where p_n f is `least` up to rounding: f is 1 - γ in the middle of a period."""
    for least in np.arange(1, 100) / 100:
        p = np.unique(np.append(np.arange(1, 101) / 100, min(1.0, least / (1 - gamma))))
        process = Fluctuating(p, "interleaved-sine", period, gamma, least=float(least))
        ids, clients = np.arange(len(p)), Population(len(p))
        stream = process.begin(clients, seed=0)
        shares = np.stack([stream._shares(t, ids) for t in range(period)])
        rates = process.known_rates(clients, seed=0)
        np.testing.assert_allclose(rates, p * shares.mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize(
    "process",
    [Fluctuating(0.4), DayNight(0.6, 0.2, spread=0.0), Drifting(0.4, 0.1, rounds=9)],
    ids=lambda process: type(process).__name__,
)
def test_rounds_are_independent(process: Availability) -> None:
    """Of clients with one rate, who came in round t comes in t + 1 as often as who did not."""
    available = simulate(process, rounds=12, clients=3000)
    for before, after in pairwise(available):
        counts = [[(b & a).sum() for a in (after, ~after)] for b in (before, ~before)]
        assert stats.chi2_contingency(counts).pvalue > 1e-6


def test_drifting_rates_move_linearly_between_the_two() -> None:
    available = simulate(Drifting(0.1, 0.9, rounds=8, start=4), rounds=16, clients=2000)
    expected = [0.1] * 5 + [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8] + [0.9] * 4
    for t, p in enumerate(expected):
        assert is_plausible(available[t].sum(), 2000, p)


def test_in_one_time_zone_all_clients_follow_one_cosine() -> None:
    process = DayNight(0.8, 0.1, period=6, spread=0.0)
    available = simulate(process, rounds=12, clients=1000)
    for t in range(6):
        p = 0.45 + 0.35 * np.cos(2 * np.pi * t / 6)
        assert is_plausible(available[[t, t + 6]].sum(), 2000, p)


def test_around_the_globe_the_same_number_of_clients_is_available_in_every_round() -> None:
    available = simulate(DayNight(0.8, 0.1, period=6), rounds=12, clients=2000)
    for t in range(12):
        assert is_plausible(available[t].sum(), 2000, 0.45)
    swing = available[::6].mean(axis=0).std()  # over clients, of the same hour
    assert swing > 0.35 / np.sqrt(2)  # the cosine's, without the noise


@pytest.mark.parametrize(("arrivals", "stay"), [(0, 5.0), (9, None), (6, 4.0)])
def test_arrivals_and_departures_follow_the_formula(arrivals: int, stay: float | None) -> None:
    available = simulate(Churn(0.6, arrivals, stay), rounds=20, clients=3000)
    remain = 1.0 if stay is None else 1 - 1 / stay
    for t in range(20):
        joined = [remain ** (t - a) for a in range(min(t, arrivals) + 1)]
        assert is_plausible(available[t].sum(), 3000, 0.6 * sum(joined) / (arrivals + 1))


def test_who_left_does_not_come_back() -> None:
    available = simulate(Churn(1.0, arrivals=5, stay=3.0), rounds=60, clients=400)
    changes = np.diff(available.astype(int), axis=0, prepend=0)
    assert ((changes == 1).sum(axis=0) == 1).all()


@pytest.mark.parametrize(("law", "shape"), [("weibull", 0.6), ("log-normal", 1.2)])
def test_sessions_are_stationary(law: str, shape: float) -> None:
    """A first session of another law than the rest of one in progress would show within 30."""
    available = simulate(Sessions(0.3, 3.0, law, shape), rounds=31, clients=4000)
    for t in (0, 1, 2, 4, 8, 16, 30):
        assert is_plausible(available[t].sum(), 4000, 0.3)


def test_exponential_sessions_are_a_markov_chain_in_continuous_time() -> None:
    p, length = 0.3, 5.0
    available = simulate(Sessions(p, length, "weibull", 1.0), rounds=12, clients=4000)
    for h in (1, 3, 8):
        kept = np.exp(-h / (length * (1 - p)))
        on, off = available[0], ~available[0]
        assert is_plausible((on & available[h]).sum(), on.sum(), p + (1 - p) * kept)
        assert is_plausible((off & available[h]).sum(), off.sum(), p * (1 - kept))


def _survival(law: str, shape: float, mean: float) -> Callable[[NDArray], NDArray]:
    """The law's P(X > x) from SciPy, with this mean."""
    frozen = (
        stats.weibull_min(shape, scale=mean / stats.weibull_min(shape).mean())
        if law == "weibull"
        else stats.lognorm(shape, scale=mean / stats.lognorm(shape).mean())
    )
    return frozen.sf


@pytest.mark.parametrize(("law", "shape"), [("weibull", 0.6), ("log-normal", 1.2)])
def test_the_rest_of_a_session_has_its_equilibrium_law(law: str, shape: float) -> None:
    """P(rest > h) = ∫_h^∞ P(X > x) dx / mean; 6 standard errors (1e-9).

    Pauses of 3000 rounds hardly ever fall between two rounds, which would look like no pause; how
    often they do widens the tolerance on one side.
    """
    mean, rate = 6.0, 0.002
    available = simulate(Sessions(rate, mean, law, shape), rounds=7, clients=400_000)
    on = available[0]
    sf, x = _survival(law, shape, mean), np.linspace(0, 1000, 100_001)
    overlooked = 1 - _survival(law, shape, mean / rate)(np.array(1.0))
    for h in (2, 6):
        beyond = x[x >= h]
        exact = np.trapezoid(sf(beyond), beyond) / mean
        excess = available[: h + 1, on].all(axis=0).mean() - exact
        error = 6 * np.sqrt(exact * (1 - exact) / on.sum())
        assert -error < excess < error + h * overlooked


def test_rates_uniform_by_class_mix_one_number_per_class() -> None:
    shares = np.random.default_rng(0).dirichlet(np.ones(5), size=7)
    phi = generator(3, "uniform-by-class").random(5) * [0.9, 0.9, 0.2, 0.2, 0.2]
    law = UniformByClass(first=0.9, second=0.2)
    rates = resolve_rates(law, Population(7, class_shares=shares), seed=3)
    expected = [sum(row[c] * phi[c] for c in range(5)) for row in shares]
    np.testing.assert_allclose(rates, expected)


def test_the_least_frequent_are_selected_by_smoothed_rates() -> None:
    """Against the recursion over all clients, in every round."""
    rng, beta, r = np.random.default_rng(1), 0.2, np.zeros(9)
    running = LeastFrequent(size=3, beta=beta).start(Population(9), seed=0)
    for t in range(60):
        available = np.flatnonzero(rng.random(9) < 0.6)
        order = sorted(available, key=lambda n: (round(r[n], 12), n))
        selected = running.select(t, AvailableClients(available))
        assert selected.tolist() == sorted(order[:3])
        r = (1 - beta) * r
        r[selected] += beta


def test_rates_that_end_at_0_are_not_known_in_the_long_run():
    """A run was refused because no client would ever take part, though all do at first."""
    population = Population(2)
    assert Drifting(rates=0.5, final=[0.0, 1.0], rounds=5).known_rates(population, 0) is None
    never = Drifting(rates=[0.0, 0.5], final=[0.0, 1.0], rounds=5).known_rates(population, 0)
    assert never is not None
    assert never.tolist() == [0.0, 1.0]
