"""The papers' bounds on literal runs of their algorithms, and the relations between them.

Clients have F_n(x) = ½ (x − e_n)ᵀ A (x − e_n) with one A, unless said otherwise. Bounds stated up
to a constant are taken with 1, which holds for these families.
"""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtide import theory
from fedtide.errors import InvalidInputError


class Quadratics:
    """N clients in d dimensions; gradients of R independent repetitions at once."""

    def __init__(self, seed: int, noise: float) -> None:
        self.random = np.random.default_rng(seed)
        self.clients, self.dimension = self.random.integers(2, 9), self.random.integers(1, 4)
        self.hessian = self.random.uniform(0.1, 1, self.dimension)
        self.centers = self.random.normal(size=(self.clients, self.dimension))
        self.mean = self.centers.mean(axis=0)
        self.start = self.mean + self.random.normal(size=self.dimension)
        self.noise, self.repeats = noise, 20 if noise else 1
        self.smoothness = float(self.hessian.max())
        self.gap = float(self.hessian @ (self.start - self.mean) ** 2 / 2)
        self.gradients = -self.hessian * self.centers  # at 0
        h = self.gradients - self.gradients.mean(axis=0)
        self.divergence_sq = float((h**2).sum(axis=1).max())

    def gradient(self, x: Any, client: int) -> Any:
        """A stochastic gradient with E‖noise‖² = σ², x of shape (R, d)."""
        noise = self.random.normal(size=x.shape) * self.noise / math.sqrt(self.dimension)
        return self.hessian * (x - self.centers[client]) + noise

    def local(self, x: Any, client: int, lr: float, steps: int) -> Any:
        """Return Δ_n after I steps."""
        y = x
        for _ in range(steps):
            y = y - lr * self.gradient(y, client)
        return y - x

    def square(self, x: Any, center: Any = None) -> float:
        """Return the mean over repetitions of ‖∇f(x)‖²."""
        gradient = self.hessian * (x - (self.mean if center is None else center))
        return float((gradient**2).sum(axis=1).mean())

    def begin(self) -> Any:
        return np.tile(self.start, (self.repeats, 1))


@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_theorem_3_1_of_paper_000(seed: int, noise: float) -> None:
    """Algorithm 1, with weights that are random, cyclic or of one client only."""
    problem = Quadratics(seed, noise)
    steps, period = (int(n) for n in problem.random.integers(1, 6, size=2))
    rounds = 20 * period
    q = problem.random.dirichlet(np.ones(problem.clients), size=rounds)
    if seed % 3 == 1:
        q = np.eye(problem.clients)[np.arange(rounds) % problem.clients]
    if seed % 3 == 2:
        q[:, 1:] = 0
        q[:, 0] = 1
    found = theory.divergence_constants(problem.gradients, q, period)
    limits = theory.generalized_fedavg_learning_rate_limits(problem.smoothness, steps, period)
    x = begun = problem.begin()
    squares = []
    for t in range(rounds):
        squares.append(problem.square(x))
        deltas = [problem.local(x, n, limits.local, steps) for n in range(problem.clients)]
        x = x + np.einsum("n,nrd->rd", q[t], deltas)
        if (t + 1) % period == 0:
            x = begun = begun + limits.server * (x - begun)
    bound = theory.generalized_fedavg_bound(
        problem.gap,
        problem.smoothness,
        noise**2,
        limits.local,
        limits.server,
        steps,
        period,
        rounds,
        found.weight_norm_sq,
        found.within_sq,
        found.between_sq,
        found.irregularity_sq,
    )
    assert min(squares) <= bound


POSITIVE = st.floats(0.01, 100)


