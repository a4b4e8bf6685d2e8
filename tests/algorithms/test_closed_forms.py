"""What the papers derive by hand: where methods end, and how close they come."""

import math

import numpy as np
import pytest

from fedtide import algorithms as a

from .driver import Quadratics, drive


def example_1(e1, e2):
    """Paper 003, Example 1: f_i(x) = (x - e_i)²."""
    return Quadratics(np.full((2, 1, 1), 2.0), np.array([[e1], [e2]]))


def phases(t1, t2, periods):
    """Client 1 is there for t1 rounds, client 2 for the next t2, and so on."""
    period = np.array([[1.0, 0.0]] * t1 + [[0.0, 1.0]] * t2)
    return np.tile(period, (periods, 1))


@pytest.mark.parametrize(
    ("lr", "steps", "t1", "t2"),
    [(0.05, 1, 7, 2), (0.05, 4, 1, 5), (0.3, 1, 1, 2), (0.3, 4, 7, 5)],
)
def test_fedavg_ends_where_example_1_says(lr, steps, t1, t2):
    e1, e2, r = -1.0, 3.0, 1 - 2 * lr
    periods = math.ceil(math.log(1e-13) / (steps * (t1 + t2) * math.log(r))) + 1
    driven = drive(a.FedAvg(), example_1(e1, e2), phases(t1, t2, periods), lr, steps)

    n1, n2 = steps * t1, steps * t2
    X = (r**n2 * (e1 - e2) + e2 - e1 * r ** (n1 + n2)) / (1 - r ** (n1 + n2))
    after_first_phase = e1 + r**n1 * (X - e1)
    assert driven.iterates[-1, 0] == pytest.approx(X, abs=1e-10)
    assert driven.iterates[-1 - t2, 0] == pytest.approx(after_first_phase, abs=1e-10)


def test_inside_a_phase_fedlaavg_follows_its_affine_recursion():
    """u_m = (1 - γ)^m u_0 - (1 - (1 - γ)^m) u_s with u = x - x*, the absent client's gradient
    having been taken at x_s (papers' note to Example 1)."""
    lr, t1, t2 = 0.05, 6, 9
    u = drive(a.FedLaAvg(), example_1(0.0, 4.0), phases(t1, t2, 2), lr).iterates[:, 0] - 2.0
    for begin, length in ((t1, t2), (t1 + t2, t1), (2 * t1 + t2, t2)):
        for m in range(1, length + 1):
            shrunk = (1 - lr) ** m
            expected = shrunk * u[begin] - (1 - shrunk) * u[begin - 1]
            assert u[begin + m] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("t1", "t2", "x0", "T"), [(1, 1, 5.0, 100), (10, 3, -4.0, 400), (20, 20, 0.0, 900)]
)
def test_fedlaavg_keeps_theorem_2(t1, t2, x0, T):
    """γ = 1 / (2 √T): (x̂ - x*)² <= (f(x_0) - f*) / √T + I² G² / (4 T), x̂ the mean of x_0..x_{T-1}.

    The theorem takes both gradients from the start, so both clients are there in round 0."""
    e1, e2, optimum = 0.0, 4.0, 2.0
    table = phases(t1, t2, T)[:T]
    table[0] = 0.5
    driven = drive(a.FedLaAvg(), example_1(e1, e2), table, 0.5 / math.sqrt(T), start=np.array([x0]))
    mean = driven.iterates[:-1, 0].mean()
    G = max(2 * abs(x0 - optimum), abs(e1 - e2))
    bound = (x0 - optimum) ** 2 / math.sqrt(T) + (max(t1, t2) * G) ** 2 / (4 * T)
    assert (mean - optimum) ** 2 <= bound


