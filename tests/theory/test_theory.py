"""The papers' bounds against enumeration, simulation and the papers' own examples."""

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtide as ft
from fedtide import theory
from fedtide.errors import InvalidInputError
from fedtide.participation import Uniform
from fedtide.population import Population


@given(p=st.floats(0.01, 1.0), cutoff=st.integers(1, 60))
def test_cutoff_moments_by_enumeration(p: float, cutoff: int) -> None:
    """P(S = k) = p r^{k−1} for k < K, and the remaining probability at K."""
    k = np.arange(1, cutoff + 1)
    probabilities = p * (1 - p) ** (k - 1)
    probabilities[-1] = (1 - p) ** (cutoff - 1)
    expected = (probabilities * k).sum()
    mean, variance = theory.cutoff_moments(p, cutoff)
    assert float(mean) == pytest.approx(expected)
    second_moment = (probabilities * k**2).sum()
    assert float(variance) == pytest.approx(second_moment - expected**2, abs=1e-6)


def exact_moments(p: float, cutoff: int) -> tuple[Fraction, Fraction]:
    """Return E[S] = Σ_{k<K} r^k and the variance, E[S²] = Σ_{k<K} (2k + 1) r^k, as fractions.

    Both sums by Horner's scheme in whole numbers, with the denominator to the power K − 1.
    """
    rest = 1 - Fraction(p)
    top, bottom = rest.numerator, rest.denominator
    first = second = 0
    scale = 1
    for k in reversed(range(cutoff)):
        first, second = first * top + scale, second * top + (2 * k + 1) * scale
        scale *= bottom
    mean = Fraction(first, scale // bottom)
    return mean, Fraction(second, scale // bottom) - mean**2


def check_moments(p: float, cutoff: int) -> None:
    mean, variance = theory.cutoff_moments(p, cutoff)
    exact_mean, exact_variance = exact_moments(p, cutoff)
    assert float(mean) == pytest.approx(float(exact_mean), rel=1e-13, abs=0)
    assert float(variance) == pytest.approx(float(exact_variance), rel=1e-12, abs=0)


@pytest.mark.parametrize("cutoff", [1, 2, 50, 1000])
@pytest.mark.parametrize("near", [1e-9, -1e-9])
def test_cutoff_moments_keep_their_digits_where_the_formula_changes(
    cutoff: int, near: float
) -> None:
    check_moments(min(1.0, (1 + near) / cutoff), cutoff)


@settings(max_examples=60)
@given(exponent=st.floats(-12, 0), cutoff=st.integers(1, 1000))
def test_cutoff_moments_are_exact_for_rare_clients(exponent: float, cutoff: int) -> None:
    check_moments(10.0**exponent, cutoff)


def test_cutoff_moments_of_very_rare_and_of_certain_clients() -> None:
    """For K p → 0 the variance is p Σ_{k<K} k² = p (K − 1) K (2K − 1) / 6."""
    for p in (1e-6, 1e-7, 1e-9, 1e-12):
        check_moments(p, 50)
    mean, variance = theory.cutoff_moments([1e-200, 1.0], 10**6)
    np.testing.assert_allclose(mean, [1e6, 1])
    np.testing.assert_allclose(variance, [1e-200 * (10**6 - 1) * 10**6 * (2 * 10**6 - 1) / 6, 0])
    check_moments(1 - 2**-50, 1000)


def test_cutoff_moments_without_cutoff_are_the_limit() -> None:
    limit = theory.cutoff_moments(0.3, None)
    np.testing.assert_allclose(theory.cutoff_moments(0.3, 500), limit)
    assert float(limit[0]) == pytest.approx(1 / 0.3)


@given(active=st.integers(1, 9), inactive=st.integers(0, 20), cutoff=st.integers(1, 12))
def test_cyclic_weight_by_algorithm_2(active: int, inactive: int, cutoff: int) -> None:
    """Algorithm 2 of paper 001 over 200 cycles."""
    intervals, waited = [], 0
    for t in range(200 * (active + inactive)):
        waited += 1
        if t % (active + inactive) < active or waited == cutoff:
            intervals.append(waited)
            waited = 0
    expected = np.mean(intervals)
    assert theory.cyclic_weight(active, inactive, cutoff) == pytest.approx(expected, rel=0.02)


def test_cyclic_weight_without_cutoff_is_the_limit() -> None:
    """Two intervals in a cycle of 100 rounds."""
    assert theory.cyclic_weight(2, 98, None) == theory.cyclic_weight(2, 98, 10**9) == 50


def test_fedau_cutoff_and_moments_on_the_example_of_paper_001() -> None:
    """The mean is 31.79 at p = 0.02 and K = 50; K = ⌈log_c T⌉ with c = 1 / 0.98²."""
    assert float(theory.cutoff_moments(0.02, 50)[0]) == pytest.approx(31.79, abs=0.005)
    cutoff = theory.fedau_cutoff([0.02, 0.5], 10_000)
    assert (1 / 0.98**2) ** (cutoff - 1) < 10_000 <= (1 / 0.98**2) ** cutoff


def test_learning_rates_stay_within_their_limits() -> None:
    rates, weights = np.array([0.1, 0.5]), np.array([10.0, 2.0])
    limits = theory.fedau_learning_rate_limits(2.0, 5, 2, rates, weights)
    chosen = theory.fedau_learning_rates(2.0, 1.0, 1.0, 1.0, 5, 1000, rates, weights)
    assert chosen.local <= limits.local
    assert chosen.product <= limits.product
    q = float(np.mean(rates * weights**2))
    assert limits.product == pytest.approx(min(1 / 40, 2 / (54 * 2 * 5 * q)))
    limits = theory.generalized_fedavg_learning_rate_limits(2.0, 5, 10, rounds=100)
    chosen = theory.generalized_fedavg_learning_rates(2.0, 1.0, 1.0, 5, 10, 100, 0.1)
    assert chosen.local <= limits.local
    assert chosen.product <= limits.product + 1e-15
    with pytest.raises(InvalidInputError, match=r"^period: "):
        theory.generalized_fedavg_learning_rate_limits(1.0, 1, 60, rounds=100)


@given(
    smoothness=st.floats(0.01, 100),
    noise=st.sampled_from([0.0, 1e-9, 0.5, 10.0]),
    gap=st.floats(0.01, 100),
    steps=st.integers(1, 20),
    period=st.integers(1, 500),
    rounds=st.integers(1000, 10**6),
    weight_norm=st.floats(0.1, 1),
)
def test_learning_rates_of_paper_000_satisfy_theorem_3_1(
    smoothness: float,
    noise: float,
    gap: float,
    steps: int,
    period: int,
    rounds: int,
    weight_norm: float,
) -> None:
    """γ <= 1 / (12 L I P) and γ η <= 1 / (L I P), with noise and without."""
    rates = theory.generalized_fedavg_learning_rates(
        smoothness, noise, gap, steps, period, rounds, weight_norm
    )
    unit = 1 / (smoothness * steps * period)
    assert rates.local <= unit / 12 * (1 + 1e-12)
    assert rates.product <= unit * (1 + 1e-12)


def test_period_of_paper_000_is_at_most_half_the_rounds() -> None:
    with pytest.raises(InvalidInputError, match=r"^period: "):
        theory.generalized_fedavg_learning_rates(1.0, 1.0, 1.0, 1, 60, 100, 0.1)


@pytest.mark.parametrize(("group", "cohort", "turn"), [(4, 2, 3), (5, 1, 4), (3, 3, 2), (6, 2, 1)])
def test_sampling_of_paper_002_by_enumeration(group: int, cohort: int, turn: int) -> None:
    """Client 0 is among the sampled in some round of its group's turn, over all equally likely."""
    draws = list(itertools.combinations(range(group), cohort))
    turns = list(itertools.product(draws, repeat=turn))
    sampled = sum(any(0 in draw for draw in rounds) for rounds in turns) / len(turns)
    constants = theory.cyclic_constants(5 * group, cohort, 5, turn)
    assert constants.sampling == pytest.approx(sampled)


@pytest.mark.statistical
def test_irregularity_of_independent_windows() -> None:
    """Uniform selection of 4 of 20: mean over 4000 windows, within 5 standard errors of 1 %.

    Error probability: below 1e-6.
    """
    clients, size, period = 20, 4, 5
    running = Uniform(size).begin(Population(clients), seed=0)
    irregularities = []
    for window in range(4000):
        q = np.zeros(clients)
        for t in range(period):
            q[running.round(window * period + t).clients] += 1 / size / period
        irregularities.append(theory.irregularity_bound(q, 1.0))
    p = size / clients
    deviation = math.sqrt(p * (1 - p)) / size
    expected = theory.independent_irregularity(clients, deviation, period, 1.0)
    assert np.mean(irregularities) == pytest.approx(expected, rel=0.05)


def test_fedavg_two_clients_by_training() -> None:
    """Paper 003's Example 1 with local steps, until the iterates repeat to 1e-12."""
    first, second, turns, lr, steps = 0.0, 1.0, (3, 5), 0.05, 2
    rounds = 20 * sum(turns)
    weights = np.zeros((rounds, 2))
    weights[np.arange(rounds) % sum(turns) < turns[0], 0] = 1
    weights[np.arange(rounds) % sum(turns) >= turns[0], 1] = 1
    trained: Any = ft.simulate(
        problem=ft.problems.Quadratic.two_clients(first, second),
        participation=ft.participation.Table(weights),
        algorithm=ft.algorithms.FedAvg(),
        local=ft.LocalTraining(steps=steps, lr=lr),
        rounds=rounds,
        dtype="float64",
        record_iterates=True,
        trainer="reference",
    )
    end, half = theory.fedavg_two_clients(first, second, turns, lr, steps)
    assert trained.iterates[-1, 0] == pytest.approx(end, abs=1e-9)
    assert trained.iterates[-1 - turns[1], 0] == pytest.approx(half, abs=1e-9)


@pytest.mark.parametrize("lr", [1e-3, 1e-14, 1e-300])
def test_fedavg_two_clients_tends_to_the_mean_weighted_by_turns(lr: float) -> None:
    """The difference from the limit, 3/4, is of the order 200 γ."""
    for found in theory.fedavg_two_clients(0.0, 1.0, (50, 150), lr):
        assert found == pytest.approx(0.75, rel=1e-15 + 200 * lr, abs=0)


def test_fedlaavg_stays_below_its_bound() -> None:
    turns, rounds = (5, 10), 3000
    lr, bound = theory.fedlaavg_two_clients_bound(3.0, 0.0, 1.0, turns, rounds)
    x, stored, total = 3.0, [0.0, 0.0], 0.0
    for t in range(rounds):
        total += x
        n = 0 if t % sum(turns) < turns[0] else 1
        stored[n] = 2 * (x - (0.0, 1.0)[n])
        x -= lr * sum(stored) / 2
    assert (total / rounds - 0.5) ** 2 <= bound


def test_fedlaavg_absence_when_selecting_the_longest_absent() -> None:
    """All clients are available (E = 1), so each is selected once in ⌈N / K⌉ rounds."""
    clients, cohort = 10, 3
    last = np.zeros(clients, dtype=int)
    oldest = 0
    for t in range(1, 100):
        oldest = max(oldest, int((t - last)[last > 0].max(initial=0)) - 1)
        last[np.argsort(last, kind="stable")[:cohort]] = t
    assert oldest <= theory.fedlaavg_absence(clients, cohort, 1)


def test_agnostic_bound_without_noise_and_with_more_rounds() -> None:
    """With σ = G = 0 only the initial distance remains; more rounds lower the bound."""
    assert theory.agnostic_bound(2.0, 0, 0, 1, 0.1, 5, 10) == pytest.approx(4 / (2 * 0.1 * 50))
    long, short = (theory.agnostic_bound(1, 1, 1, 1, 0.01, 5, t) for t in (1000, 100))
    assert long < short


def test_amplified_scaffold_total_steps_do_not_depend_on_the_period() -> None:
    one = theory.amplified_scaffold_rounds(1, 2, 3, 0.1, 20, 0.1, 0.2)
    other = theory.amplified_scaffold_rounds(1, 2, 3, 0.1, 50, 0.1, 1.0)
    assert one[0] * one[1] == pytest.approx(other[0] * other[1])
    constants = theory.cyclic_constants(250, 10, 5, turn=100)
    assert (constants.period, constants.weight_norm_squared) == (500, 0.1)
    assert constants.sampling == pytest.approx(1 - 0.8**100)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: theory.cutoff_moments(0.0, 5), "rates"),
        (lambda: theory.cutoff_moments("often", 5), "rates"),
        (lambda: theory.cutoff_moments(0.5, math.nan), "cutoff"),
        (lambda: theory.fedau_cutoff([1e-320], 100), "rates"),
        (lambda: theory.weight_error([0.5], 3, math.nan), "rounds"),
        (lambda: theory.participation_objective([0.5] * 3, [1.0] * 2), "weights"),
        (lambda: theory.fedau_learning_rates(1, 1, 1, 1, 5, 10, 0.1, [10.0] * 9), "rates"),
        (lambda: theory.fedau_learning_rate_limits(1, 5, 1, [0.1] * 9, [10.0] * 9), "rates"),
        (lambda: theory.fedau_learning_rate_limits(1, 5, 2, [0.5] * 2, [0.0] * 2), "weights"),
        (lambda: theory.cyclic_constants(250, 200, 5), "cohort"),
        (lambda: theory.amplified_scaffold_rounds(1, 1, 1, 0.1, 20, 0.1, 5.0), "sampling"),
        (lambda: theory.agnostic_learning_rate(0, 1), "rounds"),
        (lambda: theory.fedlaavg_learning_rate(1, 16, 3.0, 1, 100), "share"),
        (lambda: theory.fedlaavg_rate(16, 1, 10_000, 3.0), "share"),
        (lambda: theory.fedlaavg_absence(10, 100, 5), "cohort"),
        (lambda: theory.fedavg_two_clients(0, 1, (1, 1), 0.6), "lr"),
        (lambda: theory.fedavg_two_clients(0, 1, (5, "5"), 0.1), "turns"),
        (lambda: theory.fedlaavg_two_clients_bound(math.inf, 0, 1, (5, 5), 10), "start"),
        (lambda: theory.cyclic_weight(2, 3.7, None), "inactive"),
        (lambda: theory.irregularity_bound([[0.5, 0.5]], 1.0), "window_weights"),
    ],
)
def test_invalid_input_names_the_field(call: Any, field: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^{field}: "):
        call()