@given(
    gap=POSITIVE,
    smoothness=POSITIVE,
    noise_sq=st.sampled_from([0.0, 1e-6, 1.0, 100.0]),
    steps=st.integers(1, 20),
    period=st.integers(1, 50),
    rounds=st.integers(100, 10**7),
    weight_norm_sq=st.floats(0.01, 1),
    within_sq=POSITIVE,
    between_sq=POSITIVE,
)
def test_corollaries_of_paper_000_follow_from_its_theorem(**given: Any) -> None:
    """(8) at Corollary 3.2's rates is at most twice (9), at Corollary 3.3's at most (10)."""
    within, between = given.pop("within_sq"), given.pop("between_sq")
    norm_sq = given.pop("weight_norm_sq")
    gap, smoothness, noise_sq, steps, period, rounds = given.values()
    lemma = (norm_sq, within, between, 0.5)
    norm = math.sqrt(norm_sq)

    def at(rates: theory.LearningRates) -> float:
        head = (gap, smoothness, noise_sq, rates.local, rates.server)
        return theory.generalized_fedavg_bound(*head, steps, period, rounds, *lemma)

    head = (gap, smoothness, noise_sq, steps, period, rounds)
    rates = theory.generalized_fedavg_learning_rates(
        smoothness, math.sqrt(noise_sq), gap, steps, period, rounds, norm
    )
    rate = theory.generalized_fedavg_rate(*head, *lemma)
    assert at(rates) <= 2 * rate
    regular = theory.regularized_rate(*head, norm_sq, within + between)
    assert rate - 0.5 <= regular * (1 + 1e-9)
    first = period**2 * smoothness * steps * gap / norm_sq
    arguments = (smoothness, gap, steps, period, rounds, norm)
    if rounds < first:
        with pytest.raises(InvalidInputError, match=r"^rounds: "):
            theory.generalized_fedavg_speedup_learning_rates(*arguments)
    else:
        long = theory.generalized_fedavg_speedup_learning_rates(*arguments)
        rate = theory.generalized_fedavg_rate(*head, *lemma, speedup=True)
        assert at(long) <= rate * (1 + 1e-9)


def test_learning_rates_of_paper_000_are_continuous_in_the_noise() -> None:
    arguments = {"smoothness": 1.0, "gap": 1.0, "steps": 5, "period": 20, "rounds": 10**6}
    small, none = (
        theory.generalized_fedavg_learning_rates(noise=noise, weight_norm=0.1, **arguments)
        for noise in (1e-9, 0.0)
    )
    assert small == none
    assert none.server == pytest.approx(12_000)


def test_divergence_constants_by_definition() -> None:
    """And (15) is above (7), and equal for two clients with opposite gradients."""
    random = np.random.default_rng(1)
    g, q, period = random.normal(size=(5, 3)), random.dirichlet(np.ones(5), size=14), 4
    h = g - g.mean(axis=0)
    between = within = irregularity = 0.0
    for row in q:
        s = sum(row[n] * h[n] for n in range(5))
        between = max(between, s @ s)
        within = max(within, sum(row[n] * ((h[n] - s) ** 2).sum() for n in range(5)))
    for window in range(3):
        mean = q[4 * window : 4 * window + 4].mean(axis=0)
        irregularity = max(irregularity, ((mean @ h) ** 2).sum())
        largest = math.sqrt((h**2).sum(axis=1).max())
        assert ((mean @ h) ** 2).sum() <= theory.irregularity_bound(mean, largest)
    found = theory.divergence_constants(g, q, period)
    assert found.between_sq == pytest.approx(between)
    assert found.within_sq == pytest.approx(within)
    assert found.irregularity_sq == pytest.approx(irregularity)
    assert found.weight_norm_sq == pytest.approx(max((row**2).sum() for row in q))
    two = theory.divergence_constants([[1.0], [-1.0]], [[0.8, 0.2]], 1)
    assert two.irregularity_sq == pytest.approx(theory.irregularity_bound([0.8, 0.2], 1.0))


@given(clients=st.integers(2, 9), cycles=st.integers(0, 5), rest=st.integers(0, 8))
def test_irregularity_of_a_round_robin(clients: int, cycles: int, rest: int) -> None:
    """r (N − r) / P² for P = k N + r."""
    rest %= clients
    period = cycles * clients + rest
    if period:
        q = np.bincount(np.arange(period) % clients, minlength=clients) / period
        expected = rest * (clients - rest) / period**2
        assert theory.irregularity_bound(q, 1.0) == pytest.approx(expected)