@pytest.mark.statistical
def test_under_alternating_groups_fedavg_ends_wrong_and_the_remedies_do_not():
    """The authors' toy of paper 003: e = 0, 1 | 10, 11, groups of 50 and 150 rounds, 10 local
    steps; the optimum is 5.5. FedAvg swings between the two ends of Example 1's cycle."""
    e = np.array([[0.0], [1.0], [10.0], [11.0]])
    problem = Quadratics(np.full((4, 1, 1), 2.0), e)
    cycle = np.array([[0.5, 0.5, 0, 0]] * 50 + [[0, 0, 0.5, 0.5]] * 150)
    table, r = np.tile(cycle, (30, 1)), (1 - 2e-4) ** 10

    X = (r**150 * (0.5 - 10.5) + 10.5 - 0.5 * r**200) / (1 - r**200)
    low = 0.5 + r**50 * (X - 0.5)
    xs = drive(a.FedAvg(), problem, table, 1e-4, 10).iterates[:, 0]
    assert xs[[-1, -151]] == pytest.approx([X, low], abs=1e-3)
    assert (round(low, 2), round(X, 2)) == (7.61, 8.36)
    for method in (a.FedLaAvg(), a.Scaffold()):
        end = drive(method, problem, table, 1e-4, 10).iterates[-1, 0]
        assert end == pytest.approx(5.5, abs=0.05)


@pytest.mark.statistical
def test_amplification_and_periodic_control_variates_undo_cyclic_availability():
    """Two groups of 10 rounds each. Amplified FedAvg's bias is of order γ P; amplified SCAFFOLD's
    fixed point is the optimum itself, as every window sees each client equally often. MIFA and
    FedLaAvg end where FedAvg with everyone would: Σ Δ_n = 0, off by what two local steps cost."""
    problem = Quadratics(np.array([[[1.0]], [[3.0]]]), np.array([[0.0], [4.0]]))
    table, optimum = phases(10, 10, 300), 3.0

    def error(method, lr):
        return abs(drive(method, problem, table, lr, 2).iterates[-1, 0] - optimum)

    plain = error(a.FedAvg(), 0.02)
    assert plain > 0.1
    assert error(a.Amplified(period=20, factor=100.0), 2e-4) < plain / 50
    assert error(a.AmplifiedScaffold(period=20, factor=1.5), 0.005) < 1e-9
    first, second = 1 - 0.995**2, 1 - 0.985**2
    drifted = optimum - 4 * second / (first + second)
    for method in (a.MIFA(), a.FedLaAvg()):
        assert error(method, 0.005) == pytest.approx(drifted, abs=1e-9)
    assert drifted < error(a.FedAvg(), 0.005) / 10


@pytest.mark.parametrize("option", [1, 2])
def test_scaffolds_fixed_point_is_the_optimum(option):
    """With several local steps and curvatures FedAvg's is not; SCAFFOLD is there with anyone."""
    rng = np.random.default_rng(6)
    problem = Quadratics.random(rng, 5)
    table = np.array([rng.permutation([0.5, 0.5, 0, 0, 0]) for _ in range(600)])
    method = a.Scaffold(option=option)
    driven = drive(method, problem, table, 0.05, 5)
    np.testing.assert_allclose(driven.iterates[-1], problem.optimum(), atol=1e-9)
    everyone = drive(a.FedAvg(), problem, np.full((200, 5), 0.2), 0.05, 5).iterates[-1]
    assert np.abs(everyone - problem.optimum()).max() > 1e-3


@pytest.mark.statistical
def test_averaging_the_cohort_minimises_the_participation_weighted_sum():
    """Paper 004, objective (3): p_n = Σ_A q(A) / |A| over the cohorts A that contain n.

    Cohorts come in a fixed order with the frequencies q(A); one step per round with small γ stays
    within O(γ) of the minimiser of Σ p_n F_n."""
    problem = Quadratics.random(np.random.default_rng(7), 3)
    cohorts = [[0], [0, 1], [0, 1, 2], [1], [0]]
    p, table = np.zeros(3), np.zeros((5, 3))
    for t, cohort in enumerate(cohorts):
        p[cohort] += 1 / (5 * len(cohort))
        table[t, cohort] = 1 / len(cohort)
    end = drive(a.FedAvg(), problem, np.tile(table, (800, 1)), 0.002).iterates[-1]
    np.testing.assert_allclose(end, problem.optimum(p), atol=0.01)
    assert np.abs(problem.optimum(p) - problem.optimum()).max() > 0.1
