"""Paper 002's synthetic experiment: after how many rounds the objective is 0.2."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from fedtide import algorithms as a

from .driver import drive

C, H, L, LAMBDA, ZETA, B = 1.0, 16.0, 2.0, 1.0, 16.0, 0.25
ROUNDS, STEPS, PERIOD = 5000, 10, 480


@dataclass
class Lower:
    """The two clients' gradients, with noise in the third coordinate from a legacy stream."""

    noise: float
    stream: np.random.RandomState = field(default_factory=lambda: np.random.RandomState(0))
    clients: int = 2
    e: np.ndarray = field(default_factory=lambda: np.zeros((2, 4)))

    def gradient(self, n, x):
        fourth = L / 2 * x[3] + ZETA if n == 0 else LAMBDA / 2 * x[3] - ZETA
        third = H / 4 * (x[2] + max(0.0, x[2]))
        if self.noise:
            third += self.noise * self.stream.normal()
        return np.array([x[0] - C, H * (x[1] - B), third, fourth])


def objective(x, fourth):
    return (
        0.5 * (x[:, 0] - C) ** 2
        + H / 2 * (x[:, 1] - B) ** 2
        + H / 8 * (x[:, 2] ** 2 + np.maximum(0.0, x[:, 2]) ** 2)
        + fourth * (L + LAMBDA) * x[:, 3] ** 2
    )


PUBLISHED, CONSISTENT = 1 / 4, 1 / 8
CASES = [  # method, local rate, and the rounds: as published, with the clients' mean, noiseless
    (a.AmplifiedScaffold(period=PERIOD, factor=1.5), 1e-4 / 1.5, 800, 600, 736),
    (a.Scaffold(), 1e-4, 1900, 1500, 1872),
    (a.FedAvg(), 1e-5, 4800, 4700, 4712),
    (a.Amplified(period=PERIOD, factor=3.0), 1e-5 / 3, 4800, 4800, 4800),
]
every_case = pytest.mark.parametrize(("method", "lr", "published", "consistent", "exact"), CASES)


def iterates(method, lr, noise):
    """The published program draws one client with choice(), then one normal for every local step;
    scheduled clients leave the choice without effect but for the stream."""
    problem, xs, state = Lower(noise), [np.zeros(4)], None
    table = np.zeros((ROUNDS, 2))
    for r in range(ROUNDS):
        table[r, 0 if r % PERIOD < PERIOD // 2 else 1] = 1.0
        problem.stream.choice(1)
        driven = drive(method, problem, table[: r + 1], lr, STEPS, state=state, first=r)
        state = driven.state
        xs.append(state.model.numpy())
    return np.array(xs)


def first_below(values, every=1):
    return int(np.flatnonzero(values[::every] <= 0.2)[0]) * every


@pytest.mark.statistical
@every_case
def test_with_noise_as_logged(method, lr, published, consistent, exact):
    xs = iterates(method, lr, noise=1.0)
    assert first_below(objective(xs, PUBLISHED), every=100) == published
    assert first_below(objective(xs, CONSISTENT), every=100) == consistent


@pytest.mark.statistical
@every_case
def test_without_noise_to_the_round(method, lr, published, consistent, exact):
    xs = iterates(method, lr, noise=0.0)
    assert first_below(objective(xs, PUBLISHED)) == exact