@pytest.mark.statistical
def test_irregularity_of_a_token_that_stays() -> None:
    """One participant, who stays with 1 − ε, else uniform: r_p = (1 − ε)^p. 4,000 windows.

    The mean is within 4 % of Proposition 4.6 (1 % from the finite P, and 4 standard errors); the
    share of windows above its bound with probability 1 − c is at most c. Error probability: below
    1e-4, as the bound is far from tight.
    """
    random, clients, stay, period, windows = np.random.default_rng(2), 10, 0.8, 500, 4000
    token, q = random.integers(clients, size=windows), np.zeros((windows, clients))
    for _ in range(period):
        moves = random.random(windows) >= stay
        token = np.where(moves, random.integers(clients, size=windows), token)
        q[np.arange(windows), token] += 1 / period
    found = np.array([theory.irregularity_bound(row, 1.0) for row in q])
    variance = theory.asymptotic_variance((1 - 1 / clients) / clients, stay ** np.arange(1, 200))
    assert variance == pytest.approx((1 - 1 / clients) / clients * (2 - 0.2) / 0.2)
    assert found.mean() == pytest.approx(
        theory.mixing_irregularity(clients, variance, period, 1.0), rel=0.04
    )
    for c in (0.5, 0.1, 0.01):
        bound = theory.mixing_irregularity(clients, variance, period, 1.0, failure=c)
        assert (found > bound).mean() <= c


@pytest.mark.parametrize("c", [0.5, 0.1, 0.01])
def test_irregularity_of_two_clients_in_independent_rounds(c: float) -> None:
    """The exact binomial probability that N Σ (q̄ − 1/2)² is above Hoeffding's bound is below c."""
    period = 20
    bound = theory.independent_irregularity(2, 0.5, period, 1.0, failure=c)
    above = sum(
        math.comb(period, k) / 2**period
        for k in range(period + 1)
        if theory.irregularity_bound([k / period, 1 - k / period], 1.0) > bound
    )
    assert above <= c


def test_waiting_for_all_is_as_good_if_no_gradient_is_lost() -> None:
    rates = theory.leading_rates(
        2.0, clients=50, cohort=5, steps=4, rounds=100, period=20, batches=8
    )
    assert rates["wait-for-all"] == pytest.approx(rates["regularized"])


@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_theorems_1_and_2_of_paper_001(seed: int, noise: float) -> None:
    """Bernoulli participation with the largest rates: constant weights, exact and wrong by 10 %."""
    problem = Quadratics(seed, noise)
    problem.repeats = 20
    clients, steps, rounds = problem.clients, int(problem.random.integers(1, 5)), 60
    p = problem.random.uniform(0.1, 1, clients)
    exact, wrong = 1 / p, problem.random.uniform(0.9, 1.1, clients) / p
    any_weights = problem.random.uniform(0.5, 5, clients)
    head = (problem.smoothness, noise**2, problem.divergence_sq)

    def train(lr: float, server_lr: float, weights: Any, center: Any) -> float:
        x, squares = problem.begin(), []
        for _ in range(rounds):
            squares.append(problem.square(x, center))
            step = 0
            for n in range(clients):
                there = problem.random.random((problem.repeats, 1)) < p[n]
                step = step + weights[n] * there * problem.local(x, n, lr, steps)
            x = x + server_lr / clients * step
        return float(np.mean(squares))

    for weights in (exact, wrong):
        largest = theory.fedau_learning_rate_limits(problem.smoothness, steps, clients, p, weights)
        error = float(np.mean((p * weights - 1) ** 2))
        rates = (largest.local, largest.server, steps, rounds)
        bound = theory.fedau_bound(problem.gap, *head, *rates, p, error, weights=weights)
        assert train(largest.local, largest.server, weights, None) <= bound
    share = theory.participation_objective(p, any_weights)
    center = share @ problem.centers
    gap = float(problem.hessian @ (problem.start - center) ** 2 / 2)
    lr = 0.03 / (problem.smoothness * steps)
    spread = np.sum(p * any_weights**2) / np.sum(p * any_weights) ** 2
    server_lr = 0.2 / (27 * problem.smoothness * steps * spread * lr * np.mean(p * any_weights))
    server_lr = min(server_lr, 0.2 / (lr * steps * problem.smoothness * np.mean(p * any_weights)))
    bound = theory.constant_weights_bound(gap, *head, lr, server_lr, steps, rounds, p, any_weights)
    assert train(lr, server_lr, any_weights, center) <= bound


