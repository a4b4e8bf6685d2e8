"""Whole runs on quadratics, where everything can be computed by hand."""

import numpy as np
import polars as pl
import pytest

import fedtide as ft


def numbers(seed=0):
    return np.random.default_rng(seed)


def quadratic(clients=5, d=3, seed=0, start=True):
    """Return positive definite A_n (N, d, d), centres e_n (N, d) and x_0 (d,)."""
    draw = numbers(seed)
    root = draw.normal(size=(clients, d, d))
    matrices = root @ root.transpose(0, 2, 1) / d + 0.5 * np.eye(d)
    return matrices, draw.normal(size=(clients, d)), draw.normal(size=d) if start else np.zeros(d)


def locally(x, a, e, steps, lr):
    """Return Δ after plain gradient steps on ½ (x−e)ᵀ A (x−e)."""
    y = x
    for _ in range(steps):
        y = y - lr * (a @ (y - e))
    return y - x


def run(problem, participation, algorithm, rounds, local=None, **fields):
    a, e, x = problem
    return ft.simulate(
        problem=ft.problems.Quadratic(matrices=a, centers=e, start=x),
        participation=participation,
        algorithm=algorithm,
        local=local or ft.LocalTraining(steps=3, lr=0.1),
        rounds=rounds,
        **({"dtype": "float64", "record_iterates": True, "trainer": "reference"} | fields),
    )