def test_options_of_theorem_2_of_paper_001() -> None:
    """Option 1 is twice option 2 without gradients; both are option 2's with exact weights."""
    head = (1.0, 2.0, 0.5, 0.7, 0.001, 1.0, 3, 100, [0.2, 0.9])
    first = theory.fedau_bound(*head, weight_error=0.01)
    assert first == pytest.approx(2 * theory.fedau_bound(*head, 0.01, gradient_sq=0.0))
    assert theory.fedau_bound(*head, 0) == theory.fedau_bound(*head, 0, gradient_sq=9.0)


@pytest.mark.statistical
@pytest.mark.parametrize(("p", "cutoff", "rounds"), [(0.02, 50, 400), (0.3, 5, 1000), (0.9, 1, 50)])
def test_theorem_3_of_paper_001(p: float, cutoff: int, rounds: int) -> None:
    """Algorithm 2 for 2,000 clients, within 4 standard errors. Error probability: below 1e-4."""
    random, clients = np.random.default_rng(3), 2000
    weights = np.ones(clients)
    ended, waited = np.zeros(clients), np.zeros(clients)
    errors = np.zeros(clients)
    for _ in range(rounds):
        errors += (p * weights - 1) ** 2 / rounds
        waited += 1
        closes = (random.random(clients) < p) | (waited == cutoff)
        mean = (weights * ended + waited) / (ended + 1)
        weights = np.where(closes, np.where(ended == 0, waited, mean), weights)
        ended, waited = ended + closes, np.where(closes, 0, waited)
    bound = theory.weight_error_bound([p], cutoff, rounds)
    assert errors.mean() - 4 * errors.std() / math.sqrt(clients) <= bound
    assert bound <= 50 * errors.mean()


def test_rounds_and_limits_of_paper_002_agree() -> None:
    """With the largest γ η, Δ / (γ η I R) = ε² at 60 times the R of Corollary 1."""
    gap, smoothness, accuracy, period, norm_sq, sampling = 1.3, 2.0, 0.1, 20, 0.1, 0.04
    head = (gap, smoothness, 3.0, accuracy, period, norm_sq, sampling)
    rounds, steps = theory.amplified_scaffold_rounds(*head)
    limit = theory.amplified_scaffold_learning_rate_limit(smoothness, 1, period, sampling)
    assert gap / (limit.product * accuracy**2) == pytest.approx(60 * rounds)
    # At the best I both terms are equal, and R I tends to that of the noise for small I.
    both = theory.amplified_scaffold_rounds_for_steps(*head, steps=steps)
    assert both == pytest.approx(2 * rounds)
    noise = gap * smoothness * norm_sq * 9 / accuracy**4
    few = theory.amplified_scaffold_rounds_for_steps(*head, steps=steps / 1e6)
    assert few * steps / 1e6 == pytest.approx(noise, rel=1e-5)


@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_fedlaavg_stays_below_its_bound(seed: int, noise: float) -> None:
    """The longest absent of all clients are selected; every gradient is known at the start."""
    problem = Quadratics(seed, noise)
    clients, rounds = problem.clients, 200
    cohort = int(problem.random.integers(1, clients + 1))
    absence = theory.fedlaavg_absence(clients, cohort, 1)
    lr = problem.random.uniform(0.05, 1) / ((2 if noise else 1) * problem.smoothness)
    x = problem.begin()
    stored = np.stack([problem.gradient(x, n) for n in range(clients)])
    last, squares, largest = np.zeros(clients), [], 0.0
    for t in range(1, rounds + 1):
        squares.append(problem.square(x))
        for n in np.argsort(last, kind="stable")[:cohort]:
            stored[n], last[n] = problem.gradient(x, n), t
        largest = max(largest, float((stored**2).sum(axis=2).mean(axis=1).max()))
        x = x - lr * stored.mean(axis=0)
    bound = theory.fedlaavg_bound(
        problem.gap, problem.smoothness, largest, lr, rounds, absence, noise**2, clients
    )
    assert np.mean(squares) <= bound


@pytest.mark.parametrize("seed", range(3))
def test_bound_of_paper_004(seed: int) -> None:
    """f_i = |θ − e_i| on [−4, 4], cohorts from a random law on the subsets (G = ℓ = 1, σ = 0)."""
    random = np.random.default_rng(seed)
    clients, steps, rounds = 4, int(random.integers(1, 6)), 200
    centers = random.uniform(-4, 4, clients)
    subsets = [list(s) for k in range(1, 5) for s in itertools.combinations(range(clients), k)]
    law = random.dirichlet(np.ones(len(subsets)))
    p = np.zeros(clients)
    for share, subset in zip(law, subsets, strict=True):
        p[subset] += share / len(subset)
    grid = np.linspace(-4, 4, 8001)
    values = np.abs(grid[:, None] - centers) @ p
    best, least = grid[values.argmin()], values.min()
    start, repeats = random.uniform(-4, 4), 40
    lr = theory.agnostic_best_learning_rate(abs(start - best), 0, 1, 1, steps, rounds)
    x, total = np.full(repeats, start), np.zeros(repeats)
    for _ in range(rounds):
        drawn = random.choice(len(subsets), p=law, size=repeats)
        for r in range(repeats):
            ends = []
            for n in subsets[drawn[r]]:
                y = x[r]
                for _ in range(steps):
                    y = np.clip(y - lr * np.sign(y - centers[n]), -4, 4)
                ends.append(y)
            x[r] = np.mean(ends)
        total += x
    excess = np.mean(np.abs((total / rounds)[:, None] - centers) @ p - least)
    assert excess <= theory.agnostic_bound(abs(start - best), 0, 1, 1, lr, steps, rounds)


@given(distance=POSITIVE, noise=POSITIVE, gradient=POSITIVE, steps=st.integers(1, 50))
def test_best_learning_rate_of_paper_004(**given: Any) -> None:
    given |= {"lipschitz": given["gradient"] / 2, "rounds": 100}
    best = theory.agnostic_best_learning_rate(**given)
    least = theory.agnostic_bound(lr=best, **given)
    for factor in (0.9, 1.1):
        assert theory.agnostic_bound(lr=factor * best, **given) > least


@pytest.mark.parametrize("clients", [1, 2, 7])
def test_agnostic_weights_by_enumeration(clients: int) -> None:
    rates = np.random.default_rng(clients).uniform(0, 1, clients)
    rates[0] = 1 if clients == 2 else rates[0]
    expected = np.zeros(clients)
    for there in itertools.product([False, True], repeat=clients):
        chance = np.where(there, rates, 1 - rates).prod()
        if any(there):
            expected += chance * np.array(there) / sum(there)
    np.testing.assert_allclose(theory.bernoulli_agnostic_weights(rates), expected, rtol=1e-12)


def test_agnostic_weights_of_many_clients() -> None:
    """Against the law of the number of the others by dynamic programming."""
    rates = np.random.default_rng(5).beta(0.3, 1, 300)
    law = np.array([1.0])
    for rate in rates[1:]:
        law = np.convolve(law, [1 - rate, rate])
    expected = rates[0] * (law / np.arange(1, len(law) + 1)).sum()
    assert theory.bernoulli_agnostic_weights(rates)[0] == pytest.approx(expected, rel=1e-12)
    even = theory.bernoulli_agnostic_weights(np.full(100_000, 0.5))
    np.testing.assert_allclose(even, 1e-5, rtol=1e-9)