def table(rounds, clients, seed=1):
    """Return weights with absent clients and two rounds without anybody."""
    draw = numbers(seed)
    weights = draw.random((rounds, clients)) * (draw.random((rounds, clients)) < 0.5)
    weights[[0, rounds // 2]] = 0
    return weights


@pytest.mark.parametrize("trainer", ["reference", "stacked"])
def test_fedavg_with_everybody_is_the_plain_recursion(trainer):
    problem = a, e, x = quadratic()
    result = run(problem, ft.participation.Full(), ft.algorithms.FedAvg(), 8, trainer=trainer)
    expected = [x]
    for _ in range(8):
        updates = [locally(expected[-1], a[n], e[n], 3, 0.1) for n in range(5)]
        expected.append(expected[-1] + np.mean(updates, axis=0))
    assert result.iterates.shape == (9, 3)
    assert np.allclose(result.iterates, expected, rtol=1e-12, atol=1e-12)
    assert np.array_equal(result.model, result.iterates[-1])


def test_given_weights_are_used_as_they_are_and_empty_rounds_move_nothing():
    problem = a, e, x = quadratic()
    q = table(10, 5)
    local = ft.LocalTraining(steps=2, lr=0.1, schedule=ft.StepDecay(decay=0.5, every=4, start=3))
    algorithm = ft.algorithms.FedAvg(weights="given", server_lr=1.3)
    result = run(problem, ft.participation.Table(weights=q), algorithm, 10, local)
    expected = [x]
    for t in range(10):
        lr = 0.1 * 0.5 ** (0 if t < 3 else (t - 3) // 4 + 1)
        step = sum(q[t, n] * locally(expected[-1], a[n], e[n], 2, lr) for n in range(5))
        expected.append(expected[-1] + 1.3 * step)
    assert np.allclose(result.iterates, expected, rtol=1e-12, atol=1e-12)
    assert np.array_equal(result.iterates[1], x)
    log = [(t, n, "used", q[t, n]) for t in range(10) for n in range(5) if q[t, n] > 0]
    assert result.participation.rows() == log
    assert result.clients["participation"].to_list() == ((q > 0).mean(axis=0)).tolist()


@pytest.mark.parametrize("lowest", ["selected", "used"])
def test_the_log_keeps_what_is_asked_for(lowest):
    how = {
        "selection": {"type": "uniform-of", "size": 3},
        "dropout": {"type": "random", "probability": 0.5},
    }
    everything = run(quadratic(), {"type": "bernoulli", "rates": 0.9}, "fedavg", 30, **how)
    kept = run(quadratic(), {"type": "bernoulli", "rates": 0.9}, "fedavg", 30, log=lowest, **how)
    wanted = everything.participation.filter(pl.col("stage") >= pl.lit(lowest))
    assert kept.participation.equals(wanted)


# Which objective is found: paper 001, Theorem 1, and paper 004, equation (3).


def minimiser(a, e, weights):
    """Return argmin Σ w_n F_n."""
    left = np.einsum("n,nij->ij", weights, a)
    return np.linalg.solve(left, np.einsum("n,nij,nj->i", weights, a, e))


def late_mean(result, after):
    return result.iterates[after:].mean(axis=0)


CLIENTS = 6


def one_step_run(participation, algorithm, rounds=4000, lr=0.02, seed=3, **fields):
    """Return the mean of the late iterates with I = 1, so that no client correction blurs the fixed
    point: for quadratics it is then exact in expectation.

    With γ = 0.02 and curvatures of about 1 iterates forget within 1/γ = 50 rounds, so the mean over
    3000 rounds has the error of about 30 to 60 independent draws with a standard deviation of about
    sqrt(γ/2) = 0.1 times the spread of the centres: 0.018. The tests allow 0.09, at which the
    normal tail is below 1e-5.
    """
    a = np.array([np.diag([1.0, 0.5 + n / 4]) for n in range(CLIENTS)])
    e = np.array([[n - 2.5, (-1.0) ** n] for n in range(CLIENTS)])
    problem = a, e, np.zeros(2)
    local = ft.LocalTraining(steps=1, lr=lr)
    result = run(
        problem,
        participation,
        algorithm,
        rounds,
        local,
        seed=seed,
        evaluation={"every": 0},
        log="used",
        **fields,
    )
    return a, e, late_mean(result, 1000)


@pytest.mark.statistical
def test_uniform_participation_finds_the_mean_objective():
    a, e, x = one_step_run(ft.participation.Uniform(size=2), ft.algorithms.FedAvg())
    assert np.abs(x - minimiser(a, e, np.ones(CLIENTS))).max() < 0.09


@pytest.mark.statistical
def test_uneven_participation_finds_the_participation_objective():
    """Paper 004: FedAvg minimises Σ p_n F_n with p_n = P(n in S) / M, far from the mean."""
    weights = [1, 1, 2, 4, 8, 16]
    process = ft.participation.Weighted(size=2, weights=weights)
    a, e, x = one_step_run(process, ft.algorithms.FedAvg())
    w = np.array(weights) / sum(weights)
    p = np.zeros(CLIENTS)  # successive sampling of two: every ordered pair by hand
    for first in range(CLIENTS):
        for second in range(CLIENTS):
            if second != first:
                chance = w[first] * w[second] / (1 - w[first])
                p[first] += chance / 2
                p[second] += chance / 2
    assert p.sum() == pytest.approx(1)
    assert np.abs(x - minimiser(a, e, p)).max() < 0.09
    assert np.abs(x - minimiser(a, e, np.ones(CLIENTS))).max() > 0.5


RATES = [0.9, 0.8, 0.5, 0.3, 0.2, 0.1]


@pytest.mark.statistical
def test_averaging_over_all_finds_the_biased_point():
    """Paper 001, Theorem 1: constant weights minimise Σ p_n F_n."""
    process = ft.participation.Bernoulli(rates=RATES)
    a, e, x = one_step_run(process, ft.algorithms.FedAvg(weights="all"))
    assert np.abs(x - minimiser(a, e, np.array(RATES))).max() < 0.09
    assert np.abs(x - minimiser(a, e, np.ones(CLIENTS))).max() > 0.5


@pytest.mark.statistical
@pytest.mark.parametrize(
    "algorithm", [ft.algorithms.KnownRates(), ft.algorithms.FedAU(cutoff=None)], ids=repr
)
def test_weights_that_undo_the_rates_find_the_optimum(algorithm):
    process = ft.participation.Bernoulli(rates=RATES)
    a, e, x = one_step_run(process, algorithm)
    assert np.abs(x - minimiser(a, e, np.ones(CLIENTS))).max() < 0.18  # 1/p makes more noise


# Other objectives than the mean.


@pytest.mark.parametrize("given", [[3.0, 1.0, 0.0, 2.0, 4.0], "uniform"])
def test_a_weighted_objective_is_the_run_with_scaled_losses(given):
    a, e, x = quadratic()
    weights = np.full(5, 0.2) if given == "uniform" else np.array(given) / 10
    result = run((a, e, x), ft.participation.Full(), ft.algorithms.FedAvg(), 6, objective=given)
    literal = run(
        (5 * weights[:, None, None] * a, e, x), ft.participation.Full(), ft.algorithms.FedAvg(), 6
    )
    assert np.allclose(result.iterates, literal.iterates, rtol=1e-12, atol=1e-12)
    losses = [0.5 * (result.model - e[n]) @ a[n] @ (result.model - e[n]) for n in range(5)]
    assert result.metrics["loss"][-1] == pytest.approx(weights @ losses)
    assert result.clients["loss"].to_list() == pytest.approx(losses)


def test_the_same_seed_gives_the_same_bits_and_another_does_not(regression):
    models = [ft.simulate(**regression | {"seed": seed}).model.tobytes() for seed in (1, 1, 2)]
    assert models[0] == models[1] != models[2]


@pytest.mark.parametrize(
    ("evaluation", "rounds"),
    [
        ({"every": 30}, [0, 30, 60, 65]),
        ({"every": 0}, [65]),
        ({"every": 25, "last": 20}, [0, 25, 50, 60, 65]),  # and every ten of the last 20
    ],
)
def test_when_a_model_is_evaluated(evaluation, rounds):
    result = run(quadratic(), "full", "fedavg", 65, evaluation=evaluation)
    assert result.metrics["round"].to_list() == rounds
